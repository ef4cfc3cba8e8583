"""Who has the accelerator next: one class a discipline, all with the same few methods.

A discipline is told who takes part (`join`, `leave`), what they wait for, and whose quantum begins and ends; it says
whose turn it is. That may be a client that still does host work: the scheduler decides how long to wait for it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from math import ceil
from typing import Literal, Protocol, get_args

from edgewright.errors import UsageError
from edgewright.runtime.scheduling.seat import Client, Seat, State
from edgewright.runtime.scheduling.shares import Shares
from edgewright.runtime.scheduling.timeline import segments

DisciplineName = Literal["fifo", "round-robin", "weighted", "fair-time", "priority", "deadline", "free"]


class Discipline(Protocol):
    """What the scheduler asks of a discipline."""

    #: Whether one client at a time has the accelerator.
    exclusive: bool

    def clear(self) -> None:
        """Send all away: weights change. Those that stay join again."""

    def join(self, seat: Seat) -> None:
        """Let a client take part."""

    def leave(self, seat: Seat) -> None:
        """Let a client that takes part no longer do so."""

    def expect(self, seat: Seat) -> None:
        """Hear that a client that takes part waits for a quantum: its phase and deadline are known."""

    def begin(self, seat: Seat) -> None:
        """Hear that a client that takes part begins its quantum."""

    def finish(self, seat: Seat, cost_ns: int) -> None:
        """Hear that a client's quantum has ended; the client may take part no longer."""

    def pick(self) -> Seat | None:
        """Return whose turn it is, a waiting client or one that is coming back; None where it is nobody's."""


class _Listed:
    """What simple disciplines share: they know who takes part, in the order of their indexes."""

    exclusive = True

    def __init__(self) -> None:
        self._members: list[Seat] = []

    def clear(self) -> None:
        self._members.clear()

    def join(self, seat: Seat) -> None:
        insort(self._members, seat, key=_index)

    def leave(self, seat: Seat) -> None:
        self._members.remove(seat)

    def expect(self, seat: Seat) -> None:
        pass

    def begin(self, seat: Seat) -> None:
        pass

    def finish(self, seat: Seat, cost_ns: int) -> None:
        pass


class Fifo(_Listed):
    """Who has waited longest; of those that came together, the first."""

    def pick(self) -> Seat | None:
        """Return the client that has waited longest."""
        waiting = (seat for seat in self._members if seat.state is State.WAITING)
        return min(waiting, key=_ready, default=None)


class Free(Fifo):
    """Everybody at once: there is no gate, only pauses."""

    exclusive = False


class RoundRobin(_Listed):
    """One after the other, in the order of their indexes."""

    def __init__(self) -> None:
        super().__init__()
        self._last = -1

    def begin(self, seat: Seat) -> None:
        """Remember whose turn it was."""
        self._last = seat.index

    def pick(self) -> Seat | None:
        """Return the client after the one that was served last."""
        after = next((seat for seat in self._members if seat.index > self._last), None)
        return after or next(iter(self._members), None)


class Priority:
    """The largest priority first, strictly; clients of the same priority share by weight, counting quanta."""

    exclusive = True

    def __init__(self) -> None:
        self._levels: dict[int, Shares] = {}

    def _level(self, seat: Seat) -> Shares:
        return self._levels[seat.client.priority]

    def clear(self) -> None:
        """Send all away."""
        for level in self._levels.values():
            level.clear()

    def join(self, seat: Seat) -> None:
        """Let a client take part among those of its priority."""
        if seat.client.priority not in self._levels:
            self._levels[seat.client.priority] = Shares()
            self._levels = dict(sorted(self._levels.items(), reverse=True))
        self._level(seat).join(seat)

    def leave(self, seat: Seat) -> None:
        """Let a client no longer take part."""
        self._level(seat).leave(seat)

    def expect(self, seat: Seat) -> None:
        """Hear what a client waits for."""
        self._level(seat).expect(seat)

    def begin(self, seat: Seat) -> None:
        """Charge a client's quantum to those of its priority."""
        self._level(seat).begin(seat)

    def finish(self, seat: Seat, cost_ns: int) -> None:
        """Hear that a quantum has ended."""
        self._level(seat).finish(seat, cost_ns)

    def pick(self) -> Seat | None:
        """Return whose turn it is in the highest priority that has somebody."""
        return next((seat for level in self._levels.values() if (seat := level.pick()) is not None), None)


class Deadline(_Listed):
    """The earliest deadline first; clients without one share by weight, counting quanta, what is left."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = Shares()
        self._resting: set[int] = set()

    def clear(self) -> None:
        """Send all away."""
        super().clear()
        self._rest.clear()
        self._resting.clear()

    def join(self, seat: Seat) -> None:
        """Let a client take part: among those with a deadline, or among the rest."""
        if seat.deadline_ns is None:
            self._resting.add(seat.index)
            self._rest.join(seat)
        else:
            super().join(seat)

    def leave(self, seat: Seat) -> None:
        """Let a client no longer take part."""
        if seat.index in self._resting:
            self._resting.remove(seat.index)
            self._rest.leave(seat)
        else:
            super().leave(seat)

    def expect(self, seat: Seat) -> None:
        """Hear what a client waits for; its next job may be the first with a deadline, or without."""
        if (seat.deadline_ns is None) != (seat.index in self._resting):
            self.leave(seat)
            self.join(seat)

    def begin(self, seat: Seat) -> None:
        """Charge a quantum to the rest where it is one of theirs."""
        if seat.index in self._resting:
            self._rest.begin(seat)

    def pick(self) -> Seat | None:
        """Return the client of the earliest deadline, or whose turn it is among the rest."""
        return min(self._members, key=_due) if self._members else self._rest.pick()


def make_discipline(name: str) -> Discipline:
    """Return a new discipline. Raises UsageError for a name that is none."""
    match name:
        case "fifo":
            return Fifo()
        case "round-robin":
            return RoundRobin()
        case "weighted":
            return Shares()
        case "fair-time":
            return Shares(by_time=True)
        case "priority":
            return Priority()
        case "deadline":
            return Deadline()
        case "free":
            return Free()
        case _:
            raise UsageError(f"There is no scheduler discipline {name!r}: use {', '.join(get_args(DisciplineName))}.")


def starvation_bound(name: str, clients: Sequence[Client], index: int) -> int | None:
    """Return how many quanta of others begin at most while a client waits, unpaused, for its own; None: no bound.

    Holds where no client loses a turn. Of `weighted` it is 2 W / w - 2, rounded up, for weight w of W, as long as the
    same clients take part and no weight changes (the largest of all segments): a lag is at least -(1 - w / W) after a
    quantum, stays below 1, and grows by w / W with each quantum of another. After comings and goings it may be
    exceeded by a few.
    """
    if name in ("fifo", "round-robin"):
        return len(clients) - 1
    if name != "weighted":
        return None
    parts = [segment.weights for segment in segments([client.timeline for client in clients])]
    return max((ceil(2 * sum(weights) / weights[index]) - 2 for weights in parts if weights[index]), default=None)


def _index(seat: Seat) -> int:
    return seat.index


def _ready(seat: Seat) -> tuple[int, int]:
    return seat.ready_ns, seat.index


def _due(seat: Seat) -> tuple[int, int]:
    return seat.deadline_ns or 0, seat.index
