"""Decides who has the accelerator next. A state machine: no threads, no clock; whoever drives it tells it the time.

A driver says that a client has begun host work for a quantum (`enter`), waits for the accelerator (`arrive`), has given
it back (`finish`), is away (`leave`) or gone (`end`), and asks after these whose turn it is (`choose`). Real time
(`threads`) and virtual time (`virtual`) drive the same object, and nothing else decides.

Where a client has host work between its quanta, its turn may come while it is still busy with that. The accelerator is
then held for it, idle, up to `hold_ns`; if it does not come it has lost its turn, and takes part again when it does.
Who did not come in time is not held for at its next turns, more of them each time, unless it is quick by itself.
Without host work nothing is ever held while somebody waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgewright.errors import SchedulingError, UsageError
from edgewright.runtime.scheduling.disciplines import make_discipline, starvation_bound
from edgewright.runtime.scheduling.seat import Client, Seat, State
from edgewright.runtime.scheduling.work import Phase

#: How long the accelerator may stay idle for a client whose turn it is.
HOLD_NS = 2_000_000
#: The most turns that a client loses without a hold before it gets another one.
MOST_SKIPS = 16


class Choice(NamedTuple):
    """Let `client` run now; or, where it is None, ask again at `until_ns`, or when something has happened."""

    client: int | None = None
    until_ns: int | None = None


_NOTHING = Choice()


class Scheduler:
    """Shares one accelerator among clients by a discipline.

    `held_ns` is how long the accelerator stayed idle for clients that were still busy while others waited,
    `lost_turns` how often a client's turn came and it was not there in time. Used for one run, by one caller at a time.
    Raises UsageError for an unknown discipline, no clients, or a negative hold.
    """

    def __init__(self, clients: Sequence[Client], discipline: str = "weighted", *, hold_ns: int = HOLD_NS) -> None:
        if not clients:
            raise UsageError("There is nothing to schedule: give at least one task.")
        if hold_ns < 0:
            raise UsageError(f"The accelerator can't be held for {hold_ns} ns: give 0 or more.")
        self.clients, self.discipline, self.hold_ns = tuple(clients), discipline, hold_ns
        self._rule = make_discipline(discipline)
        self._seats = [Seat(index, client, client.timeline.at(0)) for index, client in enumerate(clients)]
        self._change_ns = self._next_change(0)
        self.held_ns = self.lost_turns = 0
        #: Clients that wait and are not paused, and clients that run.
        self._ready = self._running = 0
        self._begun = False
        self._held: Seat | None = None
        self._held_from = 0

    def begin(self, tasks: int) -> None:
        """Begin a run of so many tasks. Raises UsageError where they don't fit, or after another run."""
        if tasks != len(self.clients):
            raise UsageError(f"{tasks} tasks don't fit a scheduler of {len(self.clients)} clients.")
        if self._begun:
            raise UsageError("A scheduler is good for one run: make a new one.")
        self._begun = True

    @property
    def exclusive(self) -> bool:
        """Whether one client at a time has the accelerator."""
        return self._rule.exclusive

    def weight(self, index: int) -> float:
        """Return the weight of a client that was in force when the scheduler was last told or asked something."""
        return self._seats[index].weight

    def state(self, index: int) -> State:
        """Return where a client is."""
        return self._seats[index].state

    def bound(self, index: int) -> int | None:
        """Return the most quanta of others that a waiting client sees before its own; None where there is no bound."""
        return starvation_bound(self.discipline, self.clients, index)

    def enter(self, index: int, now: int, deadline_ns: int | None = None) -> None:
        """Hear that a client does host work for the first quantum of a job, due then, and is to be reckoned with."""
        seat = self._told(index, now, State.ABSENT, State.RETURNING)
        seat.deadline_ns = deadline_ns
        if seat.state is State.ABSENT:
            seat.state, seat.finished_ns = State.RETURNING, now
            self._join(seat)
        elif seat.present:
            self._rule.expect(seat)

    def arrive(self, index: int, now: int, phase: Phase = "decode", deadline_ns: int | None = None) -> None:
        """Hear that a client waits for the accelerator."""
        seat = self._told(index, now, State.ABSENT, State.RETURNING)
        if now - seat.finished_ns <= self.hold_ns:
            seat.slow, seat.penalty = False, 1
        seat.state, seat.ready_ns, seat.phase, seat.deadline_ns = State.WAITING, now, phase, deadline_ns
        if seat.present:
            self._ready += 1
            self._rule.expect(seat)
        else:
            self._join(seat)

    def finish(self, index: int, now: int, cost_ns: int) -> None:
        """Hear that a client has given the accelerator back after `cost_ns`, and does host work."""
        seat = self._told(index, now, State.RUNNING)
        self._running -= 1
        self._rule.finish(seat, cost_ns)
        seat.state, seat.finished_ns = State.RETURNING, now

    def leave(self, index: int, now: int) -> None:
        """Hear that a client is away: it waits for a release or thinks."""
        seat = self._told(index, now, State.RETURNING, State.WAITING)
        self._drop(seat)
        seat.state = State.ABSENT

    def end(self, index: int, now: int) -> None:
        """Hear that a client has gone for good, from wherever it was; one that runs gives the accelerator back."""
        seat = self._seats[index]
        if seat.state is State.RUNNING:
            self.finish(index, now, 0)
        if seat.state in (State.RETURNING, State.WAITING):
            self.leave(index, now)
        seat.state = State.ENDED

    def choose(self, now: int) -> Choice:
        """Say who runs now; who is named counts as running from then on.

        Raises SchedulingError when everybody that is left waits and is paused for ever.
        """
        self._refresh(now)
        if self._running and self._rule.exclusive:
            return _NOTHING
        while self._ready:
            seat = self._rule.pick()
            assert seat is not None, "a client that waits takes part"
            if seat.state is State.WAITING:
                return self._run(seat, now)
            until = self._hold(seat, now)
            if until is not None:
                return Choice(None, until if self._change_ns is None else min(until, self._change_ns))
        self._stop_holding(now)
        return Choice(None, self._wake(now))

    def _run(self, seat: Seat, now: int) -> Choice:
        self._stop_holding(now)
        self._ready -= 1
        self._running += 1
        seat.state = State.RUNNING
        self._rule.begin(seat)
        return Choice(seat.index)

    def _hold(self, seat: Seat, now: int) -> int | None:
        """Return until when the accelerator is held for a client that is coming back, None when its turn is lost."""
        if self._held is not seat:
            self._stop_holding(now)
            self._held, self._held_from = seat, now
        until = self._held_from + self.hold_ns
        if now < until and not seat.slow:
            return until
        self._stop_holding(now)
        self.lost_turns += 1
        self._lose(seat)
        self._drop(seat)
        return None

    def _lose(self, seat: Seat) -> None:
        """Let a client lose some turns without a hold, each time twice as many.

        It must not be for ever: where others' steps keep all cores busy, its host work is quick only while the
        accelerator is held for it.
        """
        if not seat.slow:
            seat.slow, seat.skips = True, seat.penalty
            seat.penalty = min(2 * seat.penalty, MOST_SKIPS)
        else:
            seat.skips -= 1
            seat.slow = seat.skips > 0

    def _stop_holding(self, now: int) -> None:
        if self._held is not None:
            self.held_ns += now - self._held_from
            self._held = None

    def _wake(self, now: int) -> int | None:
        """Return when somebody that waits may go on: the next change of weights, where somebody is paused."""
        paused = [seat for seat in self._seats if seat.state is State.WAITING]
        if not paused:
            return None
        quiet = all(seat.state in (State.WAITING, State.ENDED) for seat in self._seats)
        if quiet and all(seat.client.timeline.eligible(now) is None for seat in paused):
            names = ", ".join(seat.client.name or str(seat.index) for seat in paused)
            raise SchedulingError(
                f"Nothing can run any more: the weight of {names} is 0 and stays so. Give a later time with another "
                "weight."
            )
        return self._change_ns

    def _told(self, index: int, now: int, *expected: State) -> Seat:
        self._refresh(now)
        seat = self._seats[index]
        if seat.state not in expected:
            raise SchedulingError(
                f"Task {seat.client.name or index} is {seat.state.value}, and not "
                f"{' or '.join(state.value for state in expected)}: a task has one driver, and a scheduler one run."
            )
        return seat

    def _join(self, seat: Seat) -> None:
        if seat.weight:
            seat.present = True
            self._ready += seat.state is State.WAITING
            self._rule.join(seat)

    def _drop(self, seat: Seat) -> None:
        if seat.present:
            self._rule.leave(seat)
            self._ready -= seat.state is State.WAITING
            seat.present = False

    def _refresh(self, now: int) -> None:
        """Let the weights of now be in force; where they change, everybody begins anew and is owed nothing."""
        if self._change_ns is None or now < self._change_ns:
            return
        self._change_ns = self._next_change(now)
        self._rule.clear()
        self._ready = 0
        for seat in self._seats:
            seat.weight, seat.present = seat.client.timeline.at(now), False
            if seat.state not in (State.ABSENT, State.ENDED):
                self._join(seat)

    def _next_change(self, now: int) -> int | None:
        changes = (client.timeline.next_change(now) for client in self.clients)
        return min((change for change in changes if change is not None), default=None)
