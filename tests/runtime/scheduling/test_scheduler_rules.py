"""What holds after any events, with holds, pauses and deadlines: nobody waits in vain, and lags add up to 0."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import clients_of

from edgewright.errors import SchedulingError
from edgewright.runtime.scheduling.disciplines import DisciplineName
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.seat import State
from edgewright.runtime.scheduling.shares import Shares
from edgewright.runtime.scheduling.work import Phase

LINES = ["1:0", "4:0", "0.5:0,3:1", "0:0,2:1", "2:0,0:1,2:2", "1:0,0:1"]
#: Nanoseconds from one event to the next: the weights change after 1,000,000 and 2,000,000.
PASSING = [0, 1, 10_000, 100_000]
HOLDS = [0, 30_000, 500_000]


def happen(scheduler: Scheduler, index: int, now: int, dice: random.Random) -> None:
    """Let something happen to a client that may happen to it where it is."""
    due = dice.choice([None, now + dice.randint(0, 1_000_000)])
    phase: Phase = dice.choice(["prefill", "decode"])
    match scheduler.state(index):
        case State.ABSENT | State.RETURNING if dice.random() < 0.6:
            scheduler.arrive(index, now, phase, due)
        case State.ABSENT:
            scheduler.enter(index, now, due)
        case State.RETURNING:
            dice.choice(
                [
                    lambda: scheduler.leave(index, now),
                    lambda: scheduler.enter(index, now, due),
                    lambda: scheduler.end(index, now),
                ]
            )()
        case State.RUNNING:
            scheduler.finish(index, now, dice.randint(0, 100_000))
        case State.WAITING if dice.random() < 0.05:
            scheduler.end(index, now)


@pytest.mark.parametrize("discipline", DisciplineName.__args__)  # type: ignore[attr-defined]
@settings(max_examples=40)
@given(st.integers(0, 10**9))
def test_any_events(discipline: str, seed: int) -> None:
    dice = random.Random(seed)
    count, hold = dice.randint(1, 6), dice.choice(HOLDS)
    lines, levels = [dice.choice(LINES) for _ in range(count)], [dice.choice([1, 2]) for _ in range(count)]
    scheduler, now = Scheduler(clients_of(*lines, priorities=levels), discipline, hold_ns=hold), 0
    for _ in range(150):
        now += dice.choice(PASSING)
        happen(scheduler, dice.randrange(count), now, dice)
        try:
            choice = scheduler.choose(now)
            while choice.client is not None:
                assert scheduler.state(choice.client) is State.RUNNING
                assert scheduler.weight(choice.client) > 0
                choice = scheduler.choose(now)
        except SchedulingError:
            states = {scheduler.state(index) for index in range(count)}
            assert states <= {State.WAITING, State.ENDED}
            return
        states = [scheduler.state(index) for index in range(count)]
        ready = [index for index in range(count) if states[index] is State.WAITING and scheduler.weight(index)]
        if ready and State.RUNNING not in states:
            assert State.RETURNING in states, "the accelerator is held for somebody"
            assert choice.until_ns is not None
            assert now < choice.until_ns <= now + hold
        if isinstance(scheduler._rule, Shares):
            shares = scheduler._rule
            lags = [one.seat.weight * (shares._virtual - one.start) for one in shares._members]
            assert abs(sum(lags)) <= 1e-6 * max(sum(map(abs, lags)), shares._largest)
