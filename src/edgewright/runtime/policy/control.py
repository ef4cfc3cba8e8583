"""A control loop's side of a policy: chunks, guards and watchdog together, whoever runs the inference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.policy.chunks import ActionBuffer, Chunking, Request
from edgewright.runtime.policy.guards import Guard, Guarded, Watchdog, real
from edgewright.runtime.policy.spec import Limits, PolicySpec

_MS = 1000.0
#: A loop may be silent for as many control periods, however short the deadline.
_PERIODS = 2
_COUNTS = ("action_dim", "horizon", "steps_to_run")


class Control:
    """Executes a policy's chunks within its limits.

    At each tick of the control rate: `due` (start an inference if it gives a request, here or in another thread), then
    `step`, which gives what the robot is sent. `deliver` when an inference has ended, `failed` when it raised. All of
    them are called from the control loop's thread; `stop` from any. `clock` gives seconds and goes on during an
    inference, or nothing is ever late. Raises GenerationError for limits that can't be kept.
    """

    def __init__(
        self, limits: Limits, action_dim: int, chunking: Chunking, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.buffer = ActionBuffer(chunking, clock)
        self.guard = Guard(limits, action_dim)
        self.watchdog = Watchdog.of(limits, clock, least_ms=_PERIODS * _MS / chunking.rate_hz)
        self._silent = False

    @classmethod
    def of(
        cls,
        told: PolicySpec | Mapping[str, Any],
        rate_hz: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        **chunking: Any,
    ) -> Self:
        """Make the control of a policy from its metadata (`Policy` and `PolicyClient` have it), or from its spec.

        `chunking` is what should be other than the policy was meant for: `mode`, `delay` and so on. Raises
        GenerationError where the metadata doesn't tell enough, or not that the policy takes the committed actions of
        the mode `committed`.
        """
        spec = isinstance(told, PolicySpec)
        values = told.to_json() if isinstance(told, PolicySpec) else told
        odd = [name for name in _COUNTS if type(values.get(name)) is not int]
        if odd or "limits" not in values:
            raise GenerationError(
                f"The policy's metadata doesn't tell its {(odd or ['limits'])[0]}, so nothing guards its robot: serve "
                "it with this version of edgewright, or make Control from limits that you know."
            )
        if not spec and chunking.get("mode") == "committed" and values.get("takes_committed") is not True:
            raise GenerationError(
                "The policy takes no committed actions here (its denoise stage is the whole loop, or its server has no "
                "place for them): take another mode."
            )
        try:
            limits = Limits.from_json(values["limits"])
        except BundleError as error:
            raise GenerationError(f"The policy's metadata can't be used: {error}") from None
        plan = {"horizon": values["horizon"], "steps_to_run": values["steps_to_run"], **chunking}
        return cls(limits, values["action_dim"], Chunking(rate_hz=rate_hz, **plan), clock=clock)

    def reset(self, sent: npt.ArrayLike | None = None) -> None:
        """Begin a new episode, also after a stop; `sent` [action_dim] is where the robot is, if that is known."""
        self.guard.reset(sent)
        self.buffer.reset()
        self.watchdog.feed()
        self._silent = False

    def stop(self) -> None:
        """Send the robot nothing any more until `reset`; from any thread, such as the watchdog's."""
        self.guard.stopped = True

    def due(self) -> Request | None:
        """Return a request when it is time for the next chunk; None after a stop.

        Its committed actions are as the guard would send them.
        """
        self._heard()
        request = None if self.guard.stopped else self.buffer.due()
        if request is None or request.committed is None:
            return request
        return replace(request, committed=self.guard.foreseen(request.committed))

    def deliver(self, request: Request, actions: npt.NDArray[np.float32]) -> bool:
        """Take the chunk [horizon, action_dim] of a request; returns False where it is refused or comes too late."""
        self._heard()
        if not self._waits_for(request):
            return self.buffer.deliver(request, actions)  # counted as stale
        if self.guard.stopped:
            self.buffer.give_up(request)
            return False
        values, horizon, first = real(actions), self.buffer.chunking.horizon, None
        if values is not None and values.shape == (horizon, self.guard.action_dim):
            with np.errstate(over="ignore"):
                actions = values.astype(np.float32)
            first = self.buffer.first_of(request, actions)
            if first is None and np.isfinite(actions).all():
                return self.buffer.deliver(request, actions)  # counted as useless
        if self.guard.admit(actions, first, horizon=horizon, waited_ms=self._waited_ms(request)):
            return self.buffer.deliver(request, actions)
        self.buffer.give_up(request)
        return False

    def failed(self, request: Request) -> None:
        """Say that a request's inference raised: the next one may be asked for."""
        self._heard()
        self.buffer.give_up(request)

    def step(self) -> Guarded | None:
        """Return what the robot is sent at this tick, None where this tick had its action already."""
        self._heard()
        planned = self.buffer.next()
        if planned.state == "early":
            return None
        silent, self._silent = self._silent, False
        request = self.buffer.open
        waited_ms = None if request is None else self._waited_ms(request)
        return self.guard.step(planned.action, waited_ms=waited_ms, silent=silent)

    def _heard(self) -> None:
        """Feed the watchdog, and keep in mind for the next step that it was too late."""
        self._silent = self._silent or self.watchdog.expired
        self.watchdog.feed()

    def _waits_for(self, request: Request) -> bool:
        return self.buffer.open is not None and self.buffer.open.number == request.number

    def _waited_ms(self, request: Request) -> float:
        return _MS * (self._clock() - request.asked_s)

    def report(self) -> dict[str, Any]:
        """Return what happened so far, as plain values."""
        dog = self.watchdog
        return {
            "chunks": dict(self.buffer.counts),
            "guard": self.guard.report(),
            "expected_delay": self.buffer.expected_delay,
            "watchdog": {"barks": dog.barks, "expired": dog.expired, "errors": [repr(error) for error in dog.errors]},
        }
