"""What is scheduled: tasks with jobs made of quanta, and the records that a run leaves of them.

A quantum is one inference step, the smallest piece of work the accelerator is given. A job is a query of a dialog or a
frame of a policy; a task is a dialog or a policy with its jobs. All times are nanoseconds since the run's start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

#: What a quantum does.
Phase = Literal["prefill", "decode", "vision", "prefix", "denoise"]
Finish = Literal["complete", "failed", "stopped"]


@dataclass(slots=True)
class Quantum:
    """One inference step.

    `run` is the accelerator's work, called by whoever holds it. `tokens` are the rows it feeds (images of vision, 1 of
    a denoise step), `padded` those the device computes where a fixed shape makes them more, `held` the tokens in the
    context before it. `emits` says that a token or a chunk of actions comes of it. `device_ns` and `host_ns` are what
    it costs on a simulated device, and what the host needs after it there; None and 0 elsewhere.
    """

    phase: Phase
    tokens: int
    run: Callable[[], None]
    emits: bool = False
    held: int = 0
    padded: int | None = None
    device_ns: int | None = None
    host_ns: int = 0


@dataclass(slots=True)
class Job:
    """A query or a frame: its quanta, which may not begin before `release_ns`.

    Host work is what happens while `quanta` is asked for the next one. `facts` is called once the quanta are used up,
    or the job was stopped or failed: plain values about it, such as `prompt_tokens`, `generated_tokens`,
    `finish_reason`, `saturated`.
    """

    iteration: int
    quanta: Iterator[Quantum]
    release_ns: int = 0
    deadline_ns: int | None = None
    facts: Callable[[], Mapping[str, Any]] = dict


class Task(Protocol):
    """A dialog or a policy."""

    @property
    def name(self) -> str:
        """Unique in a run."""
        ...

    def jobs(self, now: Callable[[], int]) -> Iterator[Job]:
        """Yield jobs; the next is asked for when the one before has ended. `now` tells the run's time."""
        ...


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A quantum that ran.

    The task asked for the accelerator at `ready_ns`, had it from `start_ns` to `end_ns`, and was done with the host
    work that followed at `done_ns`: where the step `emits`, its token was known then. `weight` was in force when it
    started.
    """

    task: int
    iteration: int
    index: int
    phase: Phase
    tokens: int
    padded: int | None
    held: int
    emits: bool
    ready_ns: int
    start_ns: int
    end_ns: int
    done_ns: int
    weight: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job that ended: released, first asked for the accelerator at `ready_ns` (None where it never did), ended.

    `eligible_ns` is the first time at or after `ready_ns` when the task's weight was not 0.
    """

    task: int
    iteration: int
    release_ns: int
    ready_ns: int | None
    eligible_ns: int | None
    end_ns: int
    deadline_ns: int | None
    finish: Finish
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Observer(Protocol):
    """Is told of what happened; from the tasks' threads, one call at a time."""

    def step(self, record: StepRecord) -> None: ...

    def job(self, record: JobRecord) -> None: ...
