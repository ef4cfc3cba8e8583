"""Executes chunks of actions at a control rate and asks for the next one in time.

Time is counted in ticks of the control rate. The first action of a chunk belongs to the tick its observation was taken
at; when the chunk arrives, what it has for ticks that have passed is left out. Three ways to go from one chunk to the
next:

- `switch`: the newest chunk holds from the tick it arrives.
- `committed` (real-time chunking): as `switch`, but the actions that the robot will be sent until the next chunk
  arrives are given to the policy, which keeps them as the beginning of that chunk: there is no seam.
- `ensemble` (ACT, https://arxiv.org/abs/2304.13705): the action of a tick is the mean of what all chunks have for it,
  with weights exp(-m i), i = 0 for the oldest chunk.

Nothing here waits, starts a thread or reads a clock of its own.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError
from edgewright.runtime.policy.spec import PolicySpec

Actions = npt.NDArray[np.float32]
Mode = Literal["switch", "committed", "ensemble"]

#: How many inferences the expected delay looks back on.
_REMEMBERED = 16
#: A clock that counts in binary fractions is a little before a tick that it means.
_EARLY = 1e-6


@dataclass(frozen=True, kw_only=True)
class Chunking:
    """How chunks are executed.

    `rate_hz` is the control rate, `horizon` the actions of a chunk, `steps_to_run` how many of them are executed before
    the next chunk is wanted. `delay` is how many ticks an inference is expected to take, None to expect the longest of
    the last ones and, where ticks pass meanwhile, to ask one tick earlier than that. At most `most_committed` actions
    are committed. `weight` is m of `ensemble`. Raises GenerationError for values that can't be.
    """

    rate_hz: float
    horizon: int
    steps_to_run: int
    mode: Mode = "switch"
    delay: int | None = None
    most_committed: int | None = None
    weight: float = 0.01

    def __post_init__(self) -> None:
        most = self.most_committed
        right = {
            "rate_hz": math.isfinite(self.rate_hz) and self.rate_hz > 0,
            "steps_to_run": 1 <= self.steps_to_run <= self.horizon,
            "mode": self.mode in ("switch", "committed", "ensemble"),
            "delay": self.delay is None or 0 <= self.delay < self.horizon,
            "most_committed": most is None or 0 <= most < self.horizon,
            "weight": math.isfinite(self.weight),
        }
        for name, holds in right.items():
            if not holds:
                raise GenerationError(
                    f"Chunks of {self.horizon} actions can't be executed with {name} {getattr(self, name)!r}: give "
                    "another."
                )

    @classmethod
    def of(cls, spec: PolicySpec, rate_hz: float, **more: Any) -> Chunking:
        """Return the chunking that a policy was meant for, at a control rate."""
        return cls(**{"rate_hz": rate_hz, "horizon": spec.horizon, "steps_to_run": spec.steps_to_run, **more})


@dataclass(frozen=True, eq=False)
class Request:
    """The next chunk is wanted, for an observation of now.

    `start` is the tick of its first action, `asked_s` the clock's time, `committed` float32 [n, action_dim] what is
    executed at the ticks from `start` on, to be given to the policy, or None.
    """

    number: int
    start: int
    asked_s: float
    committed: Actions | None = None


@dataclass(frozen=True, eq=False)
class Planned:
    """What is to be executed now.

    `action` float32 [action_dim] is None where no chunk reaches this tick ("starved") and where this tick was executed
    already ("early").
    """

    tick: int
    action: Actions | None
    state: Literal["run", "starved", "early"]


@dataclass(frozen=True, eq=False)
class _Placed:
    """A chunk and the tick of its first action."""

    start: int
    actions: Actions

    def at(self, tick: int) -> Actions | None:
        index = tick - self.start
        return self.actions[index] if 0 <= index < len(self.actions) else None


class ActionBuffer:
    """The chunks of one episode. `clock` gives seconds; `counts` say what happened.

    At each tick: `due` (and start an inference if it gives a request), `next` (and execute what it gives); `deliver`
    when an inference has ended, `give_up` when it failed. One request is open at a time. Not for several threads at
    once. Counted are executed, starved, skipped (ticks nobody asked for), late (arrivals after the expected delay),
    missed (actions of chunks that came after their tick), stale (answers to requests no longer open) and useless
    (chunks without an action left).
    """

    def __init__(self, chunking: Chunking, clock: Callable[[], float]) -> None:
        self.chunking, self._clock = chunking, clock
        self.counts: Counter[str] = Counter()
        self._delays: deque[int] = deque(maxlen=_REMEMBERED)
        self._number = 0
        self._beside = False  # ticks pass between a request and its chunk
        self.reset()

    def reset(self) -> None:
        """Begin a new episode: no chunks, no open request, tick 0 is now; counts and known delays stay."""
        self._begun_s = self._clock()
        self._chunks: list[_Placed] = []
        self._open: Request | None = None
        self._last: int | None = None  # the last tick that was asked for
        self._moved: int | None = None  # the last tick that had an action

    @property
    def tick(self) -> int:
        """The tick that it is now."""
        return math.floor((self._clock() - self._begun_s) * self.chunking.rate_hz + _EARLY)

    @property
    def expected_delay(self) -> int:
        """How many ticks the next inference is expected to take."""
        if self.chunking.delay is not None:
            return self.chunking.delay
        return min(max(self._delays, default=0), self.chunking.horizon - 1)

    @property
    def open(self) -> Request | None:
        """The request that is being answered, if there is one."""
        return self._open

    @property
    def remaining(self) -> int:
        """How many actions the newest chunk has from now on."""
        if not self._chunks:
            return 0
        newest = self._chunks[-1]
        return max(0, newest.start + len(newest.actions) - max(self._coming, newest.start))

    @property
    def _coming(self) -> int:
        """The next tick that can be executed."""
        return self.tick if self._last is None else max(self.tick, self._last + 1)

    def due(self) -> Request | None:
        """Return a request when it is time for the next chunk: so early that it arrives when it is needed."""
        if self._open is not None:
            return None
        coming = self._coming
        if self._chunks and self.chunking.mode != "ensemble":
            early = 1 if self._beside and self.chunking.delay is None else 0  # no inference takes the same time twice
            wanted = self._chunks[-1].start + self.chunking.steps_to_run - self.expected_delay - early
            if coming < wanted and self.remaining:
                return None
        self._number += 1
        self._open = Request(self._number, coming, self._clock(), self._committed(coming))
        return self._open

    def _committed(self, start: int) -> Actions | None:
        """Return what is executed from a tick on while the next chunk is being inferred."""
        if self.chunking.mode != "committed":
            return None
        most = self.chunking.most_committed
        count = min(self.expected_delay, self.chunking.horizon - 1 if most is None else most)
        rows: list[Actions] = []
        for tick in range(start, start + count):
            action = self._action(tick)
            if action is None:
                break
            rows.append(action)
        return np.stack(rows) if rows else None

    def first_of(self, request: Request, actions: Actions) -> Actions | None:
        """Return the action that would come next if a chunk were delivered now, None where it has none left."""
        return self._placed(request, actions).at(self._coming)

    def _placed(self, request: Request, actions: Actions) -> _Placed:
        # A robot that stood still since the observation is where the chunk begins.
        moved = self._moved is not None and self._moved >= request.start
        return _Placed(request.start if moved else self._coming, actions)

    def deliver(self, request: Request, actions: Actions) -> bool:
        """Take a chunk [horizon, action_dim]; returns False, and changes nothing, where it comes too late to be used.

        Raises GenerationError for actions of another shape or that are not finite; the request stays open then.
        """
        if self._open is None or request.number != self._open.number:
            self.counts["stale"] += 1
            return False
        chunk = self._checked(actions)
        self._open = None
        # Ticks that the robot spent standing are part of the delay as well.
        took = max(0, math.ceil((self._clock() - request.asked_s) * self.chunking.rate_hz - _EARLY))
        if took > self.expected_delay and self._moved is not None:
            self.counts["late"] += 1
        self._delays.append(took)
        self._beside = self._last is not None and self._last >= request.start
        placed = self._placed(request, chunk)
        coming = self._coming
        self._count("missed", min(max(0, coming - placed.start), len(chunk)))
        if placed.at(coming) is None:
            self.counts["useless"] += 1
            return False
        if self.chunking.mode == "ensemble":
            self._chunks = [one for one in self._chunks if one.at(coming) is not None]
        else:
            self._chunks.clear()
        self._chunks.append(placed)
        return True

    def give_up(self, request: Request) -> None:
        """Close a request whose inference failed or was refused, so that the next one can be asked for."""
        if self._open is not None and request.number == self._open.number:
            self._open = None

    def next(self) -> Planned:
        """Return what is to be executed at this tick; a tick is executed once."""
        tick = self.tick
        if self._last is not None and tick <= self._last:
            return Planned(tick, None, "early")
        if self._last is not None and self._moved is not None:
            self._count("skipped", tick - self._last - 1)
        self._last = tick
        action = self._action(tick)
        if action is None:
            self.counts["starved"] += 1
            return Planned(tick, None, "starved")
        self._moved = tick
        self.counts["executed"] += 1
        return Planned(tick, action, "run")

    def _count(self, name: str, count: int) -> None:
        if count:
            self.counts[name] += count

    def _action(self, tick: int) -> Actions | None:
        found = [action for action in (chunk.at(tick) for chunk in self._chunks) if action is not None]
        if not found:
            return None
        if self.chunking.mode != "ensemble":
            return found[-1].copy()
        weights = np.exp(-self.chunking.weight * np.arange(len(found)))
        mean: Actions = np.average(np.stack(found).astype(np.float64), axis=0, weights=weights).astype(np.float32)
        return mean

    def _checked(self, actions: Actions) -> Actions:
        """Return a copy, so that nobody changes what will be executed."""
        chunk = np.array(actions, np.float32)
        if chunk.ndim != 2 or len(chunk) != self.chunking.horizon or not np.isfinite(chunk).all():
            raise GenerationError(
                f"A chunk of the shape {list(chunk.shape)} can't be executed: it must have {self.chunking.horizon} "
                "actions, all numbers finite."
            )
        return chunk
