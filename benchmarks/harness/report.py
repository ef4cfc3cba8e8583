"""Medians with their spread, and the Markdown tables."""

from collections.abc import Iterable
from datetime import date
from statistics import median
from typing import Any

from harness.artefacts import QUALITY_MODEL, reference_perplexity
from harness.machine import cpu_model

Run = dict[str, Any]


def clean_or_all(runs: list[Run]) -> list[Run]:
    """Return the clean runs, or all of them when none is clean."""
    return [run for run in runs if not run["dirty"]] or runs


def spread(values: Iterable[float], digits: int) -> str:
    """Write `median [min..max]`, or the one value.

    >>> spread([3.0, 1.0, 2.04], 1), spread([5], 0)
    ('2.0 [1.0..3.0]', '5')
    """
    values = sorted(values)
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{median(values):.{digits}f} [{values[0]:.{digits}f}..{values[-1]:.{digits}f}]"


def count(runs: list[Run]) -> str:
    """Write the number of clean runs, and mark the dirty ones.

    >>> count([{"dirty": False}, {"dirty": True}]), count([{"dirty": True}])
    ('1 (+1 dirty, left out)', '0 (**1 dirty**)')
    """
    dirty = sum(run["dirty"] for run in runs)
    if not dirty:
        return str(len(runs))
    note = f"(+{dirty} dirty, left out)" if dirty < len(runs) else f"(**{dirty} dirty**)"
    return f"{len(runs) - dirty} {note}"


def row(name: str, runs: list[Run], disk_mb: float, quality: Run, contexts: list[int]) -> str:
    """Return one contender's line."""
    kept = clean_or_all(runs)
    cells = [name, count(runs), spread((run["prefill"] for run in kept), 0)]
    cells += [spread((run[f"decode_{context}"] for run in kept), 1) for context in contexts]
    cells += [spread((run["load_s"] for run in kept), 2)]
    cells += [spread((run[key] for run in kept), 0) for key in ("peak_anon_mb", "peak_rss_mb")]
    cells += [f"{disk_mb:.0f}", f"{quality['kl']:.4f} ± {quality['kl_se']:.4f}", f"{quality['perplexity']:.2f}"]
    return "| " + " | ".join([*cells, f"{100 * quality['top1']:.1f} %"]) + " |"


def table(model: str, lines: list[Run], settings: Run) -> str:
    """Return the table of one model; each line has name, runs, disk_mb and quality."""
    contexts = settings["contexts"]
    of = "" if model == QUALITY_MODEL else f" of {QUALITY_MODEL}"
    heads = ["contender", "n", f"prefill {settings['prefill']} tok/s"]
    heads += [f"decode@{context} tok/s" for context in contexts]
    heads += ["load s", "peak anon MB", "peak RSS MB", "disk MB", f"KL ± se{of}", f"ppl{of}", f"top-1{of}"]
    text = [f"### {model}", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    text += [row(line["name"], line["runs"], line["disk_mb"], line["quality"], contexts) for line in lines]
    return "\n".join(text) + "\n"


def document(tables: dict[str, list[Run]], settings: Run) -> str:
    """Return the whole Markdown page."""
    versions: dict[str, str] = {}
    for lines in tables.values():
        for line in lines:
            versions |= {f"{name} {value}": "" for name, value in line["runs"][0]["versions"].items()}
    head = [
        "# Race",
        "",
        f"{date.today().isoformat()}; {cpu_model()}; {settings['threads']} threads; batch 1; greedy; "
        f"{settings['decode']} tokens decoded; a run is one fresh process.",
        f"Versions: {', '.join(sorted(versions))}.",
        "A speed is `median [min..max]` over `n` clean runs. KL (nats per token, mean ± standard error), perplexity "
        f"and top-1 agreement are against the float32 checkpoint of {QUALITY_MODEL} on a fixed text, whose own "
        f"perplexity is {reference_perplexity():.2f}.",
        "",
    ]
    return "\n".join(head) + "\n" + "\n".join(table(model, lines, settings) for model, lines in tables.items())
