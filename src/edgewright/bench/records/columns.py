"""The steps of a part as columns, because a run may have hundreds of thousands of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.bench.records.rows import StepRow

Counts = npt.NDArray[np.int64]
_COUNTS = ("iteration", "tokens", "held", "ready_ns", "start_ns", "end_ns", "done_ns")


@dataclass(frozen=True)
class StepColumns:
    """Steps in the order of their rows; `padded` is `tokens` where nothing was padded, `phase` a name."""

    phase: npt.NDArray[np.str_]
    emits: npt.NDArray[np.bool_]
    padded: Counts
    iteration: Counts
    tokens: Counts
    held: Counts
    ready_ns: Counts
    start_ns: Counts
    end_ns: Counts
    done_ns: Counts

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> StepColumns:
        """Take the columns of rows."""

        def column(value: Callable[[StepRow], Any], kind: type[np.generic] = np.int64) -> npt.NDArray[Any]:
            return np.fromiter(map(value, rows), kind, len(rows))

        return cls(
            phase=np.array([row.phase for row in rows], np.str_),
            emits=column(attrgetter("emits"), np.bool_),
            padded=column(lambda row: row.tokens if row.padded is None else row.padded),
            **{name: column(attrgetter(name)) for name in _COUNTS},
        )

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, chosen: npt.NDArray[Any]) -> StepColumns:
        """Return the steps that are chosen, by places or by a mask."""
        return StepColumns(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})

    @property
    def job_bounds(self) -> Counts:
        """Where the jobs begin in steps that stand in the order of their iterations."""
        return np.flatnonzero(np.diff(self.iteration, prepend=-1))
