"""What an engine says of the time it took: runs of a stage, and the layers that each of them went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """A layer that ran once, as the engine spells it.

    `start_us` counts from the begin of the run, `us` is the layer's own time without that of layers inside of it, and
    `whole_us` is the time with them; all are microseconds. `place` is the index of its node in the engine's graph, -1
    where the engine doesn't say. `inside` is the index of the event that it is a part of (a loop), -1 for none.
    `originals` are the graph's nodes that the engine says it is made of.
    """

    name: str
    kind: str
    start_us: float
    us: float
    whole_us: float
    place: int = -1
    inside: int = -1
    originals: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineRun:
    """One call of an engine: the microseconds it took by its own clock, and its layers in the order they began.

    `shape` tells runs of different sizes apart, where the file knows them, and `rows` is how many vectors the first
    layer with weights gave.
    """

    us: float
    events: tuple[Event, ...]
    shape: tuple[str, ...] = ()
    rows: int | None = None


@dataclass(frozen=True)
class Averages:
    """A layer of which only the mean over all runs is known, in milliseconds, and the median where it is."""

    name: str
    kind: str
    mean_ms: float
    median_ms: float | None
    originals: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineProfile:
    """What a file of an engine holds: runs one by one, or averages over `count` runs.

    `latencies_ms` are those of whole runs without the profile's cost, where there is a file of them. `notes` are what a
    reader must know of the numbers.
    """

    engine: str
    runs: tuple[EngineRun, ...] = ()
    averages: tuple[Averages, ...] = ()
    count: int = 0
    latencies_ms: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


def own_times(spans: Sequence[tuple[float, float]]) -> tuple[list[float], list[int]]:
    """Return for spans (start, length), sorted by start and longest first, each one's length without the spans inside.

    Beside it is the index of the span that each one is inside of, -1 for none. A span that ends after the one it begins
    in counts as inside of it up to that one's end.
    """
    own, inside = [length for _, length in spans], []
    open_: list[tuple[int, float]] = []
    for index, (start, length) in enumerate(spans):
        while open_ and open_[-1][1] <= start:
            open_.pop()
        inside.append(open_[-1][0] if open_ else -1)
        if open_:
            parent, end = open_[-1]
            own[parent] = max(0.0, own[parent] - min(length, end - start))
        open_.append((index, start + length))
    return own, inside
