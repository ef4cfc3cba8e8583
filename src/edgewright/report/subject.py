"""A run folder's content made ready for figures and pages: columns of steps, colors, segments, what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bench.records.metrics import Samples
from edgewright.bench.records.reader import Run, read_run
from edgewright.bench.records.rows import RUN, WARMUP
from edgewright.bench.records.summary import Summary
from edgewright.report.columns import NO_SPANS, Columns, Spans, union
from edgewright.runtime.scheduling.timeline import Segment, segments

#: The end of what has none, in milliseconds.
_EVER = 1e15


@dataclass(frozen=True)
class Subject:
    """A run to be shown; `summary` has its figures, `notes` say what is not there."""

    run: Run
    summary: Mapping[str, Any]
    notes: tuple[str, ...]
    measured: Summary

    @classmethod
    def read(cls, folder: str | Path) -> Subject:
        """Read a run folder; raises UsageError where it is none."""
        return cls.of(read_run(folder))

    @classmethod
    def of(cls, run: Run) -> Subject:
        """Make a run ready. Its summary is made of its records; only a run without any is believed what it says."""
        notes = list(run.notes)
        written, measured = run.summary, Summary(run)
        if not run.steps and written is not None and isinstance(written.get("dialogs"), Mapping):
            notes.append("no step was recorded: the figures are those that the run's own summary says")
            return cls(run, written, tuple(notes), measured)
        strange = sorted({row.dialog for row in run.steps} - set(run.dialogs))
        if strange:
            notes.append(f"steps of dialogs that the case does not have are left out: {', '.join(strange[:5])}")
        if not any(row.part == RUN for row in run.steps):
            notes.append("no step of the concurrent run was recorded")
        return cls(run, measured.to_json(), tuple(notes), measured)

    @property
    def names(self) -> tuple[str, ...]:
        """The dialogs' names in their order, which is that of their colors."""
        return self.run.dialogs

    @property
    def title(self) -> str:
        """The case and the run."""
        return f"{self.run.name} / {self.run.folder.resolve().name}"

    @property
    def status(self) -> str:
        """How the run ended, "unknown" where nothing says so."""
        return str(self.summary.get("status", "unknown"))

    @property
    def repeats(self) -> list[int]:
        """The repeats of the concurrent run that left something."""
        return self.run.repeats

    @cached_property
    def shown(self) -> Columns:
        """The steps of the repeat that is drawn, the first that has any."""
        first = min((row.repeat for row in self.run.steps if row.part == RUN), default=0)
        return Columns.of([row for row in self.run.steps if row.part == RUN and row.repeat == first], self.names)

    @property
    def together(self) -> list[Samples]:
        """What was measured of each dialog while all ran, the repeats pooled."""
        return [self.measured.together[name] for name in self.names]

    @property
    def alone(self) -> list[Samples | None]:
        """What was measured of each dialog while it ran alone, None where it did not."""
        return [self.measured.alone[name] for name in self.names]

    @property
    def warmed(self) -> bool:
        """Whether a warm-up went before what was measured."""
        return any(part == WARMUP for part, _ in self.run.parts)

    @cached_property
    def segments(self) -> list[Segment]:
        """The times in which no weight changes, as the case has them."""
        return segments([self.run.timelines[name] for name in self.names]) if self.names else []

    @cached_property
    def paused(self) -> dict[int, Spans]:
        """When each dialog's weight was 0, in milliseconds."""
        found = {}
        for index, _ in enumerate(self.names):
            spans = [
                (one.start_ns / 1e6, _EVER if one.end_ns is None else one.end_ns / 1e6)
                for one in self.segments
                if one.weights[index] == 0
            ]
            found[index] = union(np.array(spans, np.float64)) if spans else NO_SPANS
        return found
