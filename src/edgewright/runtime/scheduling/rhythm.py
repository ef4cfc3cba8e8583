"""When the jobs of a task are released, and when they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from edgewright.errors import UsageError
from edgewright.runtime.scheduling.timeline import NS_PER_MS


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """When a task's jobs are released, in milliseconds since the run's start.

    The first of `iterations` (None: without end) at `start_ms`; the others every `period_ms`, late or not, or else
    `think_ms` after the end of the one before. A job is due `deadline_ms` after its release, or at no time. Raises
    UsageError on values that can't be.
    """

    iterations: int | None = 1
    start_ms: float = 0
    think_ms: float = 0
    period_ms: float | None = None
    deadline_ms: float | None = None

    def __post_init__(self) -> None:
        if self.iterations is not None and self.iterations < 1:
            raise UsageError(f"A task needs at least one iteration, not {self.iterations}.")
        for name, value in (("start_ms", self.start_ms), ("think_ms", self.think_ms)):
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name} must be a number of milliseconds from 0 on, not {value}.")
        for name, span in (("period_ms", self.period_ms), ("deadline_ms", self.deadline_ms)):
            if span is not None and not 0 < span < float("inf"):
                raise UsageError(f"{name} must be a number of milliseconds above 0, not {span}.")
        if self.period_ms is not None and self.think_ms:
            raise UsageError("Jobs come every period_ms or think_ms after the one before: give one of them.")

    def releases(self, now: Callable[[], int]) -> Iterator[tuple[int, int | None]]:
        """Yield release and deadline of each job in nanoseconds; ask for the next when the one before has ended."""
        release = round(self.start_ms * NS_PER_MS)
        for iteration in count() if self.iterations is None else range(self.iterations):
            if iteration and self.period_ms is not None:
                release = round((self.start_ms + iteration * self.period_ms) * NS_PER_MS)
            elif iteration:
                release = now() + round(self.think_ms * NS_PER_MS)
            yield release, None if self.deadline_ms is None else release + round(self.deadline_ms * NS_PER_MS)
