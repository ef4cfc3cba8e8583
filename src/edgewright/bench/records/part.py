"""The rows of one part and repeat of a run, grouped by dialog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from edgewright.bench.records.columns import Counts, StepColumns
from edgewright.bench.records.rows import JobRow, StepRow
from edgewright.runtime.scheduling.timeline import Timeline


@dataclass(frozen=True)
class Part:
    """The rows of one part and repeat; `timelines` are the weights by dialog, in the dialogs' order.

    Rows of other dialogs must not be among them.
    """

    steps: Sequence[StepRow]
    jobs: Sequence[JobRow]
    timelines: Mapping[str, Timeline]
    _jobs: dict[str, list[JobRow]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_jobs", {name: [] for name in self.timelines})
        for job in self.jobs:
            self._jobs[job.dialog].append(job)

    @property
    def dialogs(self) -> tuple[str, ...]:
        """The dialogs' names."""
        return tuple(self.timelines)

    @cached_property
    def columns(self) -> StepColumns:
        """All steps."""
        return StepColumns.of(self.steps)

    @cached_property
    def owners(self) -> Counts:
        """The number of the dialog of each step."""
        number = {name: place for place, name in enumerate(self.timelines)}
        return np.fromiter((number[step.dialog] for step in self.steps), np.int64, len(self.steps))

    @cached_property
    def _steps(self) -> dict[str, StepColumns]:
        found = {}
        for place, name in enumerate(self.timelines):
            mine = np.flatnonzero(self.owners == place)
            jobs = self.columns.iteration[mine]
            found[name] = self.columns.take(mine[np.argsort(jobs, kind="stable")])
        return found

    def steps_of(self, dialog: str) -> StepColumns:
        """The steps of a dialog, job after job."""
        return self._steps[dialog]

    def jobs_of(self, dialog: str) -> list[JobRow]:
        """The jobs of a dialog that ended."""
        return self._jobs[dialog]

    @cached_property
    def starts(self) -> Counts:
        """When steps began, in ascending order."""
        return np.sort(self.columns.start_ns)

    @cached_property
    def end_ns(self) -> int:
        """When the last job or step was done."""
        return max((int(self.columns.done_ns.max(initial=0)), *(job.end_ns for job in self.jobs)))

    @cached_property
    def busy_ns(self) -> int:
        """How long at least one step was on the accelerator."""
        order = np.argsort(self.columns.start_ns, kind="stable")
        start, end = self.columns.start_ns[order], self.columns.end_ns[order]
        until = np.concatenate([[0], np.maximum.accumulate(end)])[:-1]
        return int(np.maximum(0, end - np.maximum(start, until)).sum())

    def spans(self, dialog: str) -> list[tuple[int, int]]:
        """When a dialog had a job: from its first asking to its end; one without a row is known by its steps."""
        mine = self._steps[dialog]
        found: dict[int, tuple[int, int]] = {}
        if len(mine):
            first = mine.job_bounds
            begun, ended = np.minimum.reduceat(mine.ready_ns, first), np.maximum.reduceat(mine.done_ns, first)
            jobs = mine.iteration[first].tolist()
            found = dict(zip(jobs, zip(begun.tolist(), ended.tolist(), strict=True), strict=True))
        for job in self._jobs[dialog]:
            if job.ready_ns is not None:
                found[job.iteration] = job.ready_ns, job.end_ns
        return sorted(found.values())
