"""The scheduler told of things by hand: holding, lost turns, pauses, disciplines, misuse."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import THREE_SEGMENTS, clients_of, sequence

from edgewright.errors import SchedulingError, UsageError
from edgewright.runtime.scheduling.scheduler import Choice, Scheduler
from edgewright.runtime.scheduling.seat import Client, State
from edgewright.runtime.scheduling.timeline import NS_PER_MS, Timeline

ALL = ["fifo", "round-robin", "weighted", "fair-time", "priority", "deadline", "free"]
GATED = [name for name in ALL if name != "free"]


def run(scheduler: Scheduler, now: int, cost: int = NS_PER_MS) -> int:
    """Let the chosen client run its quantum; it then does host work."""
    client = scheduler.choose(now).client
    assert client is not None
    scheduler.finish(client, now + cost, cost)
    return client


def test_the_accelerator_is_held_for_whose_turn_it_is() -> None:
    """A's second turn comes at once (weights 4 to 1): B waits until A is back, and no longer than the hold."""
    scheduler = Scheduler(clients_of(4, 1), hold_ns=100)
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert [run(scheduler, 0, 10), run(scheduler, 10, 10)] == [0, 1]
    scheduler.arrive(1, 20)
    assert scheduler.choose(20) == Choice(None, 120)
    assert scheduler.choose(50) == Choice(None, 120), "asking again changes nothing"
    scheduler.arrive(0, 60)
    assert scheduler.choose(60).client == 0
    assert (scheduler.held_ns, scheduler.lost_turns) == (40, 0)


def test_who_does_not_come_loses_the_turn_and_what_it_was_owed() -> None:
    scheduler = Scheduler(clients_of(4, 1), hold_ns=100)
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert [run(scheduler, 0, 10), run(scheduler, 10, 10)] == [0, 1]
    scheduler.arrive(1, 20)
    assert scheduler.choose(20) == Choice(None, 120)
    assert scheduler.choose(120).client == 1
    assert (scheduler.held_ns, scheduler.lost_turns) == (100, 1)
    scheduler.finish(1, 130, 10)
    for now in range(130, 1130, 10):
        scheduler.arrive(1, now)
        assert run(scheduler, now, 10) == 1, "nothing is held for a client that lost its turn"
    scheduler.arrive(1, 1130)
    scheduler.arrive(0, 1130)
    found = [run_again(scheduler, 1130 + 10 * place) for place in range(5)]
    assert sorted(found) == [0, 0, 0, 0, 1], "its share again, and nothing for the time it was away"


def run_again(scheduler: Scheduler, now: int) -> int:
    client = run(scheduler, now, 10)
    scheduler.arrive(client, now + 10)
    return client


def test_nothing_is_held_for_a_slow_client_before_it_has_been_quick() -> None:
    scheduler = Scheduler(clients_of(1, 1, priorities=(2, 1)), "priority", hold_ns=100)
    scheduler.arrive(1, 0)
    scheduler.enter(0, 0)
    assert scheduler.choose(0) == Choice(None, 100)
    assert scheduler.choose(100).client == 1
    scheduler.arrive(0, 500)  # too late
    scheduler.finish(1, 600, 500)
    scheduler.arrive(1, 600)
    assert run(scheduler, 600, 10) == 0
    assert scheduler.choose(610).client == 1, "it is not held for, as it was slow"
    assert (scheduler.held_ns, scheduler.lost_turns) == (100, 2)
    scheduler.arrive(0, 620)  # quick this time
    scheduler.finish(1, 700, 90)
    scheduler.arrive(1, 700)
    assert run(scheduler, 700, 10) == 0
    assert scheduler.choose(710) == Choice(None, 810)


def test_a_slow_client_gets_another_chance_ever_more_seldom() -> None:
    """It comes late each time. Held for at a turn, then after 1, 2, 4, 8, 16, 16 turns without."""
    scheduler = Scheduler(clients_of(1, 1, priorities=(2, 1)), "priority", hold_ns=100)
    scheduler.enter(0, 0)
    now, held = 0, []
    for _ in range(60):
        scheduler.arrive(1, now)
        choice = scheduler.choose(now)
        held.append(choice.client is None)
        if held[-1]:
            now += 100
            choice = scheduler.choose(now)
        assert choice.client == 1
        scheduler.arrive(0, now + 500)
        scheduler.finish(1, now + 500, 500)
        now += 500
        assert run(scheduler, now, 10) == 0
        now += 10
    places = [place for place, was in enumerate(held) if was]
    assert [after - before - 1 for before, after in pairwise(places)] == [1, 2, 4, 8, 16, 16]


def test_nothing_is_held_while_nobody_waits() -> None:
    scheduler = Scheduler(clients_of(1, 1, priorities=(2, 1)), "priority", hold_ns=100)
    scheduler.arrive(0, 0)
    scheduler.enter(1, 0)
    assert run(scheduler, 0, 10) == 0
    assert scheduler.choose(10) == Choice(None, None)
    scheduler.arrive(1, 1000)
    assert scheduler.choose(1000) == Choice(None, 1100), "the hold begins when somebody waits"
    assert scheduler.held_ns == 0


def test_a_hold_ends_with_the_one_that_waited() -> None:
    scheduler = Scheduler(clients_of(4, 1), hold_ns=100)
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert [run(scheduler, 0, 10), run(scheduler, 10, 10)] == [0, 1]
    scheduler.arrive(1, 20)
    assert scheduler.choose(20).until_ns == 120
    scheduler.end(1, 70)
    assert scheduler.choose(70) == Choice(None, None)
    assert (scheduler.held_ns, scheduler.lost_turns) == (50, 0)


def test_without_a_hold_it_conserves_work_strictly() -> None:
    scheduler = Scheduler(clients_of(100, 1), hold_ns=0)
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert run(scheduler, 0) == 0
    assert run(scheduler, NS_PER_MS) == 1
    assert scheduler.held_ns == 0


@settings(max_examples=60)
@given(
    st.sampled_from(GATED),
    st.lists(st.floats(0.1, 50), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["work", "away", "end"])), max_size=80),
)
def test_it_conserves_work_where_nothing_is_held(
    discipline: str, weights: list[float], events: list[tuple[int, str]]
) -> None:
    """After any events: as long as somebody waits, somebody runs; and who is chosen did wait."""
    scheduler = Scheduler(clients_of(*weights), discipline, hold_ns=0)
    states = dict.fromkeys(range(len(weights)), "away")
    for now, (index, event) in enumerate(events):
        index %= len(weights)
        state = states[index]
        if event == "end" and state != "ended":
            scheduler.end(index, now)
            states[index] = "ended"
        elif state in ("away", "working") and event == "work":
            scheduler.arrive(index, now, deadline_ns=now + 50 if index else None)
            states[index] = "waiting"
        elif state == "working":
            scheduler.leave(index, now)
            states[index] = "away"
        elif state == "running":
            scheduler.finish(index, now, 1)
            states[index] = "working"
        client = scheduler.choose(now).client
        if client is not None:
            assert states[client] == "waiting"
            states[client] = "running"
        held = list(states.values())
        assert held.count("running") == 1 or "waiting" not in held
        assert [scheduler.state(index) is State.RUNNING for index in states] == [one == "running" for one in held]
    assert scheduler.held_ns == 0


def test_paused_clients_wait_for_the_next_change() -> None:
    scheduler = Scheduler(clients_of("0:0,1:100", "0:0,1:200"))
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert scheduler.choose(0) == Choice(None, 100 * NS_PER_MS)
    assert scheduler.choose(99 * NS_PER_MS).client is None
    assert scheduler.choose(100 * NS_PER_MS).client == 0
    assert scheduler.weight(0) == 1


def test_the_requirements_timeline() -> None:
    """Who is chosen at the edges of its three segments."""
    for ms, expected in ((0, "BBCBB"), (4999, "BBCBB"), (5000, "AAAAA"), (19999, "AAAAA"), (20000, "BABBCB")):
        scheduler = Scheduler(clients_of(*THREE_SEGMENTS), "weighted")
        for index in range(3):
            scheduler.arrive(index, ms * NS_PER_MS)
        found = ""
        for _ in expected:
            client = scheduler.choose(ms * NS_PER_MS).client
            assert client is not None
            found += "ABC"[client]
            scheduler.finish(client, ms * NS_PER_MS, NS_PER_MS)
            scheduler.arrive(client, ms * NS_PER_MS)
        assert sorted(found) == sorted(expected), ms


def test_a_pause_that_comes_while_a_client_runs_lets_it_finish() -> None:
    scheduler = Scheduler(clients_of("1:0,0:10,1:50", "1:0"), "fair-time")
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert scheduler.choose(0).client == 0
    scheduler.finish(0, 20 * NS_PER_MS, 20 * NS_PER_MS)
    scheduler.arrive(0, 20 * NS_PER_MS)
    assert scheduler.weight(0) == 0
    assert run(scheduler, 20 * NS_PER_MS) == 1
    scheduler.leave(1, 21 * NS_PER_MS)
    assert scheduler.choose(21 * NS_PER_MS) == Choice(None, 50 * NS_PER_MS)
    assert scheduler.choose(50 * NS_PER_MS).client == 0


@pytest.mark.parametrize("discipline", ALL)
def test_all_paused_for_ever_is_an_error(discipline: str) -> None:
    scheduler = Scheduler(clients_of(0, "1:0,0:10"), discipline)
    scheduler.arrive(0, 0)
    assert scheduler.choose(0).client is None, "the other one may come yet"
    scheduler.arrive(1, 20 * NS_PER_MS)
    with pytest.raises(SchedulingError, match="the weight of A, B is 0 and stays so"):
        scheduler.choose(20 * NS_PER_MS)


def test_paused_for_ever_is_an_error_only_when_the_others_have_ended() -> None:
    scheduler = Scheduler(clients_of(0, 1))
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert run(scheduler, 0) == 1
    assert scheduler.choose(5).client is None
    scheduler.end(1, 10)
    with pytest.raises(SchedulingError, match="the weight of A is 0"):
        scheduler.choose(10)


def test_fifo_serves_who_came_first() -> None:
    scheduler = Scheduler(clients_of(1, 100, 1), "fifo")
    scheduler.arrive(2, 5)
    scheduler.arrive(1, 6)
    scheduler.arrive(0, 6)
    assert [run(scheduler, 10 + place) for place in range(3)] == [2, 0, 1]
    assert scheduler.bound(0) == 2


def test_round_robin_passes_over_who_is_away() -> None:
    scheduler = Scheduler(clients_of(9, 1, 1, 1), "round-robin")
    for index in (0, 1, 3):
        scheduler.arrive(index, 0)
    found = []
    for now in range(6):
        client = run(scheduler, now, 1)
        scheduler.arrive(client, now + 1)
        found.append(client)
    assert found == [0, 1, 3, 0, 1, 3]
    assert sequence(Scheduler(clients_of(9, 1, 1), "round-robin"), 6) == "ABCABC"


def test_priority_is_strict_and_shares_within_a_level() -> None:
    scheduler = Scheduler(clients_of(1, 2, 1, priorities=(100, 50, 50)), "priority")
    for index in range(3):
        scheduler.arrive(index, 0)
    found = []
    for now in range(5):
        client = run(scheduler, now, 1)
        scheduler.arrive(client, now + 1)
        found.append(client)
    assert found == [0] * 5
    scheduler.end(0, 5)
    for now in range(6, 12):
        client = run(scheduler, now, 1)
        scheduler.arrive(client, now + 1)
        found.append(client)
    assert found[5:] == [1, 2, 1, 1, 2, 1]
    assert scheduler.bound(0) is None


def test_the_accelerator_is_held_for_a_higher_priority() -> None:
    scheduler = Scheduler(clients_of(1, 1, priorities=(1, 2)), "priority", hold_ns=100)
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert run(scheduler, 0, 10) == 1
    assert scheduler.choose(10) == Choice(None, 110)
    assert scheduler.choose(110).client == 0


def test_the_earliest_deadline_goes_first_and_the_rest_share() -> None:
    scheduler = Scheduler(clients_of(1, 1, 2, 1), "deadline")
    scheduler.arrive(0, 0, deadline_ns=500)
    scheduler.arrive(1, 0, deadline_ns=300)
    scheduler.arrive(2, 0)
    scheduler.arrive(3, 0)
    found = [run(scheduler, 0)]
    scheduler.leave(1, 1)
    found.append(run(scheduler, 1))
    scheduler.end(0, 2)
    scheduler.arrive(1, 3)  # its next job has no deadline: it belongs to the rest
    for now in range(4, 12):
        client = run(scheduler, now, 1)
        scheduler.arrive(client, now + 1)
        found.append(client)
    assert found[:2] == [1, 0]
    assert [found[2:].count(index) for index in (1, 2, 3)] == [2, 4, 2]
    scheduler.leave(1, 12)
    scheduler.arrive(1, 12, deadline_ns=10**9)
    assert run(scheduler, 12) == 1
    assert scheduler.bound(1) is None


def test_a_new_job_counts_with_its_own_deadline() -> None:
    """While its host work is done, whether it was away in between or not: the one that is due before goes first."""
    for away in (True, False):
        scheduler = Scheduler(clients_of(1, 1, 9), "deadline", hold_ns=100)
        scheduler.arrive(0, 0, deadline_ns=10)
        assert run(scheduler, 0, 5) == 0
        if away:
            scheduler.leave(0, 6)
        scheduler.enter(0, 7, 1000)
        scheduler.arrive(1, 8, deadline_ns=500)
        scheduler.arrive(2, 8)
        assert run(scheduler, 8, 5) == 1
        scheduler.leave(1, 13)
        assert scheduler.choose(13) == Choice(None, 113), "it is due, and held for"
        scheduler.enter(0, 20)
        assert scheduler.choose(20).client == 2, "without a deadline it is one of the rest, whose turn it is not"


def test_free_has_no_gate() -> None:
    scheduler = Scheduler(clients_of(1, 0, 5), "free")
    for index in range(3):
        scheduler.arrive(index, 0)
    assert not scheduler.exclusive
    assert [scheduler.choose(0).client for _ in range(3)] == [0, 2, None]


def test_bounds() -> None:
    assert [Scheduler(clients_of(4, 2, 1)).bound(index) for index in range(3)] == [2, 5, 12]
    lines = Scheduler([Client(timeline=Timeline.parse(text)) for text in THREE_SEGMENTS])
    assert [lines.bound(index) for index in range(3)] == [10, 1, 10]
    assert Scheduler(clients_of(0, 1)).bound(0) is None
    assert Scheduler(clients_of(0, 1)).bound(1) == 0
    assert [Scheduler(clients_of(1, 1), name).bound(0) for name in ALL] == [1, 1, 2, None, None, None, None]


def test_misuse_is_named() -> None:
    with pytest.raises(UsageError, match="no scheduler discipline 'wrr': use fifo, round-robin, weighted"):
        Scheduler(clients_of(1), "wrr")
    with pytest.raises(UsageError, match="at least one task"):
        Scheduler([])
    with pytest.raises(UsageError, match="can't be held for -1 ns"):
        Scheduler(clients_of(1), hold_ns=-1)
    scheduler = Scheduler(clients_of(1, 1))
    scheduler.arrive(0, 0)
    with pytest.raises(SchedulingError, match="Task A is waiting, and not absent or returning"):
        scheduler.arrive(0, 0)
    with pytest.raises(SchedulingError, match="Task B is absent, and not running"):
        scheduler.finish(1, 0, 0)
    scheduler.end(0, 0)
    with pytest.raises(SchedulingError, match="Task A is ended"):
        scheduler.enter(0, 0)


def test_who_ends_while_it_runs_gives_the_accelerator_back() -> None:
    scheduler = Scheduler(clients_of(1, 1), "fair-time")
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    assert scheduler.choose(0).client == 0
    scheduler.end(0, 5)
    assert scheduler.choose(5).client == 1
