"""How long steps waited for the accelerator, and how many steps of others went by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgewright.bench.records.part import Part
from edgewright.bench.records.statistics import Floats
from edgewright.runtime.scheduling.timeline import Timeline

_FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Waits:
    """Of each step of a dialog: the time it waited while its weight was not 0, while it was 0, and the steps of others
    that began while it waited and its weight was not 0. Times in nanoseconds."""

    queue_ns: Floats
    paused_ns: Floats
    passed: npt.NDArray[np.int64]


def waits(part: Part, dialog: str) -> Waits:
    """Return the waits of a dialog's steps."""
    mine = part.steps_of(dialog)
    ready, start = mine.ready_ns, mine.start_ns
    queue = np.zeros(len(mine), dtype=np.int64)
    passed = np.zeros(len(mine), dtype=np.int64)
    for begin, end in running(part.timelines[dialog]):
        low, high = np.maximum(ready, begin), np.minimum(start, end)
        within = high > low
        queue += np.where(within, high - low, 0)
        # None of its own begins while one waits, so all that begin are others'.
        passed += np.where(within, np.searchsorted(part.starts, high) - np.searchsorted(part.starts, low), 0)
    return Waits(queue.astype(np.float64), (start - ready - queue).astype(np.float64), passed)


def running(timeline: Timeline) -> list[tuple[int, int]]:
    """Return the spans in which a weight is not 0, the last up to the largest time there is."""
    found = []
    start: int | None = 0
    while start is not None:
        end = timeline.next_change(start)
        if timeline.at(start):
            found.append((start, _FOREVER if end is None else end))
        start = end
    return found
