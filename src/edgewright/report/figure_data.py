"""What each figure of a run shows, as plain arrays. Times are milliseconds since the run's start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgewright.bench.records.rows import RUN
from edgewright.report.columns import (
    NO_SPANS,
    Columns,
    Floats,
    Spans,
    gaps,
    intersection,
    share_of_bins,
    token_times,
    total,
    waiting,
)
from edgewright.report.subject import Subject
from edgewright.report.values import at, number

#: Bars, columns and points that are drawn at most; what is more is merged, and the figure says so.
MOST_BARS, MOST_COLUMNS, MOST_POINTS = 1200, 240, 600
#: Of a run with no more steps than this each can be seen anyway.
LEAST_STEPS = 120


@dataclass(frozen=True)
class Lanes:
    """Who had the accelerator from `start` to `end`.

    `spans[dialog, phase]` are its steps, those that touch made one. With too many spans `columns` holds which part of
    each of as many equal columns they cover, and under dialog -1 the same of "stalled" and "idle". `stalled`: nobody
    ran though somebody who was not paused waited; `idle`: nobody ran, and nobody waited.
    """

    start: float
    end: float
    phases: tuple[str, ...]
    spans: Mapping[tuple[int, str], Spans]
    columns: Mapping[tuple[int, str], Floats] | None
    stalled: Spans
    idle: Spans
    busy: float = field(default=0.0)

    @property
    def length(self) -> float:
        """How long the drawn time is."""
        return self.end - self.start


@dataclass(frozen=True)
class Series:
    """Points of a dialog's line; `count` is how many values they stand for."""

    dialog: int
    x: Floats
    y: Floats
    count: int


@dataclass(frozen=True)
class Share:
    """Shares of a segment, a number a dialog: what was requested, and what was achieved of the steps and of the time.

    `end` is None where the segment goes on; `requested` holds None where the discipline promises no shares, and counts
    what `unit` says ("quanta", "time", or None).
    """

    start: float
    end: float | None
    unit: str | None
    weights: tuple[float | None, ...]
    requested: tuple[float | None, ...]
    quanta: tuple[float | None, ...]
    time: tuple[float | None, ...]

    @property
    def most(self) -> float:
        """The largest share, requested or achieved."""
        known = (value for part in (self.requested, self.quanta, self.time) for value in part if value is not None)
        return max(known, default=0.0)


@dataclass(frozen=True)
class Query:
    """When a dialog had a query."""

    dialog: int
    start: float
    end: float
    complete: bool


@dataclass(frozen=True)
class Spread:
    """Values of a dialog: how many, the middle, and the ends."""

    dialog: int
    count: int
    low: float
    middle: float
    high: float
    most: float


def lanes(
    steps: Columns, paused: Mapping[int, Spans], window: tuple[float, float] | None = None, part: float = 1.0
) -> Lanes | None:
    """Return who had the accelerator, in a window or from 0 to the last step's end. None without steps.

    `part` is how much of the most bars and columns is to be used, for a narrow figure.
    """
    if not len(steps):
        return None
    start, end = (0.0, float(steps.end.max())) if window is None else window
    seen = steps.take((steps.end > start) & (steps.start < end))
    if end <= start or not len(seen):
        return None
    spans = {}
    for dialog in np.unique(seen.dialog):
        for phase in np.unique(seen.phase[seen.dialog == dialog]):
            own = seen.take((seen.dialog == dialog) & (seen.phase == phase))
            spans[int(dialog), str(phase)] = own.busy
    busy = seen.busy
    free = gaps(busy, start, end)
    stalled = intersection(free, waiting(seen, paused))
    idle = NO_SPANS if not len(free) else _without(free, stalled)
    columns = None
    if sum(map(len, (*spans.values(), stalled, idle))) > MOST_BARS * part:
        edges = np.linspace(start, end, int(MOST_COLUMNS * part) + 1)
        all_spans = {**spans, (-1, "stalled"): stalled, (-1, "idle"): idle}
        columns = {key: share_of_bins(own, edges) for key, own in all_spans.items()}
    names, places = np.unique(seen.phase, return_index=True)
    phases = tuple(str(name) for name in names[np.argsort(places)])
    return Lanes(start, end, phases, spans, columns, stalled, idle, total(np.clip(busy, start, end)))


def closeup(steps: Columns, changes: Sequence[float], count: int) -> tuple[float, float] | None:
    """Return a window of about `count` steps: around the first change of weights, or where most dialogs run.

    None where the run has no more than LEAST_STEPS.
    """
    if len(steps) <= max(LEAST_STEPS, count):
        return None
    after = [int(np.searchsorted(steps.start, change)) for change in changes]
    inner = [place for place in after if count // 2 < place < len(steps) - count // 2]
    if inner:
        first = inner[0] - count // 2
    else:
        places = np.linspace(0, len(steps) - count, min(len(steps) - count, 200)).astype(int)
        different = [len(np.unique(steps.dialog[place : place + count])) for place in places]
        first = int(places[int(np.argmax(different))])
    return float(steps.start[first]), float(steps.end[first : first + count].max())


def tokens(steps: Columns, names: Sequence[str]) -> list[Series]:
    """Return how many tokens (chunks of actions) each dialog has had by when."""
    found = []
    for dialog, _ in enumerate(names):
        times = token_times(steps, dialog)
        if len(times):
            kept = _thinned(len(times))
            found.append(Series(dialog, times[kept], (kept + 1).astype(np.float64), len(times)))
    return found


def token_gap_curves(subject: Subject) -> list[Series]:
    """Return the distribution of the times between tokens: x milliseconds, y the part of them that is at most x."""
    found = []
    for dialog, one in enumerate(subject.together):
        values = np.sort(np.array(one.itl_ms, np.float64))
        if len(values):
            kept = _thinned(len(values))
            parts: Floats = (kept + 1).astype(np.float64) / len(values)
            found.append(Series(dialog, values[kept], parts, len(values)))
    return found


def shares(summary: Mapping[str, Any], names: Sequence[str]) -> list[Share]:
    """Return requested and achieved shares of each segment in which something ran, as the summary has them."""
    found = []
    for one in at(summary, "segments", kind=list) or []:
        start = number(one, "start_ms")
        quanta, time = (tuple(number(one, "achieved", name, unit) for name in names) for unit in ("quanta", "time"))
        if start is not None and any((*quanta, *time)):
            weights, requested = (tuple(number(one, key, name) for name in names) for key in ("weights", "requested"))
            unit = at(one, "unit", kind=str)
            found.append(Share(start, number(one, "end_ms"), unit, weights, requested, quanta, time))
    return found


def query_spans(subject: Subject) -> list[Query]:
    """Return the queries of the first repeat that has any, from release to end."""
    number_of = {name: index for index, name in enumerate(subject.names)}
    jobs = [job for job in subject.run.jobs if job.part == RUN and job.dialog in number_of]
    first = min((job.repeat for job in jobs), default=0)
    return [
        Query(number_of[job.dialog], job.release_ns / 1e6, job.end_ns / 1e6, job.finish == "complete")
        for job in jobs
        if job.repeat == first and job.end_ns >= job.release_ns
    ]


def first_tokens(subject: Subject) -> list[tuple[Spread, Spread | None]]:
    """Return each dialog's times to the first token, at once with the others and alone, from when it was not paused."""
    found = []
    for dialog, (together, alone) in enumerate(zip(subject.together, subject.alone, strict=True)):
        if together.ttft_eligible_ms:
            solo = [] if alone is None else alone.ttft_eligible_ms
            found.append((spread(dialog, together.ttft_eligible_ms), spread(dialog, solo) if solo else None))
    return found


def queues(subject: Subject) -> list[Spread]:
    """Return how long each dialog's steps waited for the accelerator while it was not paused."""
    return [spread(dialog, one.queue_ms) for dialog, one in enumerate(subject.together) if one.queue_ms]


def spread(dialog: int, values: Sequence[float]) -> Spread:
    """Return the 5th, 50th and 95th percentile of values, and the largest."""
    low, middle, high = (float(one) for one in np.percentile(values, (5, 50, 95)))
    return Spread(dialog, len(values), low, middle, high, float(max(values)))


def _without(spans: Spans, others: Spans) -> Spans:
    """Return what a union leaves of another."""
    start, end = float(spans[0, 0]), float(spans[-1, 1])
    return intersection(spans, gaps(others, start, end))


def _thinned(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return up to MOST_POINTS places of `count` values, the first and the last among them."""
    places = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round())
    return places.astype(np.int64)
