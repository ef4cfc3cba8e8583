"""A control loop's side of a policy: chunks, guards and watchdog together, whoever runs the inference."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError
from edgewright.runtime.policy.chunks import ActionBuffer, Chunking, Request
from edgewright.runtime.policy.guards import Guard, Guarded, Watchdog
from edgewright.runtime.policy.spec import PolicySpec


class Control:
    """Executes a policy's chunks within its limits.

    At each tick of the control rate: `due` (start an inference if it gives a request, here or in another thread), then
    `step`, which gives what the robot is sent. `deliver` when an inference has ended, `failed` when it raised. All of
    them are called from the control loop's thread. `chunking` is by default the one that the policy was meant for.
    """

    def __init__(
        self,
        spec: PolicySpec,
        rate_hz: float,
        *,
        chunking: Chunking | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.buffer = ActionBuffer(chunking or Chunking.of(spec, rate_hz), clock)
        self.guard = Guard(spec.limits, spec.action_dim)
        self.watchdog = Watchdog.of(spec.limits, clock)

    def reset(self, sent: npt.ArrayLike | None = None) -> None:
        """Begin a new episode, also after a stop; `sent` [action_dim] is where the robot is, if that is known."""
        self.guard.reset(sent)
        self.buffer.reset()
        self.watchdog.feed()

    def due(self) -> Request | None:
        """Return a request when it is time for the next chunk; None after a stop."""
        return None if self.guard.stopped else self.buffer.due()

    def deliver(self, request: Request, actions: npt.NDArray[np.float32]) -> bool:
        """Take the chunk [horizon, action_dim] of a request; returns False where it is refused or comes too late."""
        if self.buffer.open is not request:
            return self.buffer.deliver(request, actions)  # counted as stale
        try:
            values = np.asarray(actions, np.float32)
            first = self.buffer.first_of(request, values) if values.ndim == 2 else None
            too_late = values.ndim == 2 and len(values) and first is None and np.isfinite(values).all()
            if not too_late and not self.guard.admit(values, first):
                self.buffer.give_up(request)
                return False
            return self.buffer.deliver(request, values)
        except (GenerationError, TypeError, ValueError):
            self.buffer.give_up(request)
            raise

    def failed(self, request: Request) -> None:
        """Say that a request's inference raised: the next one may be asked for."""
        self.buffer.give_up(request)

    def step(self) -> Guarded | None:
        """Return what the robot is sent at this tick, None where this tick had its action already."""
        self.watchdog.feed()
        planned = self.buffer.next()
        if planned.state == "early":
            return None
        request = self.buffer.open
        waited_ms = None if request is None else 1000.0 * (self._clock() - request.asked_s)
        return self.guard.step(planned.action, waited_ms=waited_ms)

    def report(self) -> dict[str, Any]:
        """Return what happened so far, as plain values."""
        return {
            "chunks": dict(self.buffer.counts),
            "guard": self.guard.report(),
            "expected_delay": self.buffer.expected_delay,
            "watchdog": {"barks": self.watchdog.barks, "expired": self.watchdog.expired},
        }
