"""Weights over time: `W:T,W:T` says that weight W holds from T milliseconds on; 0 pauses."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from edgewright.errors import UsageError

#: Weights other than 0 lie between these, so that shares and what is owed can be counted in floating point.
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-6, 1e9
#: The latest time of a timeline: about thirty years.
LATEST_MS = 10**12
NS_PER_MS = 1_000_000

_GRAMMAR = "write it as W:T,W:T, such as 4:0,0:5000 (weight 4 from 0 ms on, paused from 5000 ms on)"
_WEIGHT = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)
_TIME = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True)
class Timeline:
    """The weights of one task: `changes` are (time in ns, weight), the first at 0, times strictly increasing.

    Two are equal where they were written alike. Raises UsageError for times and weights that can't be.
    """

    changes: tuple[tuple[int, float], ...]
    _times: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _weights: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.changes:
            raise UsageError(f"A weight timeline is empty: {_GRAMMAR}.")
        for _, weight in self.changes:
            check_weight(weight)
        if self.changes[0][0] != 0:
            raise UsageError(
                f"The weight timeline {self} begins at {self.changes[0][0] // NS_PER_MS} ms: its first time must be 0, "
                "so that the weight before is known."
            )
        for (before, _), (after, _) in zip(self.changes, self.changes[1:], strict=False):
            if after <= before:
                raise UsageError(
                    f"The times of the weight timeline {self} must increase: {after // NS_PER_MS} ms comes after "
                    f"{before // NS_PER_MS} ms."
                )
        # What is written may repeat a weight; only changes matter to whoever asks.
        real = [
            change for place, change in enumerate(self.changes) if not place or change[1] != self.changes[place - 1][1]
        ]
        object.__setattr__(self, "_times", tuple(time for time, _ in real))
        object.__setattr__(self, "_weights", tuple(weight for _, weight in real))

    @classmethod
    def parse(cls, text: str) -> Timeline:
        """Read `W:T,W:T`: W a decimal number of at least 0, T whole milliseconds. Raises UsageError."""
        return cls(tuple(_change(part.strip(), text) for part in text.split(",")))

    @classmethod
    def constant(cls, weight: float) -> Timeline:
        """Return the timeline of one weight for ever. Raises UsageError for a weight that can't be."""
        return cls(((0, float(weight)),))

    def at(self, time_ns: int) -> float:
        """Return the weight in force at a time; before 0, the first one."""
        times = self._times
        if len(times) == 1:
            return self._weights[0]
        return self._weights[max(0, bisect_right(times, time_ns) - 1)]

    def next_change(self, time_ns: int) -> int | None:
        """Return the first time after `time_ns` when the weight becomes another, None where it never does."""
        place = max(1, bisect_right(self._times, time_ns))
        return self._times[place] if place < len(self._times) else None

    def eligible(self, time_ns: int) -> int | None:
        """Return the first time from `time_ns` on when the weight is not 0, None where it stays 0 for ever."""
        time: int | None = time_ns
        while time is not None and not self.at(time):
            time = self.next_change(time)
        return time

    def __str__(self) -> str:
        return ",".join(f"{written(weight)}:{time // NS_PER_MS}" for time, weight in self.changes)


@dataclass(frozen=True)
class Segment:
    """A time in which no weight changes: from `start_ns` up to, not including, `end_ns` (None: for ever)."""

    start_ns: int
    end_ns: int | None
    weights: tuple[float, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of the accelerator each task is to get; zeros where all are paused."""
        total = sum(self.weights)
        return tuple(weight / total if total else 0.0 for weight in self.weights)


def segments(timelines: Sequence[Timeline]) -> list[Segment]:
    """Return the times in which none of the weights changes, in order; the last has no end."""
    found = []
    start: int | None = 0
    while start is not None:
        now = start
        changes = [change for line in timelines if (change := line.next_change(now)) is not None]
        end = min(changes, default=None)
        found.append(Segment(now, end, tuple(line.at(now) for line in timelines)))
        start = end
    return found


def check_weight(weight: float) -> float:
    """Return a weight. Raises UsageError where it is not 0 and not between the smallest and the largest one."""
    if weight != 0 and not SMALLEST_WEIGHT <= weight <= LARGEST_WEIGHT:
        raise UsageError(
            f"The weight {weight:g} can't be used: a weight is 0 (paused) or between {SMALLEST_WEIGHT:g} and "
            f"{LARGEST_WEIGHT:g}."
        )
    return weight


def parse_weight(text: str) -> float:
    """Read a weight written as a decimal number. Raises UsageError."""
    if not _WEIGHT.fullmatch(text):
        raise UsageError(f"The weight {text!r} is not a decimal number of at least 0, such as 4 or 0.5.")
    return check_weight(float(text))


def written(weight: float) -> str:
    """Return a weight as the grammar has it: decimal, no exponent, no more digits than it needs."""
    return str(int(weight)) if weight == int(weight) else format(Decimal(repr(weight)), "f")


def _change(part: str, text: str) -> tuple[int, float]:
    """Read one `W:T` of a timeline `text`."""
    if "@" in part:
        raise UsageError(
            f"The weight timeline {text!r} has '@' between weight and time: the separator is ':' "
            f"({part.replace('@', ':')})."
        )
    weight, colon, time = (piece.strip() for piece in part.partition(":"))
    if not colon or not weight or not time:
        raise UsageError(f"{part!r} in the weight timeline {text!r} is not a weight and a time: {_GRAMMAR}.")
    if not _TIME.fullmatch(time):
        raise UsageError(
            f"The time {time!r} in the weight timeline {text!r} is not a whole number of milliseconds: {_GRAMMAR}."
        )
    if len(time) > len(str(LATEST_MS)) or int(time) > LATEST_MS:
        raise UsageError(f"A time in the weight timeline {text[:80]!r} is later than {LATEST_MS} ms.")
    return int(time) * NS_PER_MS, parse_weight(weight)
