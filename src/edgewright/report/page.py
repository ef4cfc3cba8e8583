"""The page of a run: one HTML file that needs nothing else, made from the run folder alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewright.report.charts import short
from edgewright.report.figures import draw_inline
from edgewright.report.style import DARK_PALETTE, PALETTE
from edgewright.report.subject import Subject
from edgewright.report.template import rendered
from edgewright.report.values import at, mapping, number

#: What stands where there is no figure.
NONE = "-"
#: Rows of the tables, at most; a case with more is told so.
_MOST_SEGMENTS = 200
#: Rows of the table of dialogs: what they are called, and where the summary has them.
_FIGURES = (
    ("queries", ("jobs",)),
    ("complete", ("complete",)),
    ("first token, median [ms]", ("ttft_ms", "p50")),
    ("  alone", ("solo", "ttft_ms", "p50")),
    ("between tokens, p50 [ms]", ("itl_ms", "p50")),
    ("  p90", ("itl_ms", "p90")),
    ("  p99", ("itl_ms", "p99")),
    ("  longest", ("itl_ms", "max")),
    ("  alone, p50", ("solo", "itl_ms", "p50")),
    ("decode [tokens/s]", ("decode_tokens_per_s",)),
    ("  alone", ("solo", "decode_tokens_per_s")),
    ("prefill [tokens/s]", ("prefill_tokens_per_s",)),
    ("slower than alone: first token", ("slowdown", "ttft")),
    ("  between tokens", ("slowdown", "itl")),
    ("  whole query", ("slowdown", "total")),
    ("waiting of a step, p50 [ms]", ("queue_ms", "p50")),
    ("  p99", ("queue_ms", "p99")),
    ("most steps of others in between", ("worst_gap_quanta",)),
    ("  at most, by the discipline", ("starvation_bound_quanta",)),
    ("deadlines missed", ("deadline_misses",)),
    ("saturated values", ("saturated",)),
)


@dataclass
class Table:
    """Rows of cells, the first of a row its name; `chips` and a row's `dialog` are the colors of heads and names."""

    head: Sequence[str]
    chips: Sequence[int | None] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, *cells: str, dialog: int | None = None) -> None:
        """Add a row."""
        self.rows.append({"cells": cells, "dialog": None if dialog is None else dialog % len(PALETTE)})


def page(subject: Subject) -> str:
    """Return the page of a run: summary, figures, segments, each dialog, environment and what to know.

    Raises MissingExtraError without matplotlib.
    """
    figures, missing = draw_inline(subject)
    return rendered(
        "edgewright.report",
        "run.html",
        wide=True,
        light=PALETTE,
        dark=DARK_PALETTE,
        title=subject.title,
        status=subject.status,
        simulated=subject.run.simulated,
        facts=_facts(subject),
        warnings=[*warnings(subject), *(f"Not drawn: {text}." for text in missing)],
        figures=figures,
        dialogs=[_dialog(subject, index) for index, _ in enumerate(subject.names)],
        dialogs_table=_dialogs_table(subject),
        dialogs_note=_dialogs_note(subject),
        system_table=_system_table(subject),
        library_table=_library_table(subject),
        segments_table=_segments_table(subject),
        environment=_flat(subject.run.env),
        case=json.dumps(subject.run.case, indent=2, ensure_ascii=False, default=str),
    )


def warnings(subject: Subject) -> list[str]:
    """Return what a reader must know, a sentence each."""
    said = [text for text in at(subject.summary, "findings", kind=list) or [] if isinstance(text, str)]
    found = [text for text in said if not text.startswith("The files are not whole")]
    for note in subject.notes:
        damaged = note in subject.run.notes
        found.append(f"The files are not whole: {note}." if damaged else f"{note[0].upper()}{note[1:]}.")
    if subject.status not in ("complete", "interrupted"):
        found.insert(0, f"The run's status is {subject.status}.")
    return list(dict.fromkeys(found))


def percent(value: float | None) -> str:
    """Spell a part of 1."""
    return NONE if value is None else f"{short(100 * value)} %"


def shown(value: float | None) -> str:
    """Spell a number shortly, without an exponent where it is of a usual size."""
    if value is None:
        return NONE
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e7 else short(value)


def _facts(subject: Subject) -> list[str]:
    scheduler = mapping(subject.summary, "scheduler")
    found = []
    discipline = at(scheduler, "discipline", kind=str)
    if discipline:
        found.append(f"scheduled {discipline}")
    hold = number(scheduler, "hold_ms")
    if mapping(subject.run.env, "external"):
        found.append("run by an external program")
    elif hold is not None:
        found.append(f"held up to {short(hold)} ms")
    repeats = len(subject.repeats)
    found.append(f"{repeats} repeat{'' if repeats == 1 else 's'}{', the first is drawn' if repeats > 1 else ''}")
    found.append("after a warm-up" if subject.warmed else "without a warm-up")
    return found


def _dialogs_table(subject: Subject) -> Table:
    """Return the figures of all dialogs, a column a dialog."""
    table = _by_dialog(subject)
    dialogs = [mapping(subject.summary, "dialogs", name) for name in subject.names]
    for text, path in _FIGURES:
        values = [number(one, *path) for one in dialogs]
        if any(value is not None for value in values):
            table.add(text, *map(shown, values))
    return table


def _dialogs_note(subject: Subject) -> str:
    several = " Repeats are pooled." if len(subject.repeats) > 1 else ""
    return (
        "The first token is counted from when a query was released, and where it is compared with the dialog's run "
        f"alone, from when the dialog was not paused either.{several} No figure contains a warm-up."
    )


def _system_table(subject: Subject) -> Table:
    system = mapping(subject.summary, "system")
    several = len(subject.repeats) > 1
    table = Table(("figure", "mean of the repeats", "95 % interval") if several else ("figure", "value"))
    for key, text, spell in (
        ("makespan_ms", "whole run [ms]", shown),
        ("tokens_per_s", "tokens/s of all", shown),
        ("busy", "accelerator busy", percent),
        ("held_ms", "held for somebody [ms]", shown),
        ("lost_turns", "turns given up after holding", shown),
        ("goodput_jobs_per_s", "queries/s in time", shown),
        ("jain_service", "fairness of service (Jain)", shown),
        ("jain_progress", "fairness of progress (Jain)", shown),
        ("energy_j", "energy [J]", shown),
    ):
        value = number(system, key)
        if value is not None:
            low, high = (number(subject.summary, "repeats", f"system.{key}", end) for end in ("low", "high"))
            interval = NONE if low is None else f"{spell(low)} to {spell(high)}"
            table.add(text, spell(value), *([interval] if several else []))
    memory = number(system, "peak_rss_bytes")
    if memory is not None:
        table.add("peak memory [MB]", shown(round(memory / 1e6, 1)), *([NONE] if several else []))
    return table


def _library_table(subject: Subject) -> Table:
    """Return the medians of the figures that an external program's library gave, beside what can be said better."""
    table = _by_dialog(subject)
    dialogs = [mapping(subject.summary, "dialogs", name) for name in subject.names]
    keys = dict.fromkeys(key for one in dialogs for kind in ("genie", "recomputed") for key in mapping(one, kind))
    for key in keys:
        given, better = ([number(one, kind, key, "p50") for one in dialogs] for kind in ("genie", "recomputed"))
        table.add(key, *map(shown, given))
        if better != given and any(value is not None for value in better):
            table.add("  recomputed", *map(shown, better))
    return table


def _by_dialog(subject: Subject) -> Table:
    """Return a table with a column a dialog."""
    return Table(("", *subject.names), (None, *(index % len(PALETTE) for index, _ in enumerate(subject.names))))


def _segments_table(subject: Subject) -> Table:
    table = Table(("dialog", "from [ms]", "to", "weight", "requested", "of the steps", "of the time"))
    for one in (at(subject.summary, "segments", kind=list) or [])[:_MOST_SEGMENTS]:
        end = number(one, "end_ms")
        for index, name in enumerate(subject.names):
            table.add(
                name,
                shown(number(one, "start_ms")),
                "the end" if end is None else shown(end),
                shown(number(one, "weights", name)),
                percent(number(one, "requested", name)),
                *(percent(number(one, "achieved", name, unit)) for unit in ("quanta", "time")),
                dialog=index,
            )
    return table


def _dialog(subject: Subject, index: int) -> dict[str, Any]:
    """Return the values of a dialog's own table: every spread, beside that of its run alone."""
    name = subject.names[index]
    one = mapping(subject.summary, "dialogs", name)
    parts = ("n", "mean", "min", "p50", "p90", "p95", "p99", "max")
    table = Table(("[ms]", *parts))
    kinds = [
        ("ttft_ms", "first token from release"),
        ("ttft_eligible_ms", "first token from eligible"),
        ("itl_ms", "between tokens"),
        ("tpot_ms", "time per token"),
        ("job_ms", "whole query"),
        ("queue_ms", "waiting of a step"),
        ("host_ms", "host work of a step"),
    ]
    for where, which in ((one, ""), (mapping(one, "solo"), ", alone")):
        for key, text in kinds:
            _add_spread(table, text + which, mapping(where, key), parts)
        for phase in mapping(where, "step_ms"):
            _add_spread(table, f"step of {phase}{which}", mapping(where, "step_ms", phase), parts)
    spec: Any = next((d for d in subject.run.case.get("dialogs", ()) if mapping(d).get("name") == name), {})
    counts = [
        f"{text} {shown(value)}"
        for key, text in (
            ("quanta", "steps"),
            ("prompt_tokens", "prompt tokens"),
            ("generated_tokens", "generated tokens"),
            ("most_held", "most tokens in the context"),
            ("paused_ms", "ms paused"),
            ("saturated", "saturated values"),
            ("deadline_misses", "deadlines missed"),
            ("cold_ttft_ms", "ms to the very first token, cold"),
        )
        if (value := number(one, key)) is not None
    ]
    same = at(one, "same_tokens_as_solo", kind=bool)
    counts += [] if same is None else ["the tokens of its run alone" if same else "other tokens than its run alone"]
    return {
        "name": name,
        "color": index % len(PALETTE),
        "what": f"{mapping(spec).get('model', '')}, weight {subject.run.timelines[name]}",
        "error": at(one, "error", kind=str),
        "table": table,
        "counts": ", ".join(counts),
    }


def _add_spread(table: Table, text: str, values: Mapping[str, Any], parts: Sequence[str]) -> None:
    if number(values, "n"):
        table.add(text, *(shown(number(values, part)) for part in parts))


def _flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested values as (path, text); what is not known is left out."""
    found = []
    for key, value in data.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping) and len(prefix) < 100:
            found += _flat(value, f"{name}: ")
        elif isinstance(value, list):
            found.append((name, ", ".join(f"{one:.3g}" if isinstance(one, float) else str(one) for one in value)))
        elif value is not None:
            found.append((name, value if isinstance(value, str) else json.dumps(value, default=str)))
    return found
