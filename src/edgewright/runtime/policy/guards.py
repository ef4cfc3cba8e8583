"""What stands between a policy and a robot: no action leaves that isn't finite and within the bundle's limits.

Two checks, and what each does:

- of a chunk, before it is executed (`admit`): values that are not finite, another shape, a jump from the action before
  it. A chunk that fails is refused as a whole.
- of every action (`step`): not finite, missing, late (the inference takes longer than the deadline): the declared
  fallback takes over. Out of range: clipped. A faster change than the rate: slowed down.

The fallbacks: `hold` sends the last action again until a new chunk is admitted; `last-chunk` goes on with the chunk
there is and holds when that ends; `stop` sends nothing any more until `reset`. Holding means the same numbers again:
with positions the robot stands, with velocities it does not, so those want `stop`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError
from edgewright.runtime.policy.spec import Limits

Action = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

#: How many interventions the report tells one by one.
_REMEMBERED = 64


@dataclass(frozen=True)
class Intervention:
    """What a guard did and why.

    `reason` is not-finite, shape, jump, deadline, missing, range or rate; `done` is clipped, slowed, refused, or the
    fallback. `dimensions` are the action's numbers concerned, where it is not all of them; `step` counts the actions
    that were asked for.
    """

    reason: str
    done: str
    step: int
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Guarded:
    """What the robot is sent: float32 [action_dim], or None for nothing; and what was done to it."""

    action: Action | None
    interventions: tuple[Intervention, ...] = ()


class Guard:
    """Checks the actions of one robot against a policy's limits.

    `counts` has the number of interventions by reason. Raises GenerationError when the limits are for another number of
    dimensions or can't be kept. Not for several threads at once.
    """

    def __init__(self, limits: Limits, action_dim: int) -> None:
        self.limits, self.action_dim = limits, action_dim
        self.counts: Counter[str] = Counter()
        self._recent: deque[Intervention] = deque(maxlen=_REMEMBERED)
        self._low = _inward(self._numbers("minimum", -np.inf), np.float32(np.inf))
        self._high = _inward(self._numbers("maximum", np.inf), np.float32(-np.inf))
        self._rate, self._jump = self._numbers("rate", np.inf), self._numbers("jump", np.inf)
        if (self._low > self._high).any():
            raise GenerationError("The limits leave no action: a minimum is over its maximum; build the bundle anew.")
        self._steps = 0
        self.reset()

    def _numbers(self, name: str, none: float) -> Numbers:
        values = getattr(self.limits, name)
        if values is None:
            return np.full(self.action_dim, none)
        array = np.asarray(values, np.float64)
        if array.shape != (self.action_dim,) or not np.isfinite(array).all():
            raise GenerationError(
                f"The limits' {name} must be {self.action_dim} finite numbers and has {array.size} values: build the "
                "bundle with others."
            )
        return array

    def reset(self, sent: npt.ArrayLike | None = None) -> None:
        """Begin anew, also after a stop; `sent` is where the robot is, as an action, so that the first one is slow too.

        Raises GenerationError when `sent` is no action.
        """
        self._last: Action | None = None
        self.stopped, self._holding = False, False
        if sent is not None:
            action, reason = self._read(sent)
            if action is None:
                raise GenerationError(f"The robot can't be at an action that is wrong ({reason}): give finite numbers.")
            self._last = np.clip(action, self._low, self._high)

    def admit(self, chunk: npt.ArrayLike, first: npt.ArrayLike | None = None) -> bool:
        """Tell whether a chunk [n, action_dim] may be executed, and act on the fallback where it may not.

        `first` is the action of it that comes next, by default its first; the jump is measured from the last action
        that was sent.
        """
        reason, dimensions = self._refusal(chunk, first)
        if reason is None:
            self._holding = False
            return True
        self._intervene(reason, "refused", dimensions)
        if self.limits.fallback == "stop":
            self.stopped = True
        self._holding = self.limits.fallback == "hold"
        return False

    def _refusal(self, chunk: npt.ArrayLike, first: npt.ArrayLike | None) -> tuple[str | None, tuple[int, ...]]:
        try:
            values = np.asarray(chunk, np.float64)
        except (TypeError, ValueError):
            return "shape", ()
        if values.ndim != 2 or values.shape[1] != self.action_dim or not len(values):
            return "shape", ()
        with np.errstate(over="ignore"):
            finite = np.isfinite(values.astype(np.float32)).all(axis=0)
        if not finite.all():
            return "not-finite", _where(~finite)
        begin, reason = self._read(values[0] if first is None else first)
        if begin is None:
            return reason, ()
        if self._last is not None:
            far = np.abs(begin.astype(np.float64) - self._last) > self._jump
            if far.any():
                return "jump", _where(far)
        return None, ()

    def step(self, action: npt.ArrayLike | None, *, waited_ms: float | None = None) -> Guarded:
        """Return what the robot is sent at this step.

        `action` [action_dim] is what was planned, None where nothing was; `waited_ms` is how long the inference under
        way has taken, None where there is none.
        """
        done: list[Intervention] = []
        self._steps += 1
        if self.stopped:
            return Guarded(None)
        late = waited_ms is not None and self.limits.deadline_ms is not None
        if late and not waited_ms <= self.limits.deadline_ms:  # type: ignore[operator]
            done.append(self._intervene("deadline", self.limits.fallback))
            if self.limits.fallback != "last-chunk":
                return self._fall_back(done)
        if self._holding:
            return self._fall_back(done)
        if action is None:
            if self._last is None and not done:
                return Guarded(None)  # nothing has begun yet
            done.append(self._intervene("missing", self.limits.fallback))
            return self._fall_back(done)
        values, reason = self._read(action)
        if values is None:
            done.append(self._intervene(reason, self.limits.fallback))
            return self._fall_back(done)
        sent = self._limited(values, done)
        self._last = sent
        return Guarded(sent.copy(), tuple(done))

    def _fall_back(self, done: list[Intervention]) -> Guarded:
        """Hold the last action, or stop."""
        if self.limits.fallback == "stop":
            self.stopped = True
        held = None if self.stopped or self._last is None else self._last.copy()
        return Guarded(held, tuple(done))

    def _limited(self, action: Action, done: list[Intervention]) -> Action:
        """Return an action within range and rate; the last one sent is within the range itself."""
        inside = np.clip(action, self._low, self._high)
        if (moved := inside != action).any():
            done.append(self._intervene("range", "clipped", _where(moved)))
        if self._last is None:
            return inside
        slow = _slowed(inside, self._last, self._rate)
        if (moved := slow != inside).any():
            done.append(self._intervene("rate", "slowed", _where(moved)))
        return slow

    def _read(self, action: npt.ArrayLike) -> tuple[Action | None, str]:
        """Return an action as float32, or None and what is wrong with it."""
        try:
            values = np.asarray(action, np.float64)
        except (TypeError, ValueError):
            return None, "shape"
        if values.shape != (self.action_dim,):
            return None, "shape"
        with np.errstate(over="ignore"):
            result = values.astype(np.float32)
        return (result, "") if np.isfinite(result).all() else (None, "not-finite")

    def _intervene(self, reason: str, done: str, dimensions: tuple[int, ...] = ()) -> Intervention:
        self.counts[reason] += 1
        self._recent.append(Intervention(reason, done, self._steps, dimensions))
        return self._recent[-1]

    def report(self) -> dict[str, Any]:
        """Return what happened so far as plain values: steps, counts by reason, the last interventions, stopped."""
        recent = [
            {"reason": one.reason, "done": one.done, "step": one.step, "dimensions": list(one.dimensions)}
            for one in self._recent
        ]
        return {"steps": self._steps, "counts": dict(self.counts), "recent": recent, "stopped": self.stopped}


def _where(mask: Any) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


def _inward(bounds: Numbers, inward: np.float32) -> Action:
    """Return float32 bounds that lie not outside the float64 ones; `inward` is the infinity on the inner side."""
    with np.errstate(over="ignore"):
        rounded = bounds.astype(np.float32)
    outside = rounded < bounds if inward > 0 else rounded > bounds
    result: Action = np.where(outside, np.nextafter(rounded, inward), rounded)
    return result


def _slowed(action: Action, last: Action, rate: Numbers) -> Action:
    """Return `action` moved towards `last` until no dimension changes by more than `rate`."""
    before = last.astype(np.float64)
    change = np.clip(action.astype(np.float64) - before, -rate, rate)
    fast = np.abs(action.astype(np.float64) - before) > rate
    slow = (before + change).astype(np.float32)
    over = np.abs(slow.astype(np.float64) - before) > rate  # by the rounding to float32
    slow = np.where(over, np.nextafter(slow, last), slow)
    result: Action = np.where(fast, slow, action)
    return result


class Watchdog:
    """Tells when a control loop has not been heard of for `timeout_ms`; None never expires.

    `expired` asks the clock (seconds) and needs no thread. `start` has one besides, which calls a function, once for
    each time the loop falls silent: it may stop a robot whose loop hangs. Raises GenerationError for a timeout that
    isn't over 0.
    """

    def __init__(self, timeout_ms: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        if timeout_ms is not None and not (math.isfinite(timeout_ms) and timeout_ms > 0):
            raise GenerationError(f"The watchdog's timeout is {timeout_ms!r} ms: give a number over 0.")
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000.0
        self._clock = clock
        self._fed_s = clock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self.barks = 0

    @classmethod
    def of(cls, limits: Limits, clock: Callable[[], float] = time.monotonic) -> Watchdog:
        """Return the watchdog of a bundle's limits: its timeout is the deadline."""
        return cls(limits.deadline_ms, clock)

    def feed(self) -> None:
        """Say that the loop is alive."""
        self._fed_s = self._clock()

    @property
    def expired(self) -> bool:
        """Whether the loop has been silent for longer than the timeout."""
        return self._timeout_s is not None and self._clock() - self._fed_s > self._timeout_s

    def start(self, bark: Callable[[], None]) -> None:
        """Watch from a thread, which ends with `stop`; `bark` is called from there. Does nothing without a timeout."""
        if self._timeout_s is None or self._thread is not None:
            return
        self._ended.clear()
        self._thread = threading.Thread(target=self._watch, args=(bark, self._timeout_s), daemon=True)
        self._thread.start()

    def _watch(self, bark: Callable[[], None], timeout_s: float) -> None:
        barked_s = -math.inf
        while not self._ended.wait(timeout_s / 4):
            fed_s = self._fed_s
            if self.expired and fed_s != barked_s:
                barked_s = fed_s
                self.barks += 1
                bark()

    def stop(self) -> None:
        """End the thread, if there is one, and wait for it."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
