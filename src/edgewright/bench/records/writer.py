"""Writes a run folder's rows as they come: whole lines, appended, so that what a crash leaves can be read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from edgewright.bench.records.folder import EVENTS, JOBS, STEPS
from edgewright.bench.records.rows import JobRow, line, step_line, step_prefix
from edgewright.files import os_errors
from edgewright.runtime.scheduling.work import JobRecord, StepRecord

#: Steps that wait for their write at most, and for how long: what a killed process loses.
_BUFFERED, _BUFFERED_NS = 64, 250_000_000


class LineFile:
    """A file that lines are appended to. Raises OutputError where it can't be written."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        with os_errors(self._name):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, text: str) -> None:
        """Hand text to the operating system: it survives this process from then on."""
        left = memoryview(text.encode())
        with os_errors(self._name):
            while left:
                left = left[os.write(self._descriptor, left) :]

    def close(self) -> None:
        """Close the file; what is written later fails, and never goes into another file of the same number."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PartRecorder:
    """Observes a part of a run: writes its steps and jobs; dialogs have the names of `dialogs` by their number.

    Steps are spelled at once and written together, because this is done while the dialogs run.
    """

    def __init__(self, steps: LineFile, jobs: LineFile, part: str, repeat: int, dialogs: Sequence[str]) -> None:
        self._steps, self._jobs, self._part, self._repeat = steps, jobs, part, repeat
        self._dialogs, self._spelled = dialogs, [json.dumps(name) for name in dialogs]
        self._prefix = step_prefix(part, repeat)
        self._waiting: list[str] = []
        self._written_ns = 0

    def step(self, record: StepRecord) -> None:
        """Record a step."""
        self._waiting.append(step_line(self._prefix, self._spelled[record.task], record))
        if len(self._waiting) >= _BUFFERED or record.done_ns - self._written_ns > _BUFFERED_NS:
            self.flush()
            self._written_ns = record.done_ns

    def job(self, record: JobRecord) -> None:
        """Record a job that ended, its steps before it."""
        self.flush()
        row = JobRow.of(record, self._part, self._repeat, self._dialogs[record.task])
        self._jobs.write(line(row.to_json()))

    def flush(self) -> None:
        """Write the steps that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._steps.write("".join(waiting))


class RunWriter:
    """The row files of a run folder, open for appending."""

    def __init__(self, folder: Path) -> None:
        self._steps, self._jobs, self._events = (LineFile(folder / name) for name in (STEPS, JOBS, EVENTS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._steps, self._jobs, self._events):
            file.close()

    def part(self, part: str, repeat: int, dialogs: Sequence[str]) -> PartRecorder:
        """Return the observer of a part; flush it at the part's end."""
        return PartRecorder(self._steps, self._jobs, part, repeat, dialogs)

    def event(self, kind: str, **fields: Any) -> None:
        """Record what happened to the run as a whole."""
        self._events.write(line({"event": kind, **fields}))
