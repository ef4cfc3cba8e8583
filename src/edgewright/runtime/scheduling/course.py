"""A task's way through its jobs and their quanta, and what is recorded of it; the same in real and in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from edgewright.errors import EdgewrightError, first_line
from edgewright.runtime.scheduling.timeline import Timeline
from edgewright.runtime.scheduling.work import Finish, Job, JobRecord, Quantum, StepRecord, Task

OnError = Literal["isolate", "fail-fast"]
#: Why a run ended before its tasks were through: its time limit, the caller's stop, Ctrl-C, or a failing task.
Stopped = Literal["until", "timeout", "stop", "interrupt", "failure"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `end_ns` is when, `busy_ns` how long at least one task had the accelerator, `held_ns` how long it stayed idle for
    tasks whose turn it was while others waited, `lost_turns` how often one did not come in time. `failures` are the
    errors of tasks by index; `stopped` says why the run ended early, None where all tasks came to their end.
    """

    end_ns: int
    busy_ns: int
    held_ns: int
    lost_turns: int
    failures: Mapping[int, BaseException]
    stopped: Stopped | None = None


@dataclass
class Recorder:
    """An observer that keeps all records."""

    steps: list[StepRecord] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)

    def step(self, record: StepRecord) -> None:
        """Keep a step."""
        self.steps.append(record)

    def job(self, record: JobRecord) -> None:
        """Keep a job."""
        self.jobs.append(record)


class Course:
    """The jobs of one task. `begin` a job, `fetch` its quanta and say what became of each, `close` the job."""

    def __init__(self, index: int, task: Task, timeline: Timeline) -> None:
        self.index, self.task = index, task
        self.job: Job | None = None
        self.quantum: Quantum | None = None
        #: What a job's own account of itself failed with, after `close`.
        self.failure: Exception | None = None
        self._timeline = timeline
        self._jobs: Iterator[Job] | None = None
        self._place = 0
        self._first_ns: int | None = None
        self._ready_ns = 0
        self._ran: tuple[int, int, float] | None = None

    def begin(self, now: Callable[[], int]) -> Job | None:
        """Return the next job, None after the last."""
        if self._jobs is None:
            self._jobs = iter(self.task.jobs(now))
        self.job = next(self._jobs, None)
        self._place, self._first_ns, self._ran = 0, None, None
        return self.job

    def fetch(self) -> Quantum | None:
        """Return the next quantum of the job, None after the last: host work."""
        assert self.job is not None
        return next(self.job.quanta, None)

    def asks(self, quantum: Quantum, now: int) -> None:
        """Take note that the task waits for the accelerator."""
        self.quantum, self._ready_ns = quantum, now
        if self._first_ns is None:
            self._first_ns = now

    def ran(self, start_ns: int, end_ns: int, weight: float) -> None:
        """Take note that the quantum has run."""
        self._ran = (start_ns, end_ns, weight)

    def done(self, now: int) -> StepRecord | None:
        """Return the record of the quantum that ran last, whose host work is done; None where there is none."""
        quantum = self.quantum
        if self._ran is None or quantum is None or self.job is None:
            return None
        start, end, weight = self._ran
        self._ran = None
        self._place += 1
        return StepRecord(
            self.index,
            self.job.iteration,
            self._place - 1,
            quantum.phase,
            quantum.tokens,
            quantum.padded,
            quantum.held,
            quantum.emits,
            self._ready_ns,
            start,
            end,
            now,
            weight,
        )

    def close(self, now: int, finish: Finish = "complete", error: BaseException | None = None) -> JobRecord | None:
        """Return the record of the job, which has ended; None where there is none.

        An error of the job's `facts` makes it a failed one; it stands in the record and in `failure`.
        """
        job, self.job = self.job, None
        if job is None:
            return None
        if finish != "complete":
            close = getattr(job.quanta, "close", None)
            if close is not None:
                with suppress(Exception):
                    close()
        facts: Mapping[str, Any] = {}
        try:
            facts = job.facts()
        except Exception as found:
            self.failure = found
            finish, error = "failed", error or found
        ready = self._first_ns
        eligible = None if ready is None else self._timeline.eligible(ready)
        return JobRecord(
            self.index,
            job.iteration,
            job.release_ns,
            ready,
            None if eligible is None or eligible > now else eligible,
            now,
            job.deadline_ns,
            finish,
            None if error is None else told(error),
            facts,
        )


def told(error: BaseException) -> str:
    """Return an error as one line for a record."""
    line, name = first_line(error), type(error).__name__
    return line if isinstance(error, EdgewrightError) or line == name else f"{name}: {line}"
