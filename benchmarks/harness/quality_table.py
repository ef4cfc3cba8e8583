"""The Markdown tables of the comparison on held-out text."""

from datetime import date
from typing import Any

from harness.quality_roster import AS_RUN, WEIGHTS_ONLY

Line = dict[str, Any]
HEADS = ("contender", "MB", "KL weights only", "KL as run", "perplexity", "top-1", "types")


def divergence(quality: Line | None) -> str:
    """Write a divergence in thousandths of a nat with its standard error over windows.

    >>> divergence({"kl": 0.0123456, "kl_se_windows": 0.00021}), divergence(None)
    ('12.35 ± 0.21', '–')
    """
    if quality is None:
        return "–"
    digits = 2 if quality["kl"] >= 1e-3 else 4
    return f"{1e3 * quality['kl']:.{digits}f} ± {1e3 * quality['kl_se_windows']:.{digits}f}"


def types(line: Line) -> str:
    """Write the shares of the largest types of a weight file.

    >>> types({"types": {"Q4_0": 75, "Q8_0": 24.9, "F32": 0.1}})
    'Q4_0 75 %, Q8_0 25 %'
    """
    total = sum(line["types"].values())
    shares = {name: 100 * size / total for name, size in line["types"].items()}
    return ", ".join(f"{name} {share:.0f} %" for name, share in shares.items() if share >= 0.5)


def row(line: Line) -> str:
    """Return one contender's line."""
    weights_only, as_run = line["quality"][WEIGHTS_ONLY], line["quality"][AS_RUN]
    cells = [line["name"], f"{line['bytes'] / 1e6:#.4g}", divergence(weights_only), divergence(as_run)]
    told = as_run or weights_only or {"perplexity": float("nan"), "top1": float("nan")}
    cells += [f"{told['perplexity']:.3f}", f"{100 * told['top1']:.1f} %", types(line)]
    return "| " + " | ".join(cells) + " |"


def table(model: str, result: Line) -> str:
    """Return the table of one model, smallest file first."""
    lines = sorted(result["lines"], key=lambda line: line["bytes"])
    head = [f"### {model}", "", f"{result['windows']} windows; perplexity of float32: {result['perplexity']:.3f}.", ""]
    head += ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    return "\n".join([*head, *map(row, lines)]) + "\n"


def document(result: Line) -> str:
    """Return the whole Markdown page."""
    measured = [
        quality
        for part in result["models"].values()
        for line in part["lines"]
        for quality in line["quality"].values()
        if quality is not None
    ]
    versions = sorted({f"{name} {value}" for quality in measured for name, value in quality["versions"].items()})
    head = [
        "# Quality on held-out text",
        "",
        f"{date.today().isoformat()}; {result['cpu']}; {result['text']}.",
        f"Versions: {', '.join(versions)}.",
        "KL(float32 ‖ contender) in thousandths of a nat per token, mean ± standard error over windows of 512 tokens "
        "whose last 256 are scored. MB is the weight file, embedding included.",
        "",
    ]
    return "\n".join(head) + "\n" + "\n".join(table(model, part) for model, part in result["models"].items())
