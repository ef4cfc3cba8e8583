"""The steps of a part of a run as columns, and what the accelerator and the dialogs did by them, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgewright.bench.records.rows import StepRow

Floats = npt.NDArray[np.float64]
#: Starts and ends, `[n, 2]`.
Spans = npt.NDArray[np.float64]
NO_SPANS: Spans = np.zeros((0, 2))


@dataclass(frozen=True)
class Columns:
    """Steps in the order they began: number of the dialog, name of the phase, whether a token came of it, and times."""

    dialog: npt.NDArray[np.int64]
    phase: npt.NDArray[np.str_]
    emits: npt.NDArray[np.bool_]
    ready: Floats
    start: Floats
    end: Floats
    done: Floats

    @classmethod
    def of(cls, rows: Sequence[StepRow], names: Sequence[str]) -> Columns:
        """Take the steps of the dialogs in `names`."""
        number = {name: index for index, name in enumerate(names)}
        rows = sorted((row for row in rows if row.dialog in number), key=lambda row: row.start_ns)
        times = np.array(
            [(row.ready_ns, row.start_ns, row.end_ns, row.done_ns) for row in rows], np.float64
        ).reshape(-1, 4) / 1e6  # fmt: skip
        return cls(
            np.array([number[row.dialog] for row in rows], np.int64),
            np.array([row.phase for row in rows], np.str_),
            np.array([row.emits for row in rows], np.bool_),
            *(times[:, column] for column in range(4)),
        )

    def __len__(self) -> int:
        return len(self.dialog)

    def take(self, chosen: npt.NDArray[np.bool_]) -> Columns:
        """Return the steps that are chosen."""
        return Columns(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @property
    def busy(self) -> Spans:
        """When the accelerator ran a step, of whomever."""
        return union(np.stack([self.start, self.end], axis=1))


def union(spans: Spans) -> Spans:
    """Return spans in order with those that touch or overlap made one."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return NO_SPANS
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.concatenate([[True], spans[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([spans[first, 0], reach[last]], axis=1)


def intersection(one: Spans, other: Spans) -> Spans:
    """Return where both of two unions are."""
    if not len(one) or not len(other):
        return NO_SPANS
    times = np.concatenate([one[:, 0], one[:, 1], other[:, 0], other[:, 1]])
    steps = np.repeat([1, -1, 1, -1], [len(one), len(one), len(other), len(other)])
    order = np.lexsort((steps, times))  # at one time ends come first: spans that only touch share nothing
    depth = np.cumsum(steps[order])[:-1]
    times = times[order]
    return union(np.stack([times[:-1], times[1:]], axis=1)[depth == 2])


def gaps(spans: Spans, start: float, end: float) -> Spans:
    """Return what a union leaves free of [start, end]."""
    inside = np.clip(spans, start, end)
    found = np.stack([np.concatenate([[start], inside[:, 1]]), np.concatenate([inside[:, 0], [end]])], axis=1)
    return found[found[:, 1] > found[:, 0]]


def total(spans: Spans) -> float:
    """Return how long spans are together."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def share_of_bins(spans: Spans, edges: Floats) -> Floats:
    """Return which part of each bin a union covers; `edges` are of bins of one width."""
    if not len(spans):
        return np.zeros(len(edges) - 1)
    covered = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])
    times = spans.ravel()
    until = np.interp(edges, times, np.stack([covered[:-1], covered[1:]], axis=1).ravel())
    shares: Floats = np.diff(until) / (edges[1] - edges[0])
    return np.clip(shares, 0.0, 1.0)


def waiting(steps: Columns, paused: Mapping[int, Spans]) -> Spans:
    """Return when a dialog waited for the accelerator outside of its spans of weight 0, which are in `paused`."""
    found = []
    for dialog in np.unique(steps.dialog):
        own = steps.take(steps.dialog == dialog)
        waits = union(np.stack([own.ready, own.start], axis=1))
        pauses = paused.get(int(dialog), NO_SPANS)
        if len(waits) and len(pauses):
            allowed = gaps(union(pauses), float(waits[0, 0]), float(waits[-1, 1]))
            waits = intersection(waits, allowed)
        found.append(waits)
    return union(np.concatenate(found)) if found else NO_SPANS


def token_times(steps: Columns, dialog: int) -> Floats:
    """Return when each token (chunk of actions) of a dialog was known, in order."""
    own = steps.take((steps.dialog == dialog) & steps.emits)
    return np.sort(own.done)
