"""What stands between a policy and a robot: no action leaves that isn't finite and within the bundle's limits.

Two checks, and what each does:

- of a chunk, before it is executed (`admit`): late (the inference took longer than the deadline), values that are not
  finite, another shape, a jump from the action before it. A chunk that fails is refused as a whole.
- of every action (`step`): not finite, missing, late, after a silence of the control loop: the declared fallback takes
  over. Out of range: clipped. A faster change than the rate: slowed down.

The fallbacks: `hold` sends the last action again until a new chunk is admitted; `last-chunk` goes on with the chunk
there is and holds when that ends; `stop` sends nothing any more until `reset`. Holding means the same numbers again:
with positions the robot stands, with velocities it does not, so those want `stop`.

Until the first chunk is there the robot stands and nothing is sent: a slow first inference is counted and its chunk is
taken. A robot that is known to stand outside the range is moved into it no faster than the rate.
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
from edgewright.runtime.policy.spec import Limits, inward

Action = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

#: How many interventions the report tells one by one.
_REMEMBERED = 64


@dataclass(frozen=True)
class Intervention:
    """What a guard did and why.

    `reason` is not-finite, shape (what is no array of real numbers included), jump, deadline, watchdog, missing, range
    or rate; `done` is clipped, slowed, refused, the fallback, or before the first chunk waited and taken. `dimensions`
    are the action's numbers concerned, where it is not all of them; `step` counts the actions that were asked for.
    """

    reason: str
    done: str
    step: int
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Guarded:
    """What the robot is sent: float32 [action_dim], or None for nothing; and what was done to it.

    `held` tells that a fallback sends the last action again, or nothing, also where the reason was an earlier step's.
    """

    action: Action | None
    interventions: tuple[Intervention, ...] = ()
    held: bool = False


class Guard:
    """Checks the actions of one robot against a policy's limits.

    `counts` has the number of interventions by reason. Raises GenerationError when the limits are for another number of
    dimensions or can't be kept. Not for several threads at once.
    """

    def __init__(self, limits: Limits, action_dim: int) -> None:
        self.limits, self.action_dim = limits, action_dim
        self.counts: Counter[str] = Counter()
        self._recent: deque[Intervention] = deque(maxlen=_REMEMBERED)
        self._low = inward(self._numbers("minimum", -np.inf), np.float32(np.inf))
        self._high = inward(self._numbers("maximum", np.inf), np.float32(-np.inf))
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

        It may lie outside the range. Raises GenerationError when `sent` is no action.
        """
        self._last: Action | None = None
        self.stopped, self._holding, self._begun = False, False, False
        if sent is not None:
            action, reason = self._read(sent)
            if action is None:
                raise GenerationError(f"The robot can't be at an action that is wrong ({reason}): give finite numbers.")
            self._last = action

    def admit(
        self,
        chunk: npt.ArrayLike,
        first: npt.ArrayLike | None = None,
        *,
        horizon: int | None = None,
        waited_ms: float | None = None,
    ) -> bool:
        """Tell whether a chunk [n, action_dim] may be executed, and act on the fallback where it may not.

        `first` is the action of it that comes next, by default its first; the jump is measured from the last action
        that was sent. `horizon` is the n it must have, `waited_ms` how long its inference took.
        """
        reason, dimensions = self._refusal(chunk, first, horizon)
        late = self._late(waited_ms)
        if reason is None and late and not self._begun:
            self._intervene("deadline", "taken")
        elif reason is None and late:
            reason = "deadline"
        if reason is None:
            self._holding, self._begun = False, True
            return True
        self._intervene(reason, "refused", dimensions)
        if self.limits.fallback == "stop":
            self.stopped = True
        self._holding = self.limits.fallback == "hold"
        return False

    def _late(self, waited_ms: float | None) -> bool:
        deadline_ms = self.limits.deadline_ms
        return waited_ms is not None and deadline_ms is not None and not waited_ms <= deadline_ms  # NaN is late

    def _refusal(
        self, chunk: npt.ArrayLike, first: npt.ArrayLike | None, horizon: int | None
    ) -> tuple[str | None, tuple[int, ...]]:
        values = real(chunk)
        if values is None or values.ndim != 2 or values.shape[1] != self.action_dim or not len(values):
            return "shape", ()
        if horizon is not None and len(values) != horizon:
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

    def step(self, action: npt.ArrayLike | None, *, waited_ms: float | None = None, silent: bool = False) -> Guarded:
        """Return what the robot is sent at this step.

        `action` [action_dim] is what was planned, None where nothing was; `waited_ms` is how long the inference under
        way has taken, None where there is none; `silent` tells that the control loop wasn't heard of for too long.
        """
        self._steps += 1
        if self.stopped:
            return Guarded(None, held=True)
        reasons = [name for name, holds in (("watchdog", silent), ("deadline", self._late(waited_ms))) if holds]
        waits = not self._begun and action is None
        done = [self._intervene(reason, "waited" if waits else self.limits.fallback) for reason in reasons]
        if waits:
            return Guarded(None, tuple(done))
        if self._holding or (done and self.limits.fallback != "last-chunk"):
            return self._fall_back(done)
        values, reason = (None, "missing") if action is None else self._read(action)
        if values is None:
            done.append(self._intervene(reason, self.limits.fallback))
            return self._fall_back(done)
        sent, changes = self._limited(values, self._last)
        done += [self._intervene(*change) for change in changes]
        self._last, self._begun = sent, True
        return Guarded(sent.copy(), tuple(done))

    def foreseen(self, actions: Action) -> Action:
        """Return what the robot will be sent for the next actions [n, action_dim], as far as is known now."""
        last, rows = self._last, []
        for action in actions:
            if not (self._holding and last is not None):
                last, _ = self._limited(action, last)
            rows.append(last)
        return np.stack(rows) if rows else actions

    def _fall_back(self, done: list[Intervention]) -> Guarded:
        """Hold the last action, or stop."""
        if self.limits.fallback == "stop":
            self.stopped = True
        held = None if self.stopped or self._last is None else self._last.copy()
        return Guarded(held, tuple(done), held=True)

    def _limited(self, action: Action, last: Action | None) -> tuple[Action, list[tuple[str, str, tuple[int, ...]]]]:
        """Return an action within range, at the rate from `last` on, and what was changed of it."""
        changes = []
        inside = np.clip(action, self._low, self._high)
        if (moved := inside != action).any():
            changes.append(("range", "clipped", _where(moved)))
        if last is None:
            return inside, changes
        slow = _slowed(inside, last, self._rate)
        if (moved := slow != inside).any():
            changes.append(("rate", "slowed", _where(moved)))
        return slow, changes

    def _read(self, action: npt.ArrayLike) -> tuple[Action | None, str]:
        """Return an action as float32, or None and what is wrong with it."""
        values = real(action)
        if values is None or values.shape != (self.action_dim,):
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


def real(values: npt.ArrayLike) -> Numbers | None:
    """Return real numbers as float64; None for everything else, also where NumPy would make numbers of it."""
    try:
        array = np.asarray(values)
        return array.astype(np.float64) if array.dtype.kind in "fiu" else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _where(mask: Any) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


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
    each time the loop falls silent: it may stop a robot whose loop hangs. What that raises is kept in `errors`, the
    last ones, and the watch goes on. Raises GenerationError for a timeout that isn't over 0.
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
        self.errors: deque[Exception] = deque(maxlen=_REMEMBERED)

    @classmethod
    def of(cls, limits: Limits, clock: Callable[[], float] = time.monotonic, *, least_ms: float = 0.0) -> Watchdog:
        """Return the watchdog of a bundle's limits: its timeout is the deadline, but at least `least_ms`."""
        deadline_ms = limits.deadline_ms
        return cls(None if deadline_ms is None else max(deadline_ms, least_ms), clock)

    def feed(self) -> None:
        """Say that the loop is alive."""
        self._fed_s = self._clock()

    @property
    def expired(self) -> bool:
        """Whether the loop has been silent for longer than the timeout."""
        return self._timeout_s is not None and self._clock() - self._fed_s > self._timeout_s

    def start(self, bark: Callable[[], None]) -> None:
        """Watch from now on, from a thread that calls `bark` and ends with `stop`; nothing without a timeout."""
        if self._timeout_s is None or self._thread is not None:
            return
        self.feed()
        self._ended = threading.Event()  # of this thread alone: the one before may be about to see its own
        self._thread = threading.Thread(target=self._watch, args=(bark, self._timeout_s, self._ended), daemon=True)
        self._thread.start()

    def _watch(self, bark: Callable[[], None], timeout_s: float, ended: threading.Event) -> None:
        barked_s = -math.inf
        while not ended.wait(timeout_s / 4):
            fed_s = self._fed_s
            if self.expired and fed_s != barked_s:
                barked_s = fed_s
                self.barks += 1
                try:
                    bark()
                except Exception as error:
                    self.errors.append(error)

    def stop(self) -> None:
        """End the thread, if there is one, and wait for it, except where it is the one that calls."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
