"""Who was to have how much of the accelerator, and who had it: by segments in which no weight changes.

A dialog is *active* from when a job of it first asked for the accelerator until that job ended, while its weight is not
0. Each step of cost c that started when the dialogs A were active entitles each i of A to c * w_i / (sum of A's
weights). What a dialog was entitled to in a segment, over the cost of all steps of the segment, is its requested share;
the cost of its own steps over the same is its achieved one. Where all are active all the time, the requested share is
w_i / (sum of all weights), which stands beside it as the nominal share. The cost of a step is 1, or its time on the
accelerator. A step belongs to the segment it started in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgewright.bench.records.columns import Counts
from edgewright.bench.records.part import Part
from edgewright.bench.records.statistics import Floats
from edgewright.runtime.scheduling.timeline import segments

Unit = Literal["quanta", "time"]
UNITS: tuple[Unit, ...] = ("quanta", "time")
_FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Service:
    """A segment's service, by unit: arrays with a number for each dialog.

    `entitled` and `served` are in quanta or nanoseconds; their sums are equal where somebody was active at each step.
    """

    start_ns: int
    end_ns: int | None
    weights: tuple[float, ...]
    quanta: int
    entitled: Mapping[Unit, Floats]
    served: Mapping[Unit, Floats]

    def requested(self, unit: Unit) -> Floats:
        """Return the requested share of each dialog; zeros where nothing ran."""
        return _shares(self.entitled[unit])

    def achieved(self, unit: Unit) -> Floats:
        """Return the achieved share of each dialog; zeros where nothing ran."""
        return _shares(self.served[unit])

    @property
    def nominal(self) -> Floats:
        """The shares that the weights alone ask for."""
        return _shares(np.array(self.weights, dtype=np.float64))

    def plus(self, other: Service) -> Service:
        """Return the service of this segment in two repeats together."""
        return Service(
            self.start_ns,
            self.end_ns,
            self.weights,
            self.quanta + other.quanta,
            {unit: self.entitled[unit] + other.entitled[unit] for unit in UNITS},
            {unit: self.served[unit] + other.served[unit] for unit in UNITS},
        )


def service(part: Part) -> list[Service]:
    """Return the service of each segment of a part."""
    names, owners, starts = part.dialogs, part.owners, part.columns.start_ns
    costs = {"quanta": np.ones(len(starts)), "time": (part.columns.end_ns - starts).astype(np.float64)}
    active = np.array([_active(starts, part.spans(name)) for name in names], dtype=bool).reshape(len(names), -1)
    found = []
    for one in segments(list(part.timelines.values())):
        inside = (starts >= one.start_ns) & (starts < (_FOREVER if one.end_ns is None else one.end_ns))
        weights = np.array(one.weights, dtype=np.float64)[:, None] * active[:, inside]
        total = weights.sum(axis=0)
        parts = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        mine = owners[inside]
        found.append(
            Service(
                one.start_ns,
                one.end_ns,
                one.weights,
                int(inside.sum()),
                {unit: parts @ costs[unit][inside] for unit in UNITS},
                {unit: np.bincount(mine, costs[unit][inside], len(names)).astype(np.float64) for unit in UNITS},
            )
        )
    return found


def _active(starts: Counts, spans: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Whether one of the spans holds each of the times."""
    begun, ended = (np.sort(np.array([span[end] for span in spans], dtype=np.int64)) for end in (0, 1))
    inside = np.searchsorted(begun, starts, side="right") > np.searchsorted(ended, starts, side="right")
    return np.asarray(inside, dtype=bool)


def _shares(values: Floats) -> Floats:
    total = values.sum()
    return values / total if total else np.zeros_like(values)
