"""Two runs side by side: which figures can be compared, how they differ, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgewright.bench.records.statistics import ratio, rounded, t95
from edgewright.report.subject import Subject
from edgewright.report.values import mapping, number

SCHEMA_VERSION = 1
#: Fields of a dialog that say what it has to do; with others, its figures can't be compared.
_WORK = (
    "input", "iterations", "max_tokens", "stop", "reset", "sampling", "ignore_eos", "raw", "requantize",
)  # fmt: skip
#: What a machine is known by.
_MACHINE = ("system", "arch", "cpu", "features", "logical_cores", "usable_cores", "memory_bytes", "governor")
#: Figures of the whole run and of a dialog: key of the summary's `repeats`, name, unit.
_SYSTEM = (
    ("makespan_ms", "whole run", "ms"),
    ("tokens_per_s", "tokens of all", "1/s"),
    ("busy", "accelerator busy", ""),
    ("held_ms", "held for somebody", "ms"),
    ("goodput_jobs_per_s", "queries in time", "1/s"),
    ("energy_j", "energy", "J"),
)
_DIALOG = (
    ("ttft_ms.mean", "first token, mean", "ms"),
    ("itl_ms.mean", "between tokens, mean", "ms"),
    ("itl_ms.p50", "between tokens, p50", "ms"),
    ("itl_ms.p99", "between tokens, p99", "ms"),
    ("job_ms.mean", "whole query, mean", "ms"),
    ("decode_tokens_per_s", "decode", "tokens/s"),
    ("prefill_tokens_per_s", "prefill", "tokens/s"),
    ("genie.time-to-first-token", "first token as the library gives it", ""),
    ("recomputed.token-generation-rate", "decode, recomputed", "tokens/s"),
)


@dataclass(frozen=True)
class Figure:
    """A figure of a run: the mean of its repeats, the 95 % confidence interval, the number of repeats."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Row:
    """A figure in both runs; `dialog` is None for the whole run.

    `ratio` is the second over the first, None where they can't be compared; `low` and `high` are its 95 % confidence
    interval, None with fewer than two repeats of each.
    """

    name: str
    unit: str
    dialog: str | None
    first: Figure | None
    second: Figure | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def finding(self) -> str | None:
        """What the interval says: "higher", "lower" or "no difference shown"; None without one."""
        if self.low is None or self.high is None:
            return None
        return "higher" if self.low > 1 else "lower" if self.high < 1 else "no difference shown"


@dataclass(frozen=True)
class Comparison:
    """Two runs compared. `reasons` say why no figure can be compared, `apart` why those of a dialog can't.

    `changed` says what else was different: what the comparison may be about.
    """

    first: Subject
    second: Subject
    reasons: tuple[str, ...]
    apart: Mapping[str, str]
    changed: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def comparable(self) -> bool:
        """Whether at least one figure could be compared."""
        return any(row.ratio is not None for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values."""
        return {
            "schema_version": SCHEMA_VERSION,
            **{key: _named(subject) for key, subject in (("first", self.first), ("second", self.second))},
            "comparable": self.comparable,
            "reasons": list(self.reasons),
            "dialogs_apart": dict(self.apart),
            "changed": list(self.changed),
            "figures": [{**asdict(row), "finding": row.finding} for row in self.rows],
        }


def compare(first: Subject, second: Subject) -> Comparison:
    """Compare two runs."""
    reasons = tuple(_reasons(first, second))
    apart = dict(_apart(first, second))
    rows: list[Row] = []
    same_work = not reasons and not apart
    for key, name, unit in _SYSTEM:
        rows += _row(first, second, f"system.{key}", name, unit, None, same_work)
    for dialog in dict.fromkeys((*first.names, *second.names)):
        fair = not reasons and dialog not in apart
        for key, name, unit in _DIALOG:
            rows += _row(first, second, f"dialogs.{dialog}.{key}", name, unit, dialog, fair)
    return Comparison(first, second, reasons, apart, tuple(_changed(first, second)), tuple(rows))


def ratio_interval(first: Figure, second: Figure) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of second / first; None without two repeats of each, or without a sign.

    The logarithm of a mean has about the standard error s / mean (delta method); the difference of two has Welch's
    degrees of freedom, rounded down.
    """
    if min(first.n, second.n) < 2 or min(first.mean, second.mean) <= 0:
        return None
    errors = []
    for one in (first, second):
        if one.low is None or one.high is None:
            return None
        errors.append((one.high - one.low) / 2 / t95(one.n - 1) / one.mean)
    middle = math.log(second.mean / first.mean)
    squares = [error * error for error in errors]
    total = sum(squares)
    if not total:
        return math.exp(middle), math.exp(middle)
    freedom = total**2 / sum(s * s / (one.n - 1) for s, one in zip(squares, (first, second), strict=True))
    half = t95(max(1, math.floor(freedom + 1e-9))) * math.sqrt(total)
    return (math.exp(middle - half), math.exp(middle + half)) if half < 100 else None


def _row(
    first: Subject, second: Subject, key: str, name: str, unit: str, dialog: str | None, fair: bool
) -> Iterator[Row]:
    """Yield the row of a figure that at least one of the runs has."""
    one, other = _figure(first, key), _figure(second, key)
    if one is None and other is None:
        return
    if not fair or one is None or other is None or not one.mean or not other.mean:
        yield Row(name, unit, dialog, one, other)
        return
    bounds = ratio_interval(one, other)
    low, high = (None, None) if bounds is None else (rounded(bounds[0]), rounded(bounds[1]))
    yield Row(name, unit, dialog, one, other, ratio(other.mean, one.mean), low, high)


def _figure(subject: Subject, key: str) -> Figure | None:
    one = mapping(subject.summary, "repeats", key)
    mean, n = number(one, "mean"), number(one, "n")
    if mean is None or n is None:
        return None
    return Figure(mean, number(one, "low"), number(one, "high"), int(n))


def _reasons(first: Subject, second: Subject) -> Iterator[str]:
    """Yield why nothing of two runs can be compared."""
    if first.run.simulated != second.run.simulated:
        one = first if first.run.simulated else second
        yield f"{one.title} is of a simulated device and the other of a real one"
        return
    if bool(mapping(first.run.env, "external")) != bool(mapping(second.run.env, "external")):
        one = first if mapping(first.run.env, "external") else second
        yield f"{one.title} was run by an external program and the other by this one"
        return
    if not first.run.simulated:
        machines = [mapping(subject.run.env, "machine") for subject in (first, second)]
        other = [key for key in _MACHINE if machines[0].get(key) != machines[1].get(key)]
        if other:
            yield f"they were made on different machines: {_differences(machines, other)}"
        elif not machines[0]:
            yield "neither says on which machine it was made"
        if first.warmed != second.warmed:
            one = second if first.warmed else first
            yield f"{one.title} had no warm-up, the other had one: a cold run and a warm one are not compared"
    for subject in (first, second):
        if not subject.repeats:
            yield f"{subject.title} has no step of a concurrent run"


def _apart(first: Subject, second: Subject) -> Iterator[tuple[str, str]]:
    """Yield the dialogs that don't do the same in both runs, and why they don't."""
    for dialog in dict.fromkeys((*first.names, *second.names)):
        missing = next((one for one in (first, second) if dialog not in one.names), None)
        if missing is not None:
            yield dialog, f"{missing.title} does not have it"
            continue
        specs = [_spec(subject, dialog) for subject in (first, second)]
        other = [key for key in _WORK if specs[0].get(key) != specs[1].get(key)]
        if other:
            yield dialog, f"it does not do the same in both: {_differences(specs, other)}"
            continue
        broken = next((s for s in (first, second) if number(s.summary, "dialogs", dialog, "failed")), None)
        if broken is not None:
            yield dialog, f"queries of it failed in {broken.title}"
            continue
        cut = [s for s in (first, second) if _cut(s, dialog)]
        if cut and not (len(cut) == 2 and all(s.status != "interrupted" for s in cut)):
            yield dialog, f"not all of its queries came to their end in {cut[0].title}"


def _cut(subject: Subject, dialog: str) -> bool:
    """Whether queries of a dialog were stopped, or had not come yet when the run was interrupted."""
    one = mapping(subject.summary, "dialogs", dialog)
    if subject.status != "interrupted":
        return bool(number(one, "stopped"))
    spec, run = _spec(subject, dialog), mapping(subject.run.case, "run")
    return (number(one, "complete") or 0) < (number(spec, "iterations") or 1) * (number(run, "repeats") or 1)


def _changed(first: Subject, second: Subject) -> Iterator[str]:
    """Yield what else is different: schedulers, weights, models, versions, settings."""
    pair = (first, second)
    if first.run.name != second.run.name:
        yield f"case: {first.run.name} / {second.run.name}"
    for what in ("scheduler", "run"):
        yield from _all_changes(f"{what}.", [mapping(subject.run.case, what) for subject in pair])
    for dialog in first.names:
        if dialog in second.names:
            specs = [
                {key: value for key, value in _spec(subject, dialog).items() if key not in _WORK} for subject in pair
            ]
            yield from _all_changes(f"{dialog}: ", specs)
            yield from _all_changes(f"{dialog}: ", [_lengths(subject, dialog) for subject in pair])
    yield from _all_changes("models: ", [mapping(subject.run.case, "models") for subject in pair])
    yield from _all_changes("external ", [mapping(subject.run.env, "external") for subject in pair])
    yield from _all_changes("version of ", [mapping(subject.run.env, "versions") for subject in pair])
    if first.status != second.status:
        yield f"status: {first.status} / {second.status}"


def _lengths(subject: Subject, dialog: str) -> Mapping[str, Any]:
    """Return how many tokens a query had on average: what a model says may end sooner or later than another's."""
    one = mapping(subject.summary, "dialogs", dialog)
    jobs = number(one, "jobs")
    names = {"prompt_tokens": "prompt tokens of a query", "generated_tokens": "generated tokens of a query"}
    return {text: rounded((number(one, key) or 0) / jobs) for key, text in names.items()} if jobs else {}


def _all_changes(prefix: str, pair: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for key in dict.fromkeys((*pair[0], *pair[1])):
        if pair[0].get(key) != pair[1].get(key):
            yield f"{prefix}{_differences(pair, [key])}"


def _differences(pair: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    return "; ".join(f"{key} {_brief(pair[0].get(key))} / {_brief(pair[1].get(key))}" for key in keys)


def _brief(value: Any) -> str:
    text = "unsaid" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _spec(subject: Subject, dialog: str) -> Mapping[str, Any]:
    """Return a dialog as the case has it, but for its name."""
    specs = subject.run.case.get("dialogs", ())
    found = next((mapping(one) for one in specs if mapping(one).get("name") == dialog), {})
    return {key: value for key, value in found.items() if key != "name"}


def _named(subject: Subject) -> dict[str, Any]:
    return {
        "case": subject.run.name,
        "run": subject.run.folder.resolve().name,
        "status": subject.status,
        "simulated": subject.run.simulated,
        "repeats": len(subject.repeats),
    }
