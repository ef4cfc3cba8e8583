"""A task as the scheduler sees it: how it takes part, and where it is with its next quantum."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from edgewright.runtime.scheduling.timeline import Timeline
from edgewright.runtime.scheduling.work import Phase


@dataclass(frozen=True, kw_only=True)
class Client:
    """How a task takes part: its weights over time, and its priority (a larger one goes first)."""

    name: str = ""
    timeline: Timeline = field(default_factory=lambda: Timeline.constant(1))
    priority: int = 100


class State(Enum):
    """Where a client is. `RETURNING` does host work between two quanta, `ENDED` never comes again."""

    ABSENT = "absent"
    RETURNING = "returning"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Seat:
    """A client's place at the scheduler; the scheduler changes it, and disciplines read it.

    `present` says that it takes part in the sharing now: not absent, not paused, its turn not lost. `phase` and
    `deadline_ns` are those of the quantum it waits for, or waited for last. `finished_ns` is when it last gave the
    accelerator back. `slow` says that it did not come when the accelerator was held for it; it is held for again after
    `skips` more turns, `penalty` of them at the next time.
    """

    index: int
    client: Client
    weight: float
    state: State = State.ABSENT
    present: bool = False
    phase: Phase = "decode"
    deadline_ns: int | None = None
    ready_ns: int = 0
    finished_ns: int = 0
    slow: bool = False
    skips: int = 0
    penalty: int = 1
