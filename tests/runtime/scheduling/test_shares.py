"""Sharing by weight: sequences, and what holds for any weights and costs."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import LETTERS, clients_of, saturated, sequence

from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.seat import State
from edgewright.runtime.scheduling.timeline import NS_PER_MS

#: Weights from even to a thousand to one, whole and not.
WEIGHTS = st.lists(
    st.sampled_from([0.001, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 10.0, 1e9]) | st.floats(0.01, 100),
    min_size=1,
    max_size=7,
)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((4, 2, 1), "ABACABA" * 3),
        ((0.5, 0.25, 0.125), "ABACABA" * 3),
        ((4e8, 2e8, 1e8), "ABACABA" * 3),
        ((1, 2, 4), "CBCACBC" * 2),
        ((1, 1, 1), "ABC" * 4),
        ((5, 1, 1), "ABAACAA" * 2),
        ((1.5, 1), "ABABA" * 2),
        ((3,), "AAAA"),
        ((0, 2, 0, 1), "BDB" * 4),
    ],
)
def test_sequences_by_count(weights: tuple[float, ...], expected: str) -> None:
    assert sequence(Scheduler(clients_of(*weights)), len(expected)) == expected


def test_a_large_weight_beside_a_small_one() -> None:
    """A share of a millionth comes once in a million quanta, and not before."""
    found = sequence(Scheduler(clients_of(1000, 0.001)), 3000)
    assert found.count("B") == 1


@settings(max_examples=40)
@given(WEIGHTS)
def test_shares_by_count_are_within_one_quantum_at_any_time(weights: list[float]) -> None:
    exact = [Fraction(weight) for weight in weights]
    total, served = sum(exact), [0] * len(weights)
    for done, (client, _) in enumerate(saturated(Scheduler(clients_of(*weights)), 300), start=1):
        served[client] += 1
        lags = [float(done * weight / total) - count for weight, count in zip(exact, served, strict=True)]
        assert max(lags) < 1 + 1e-6
        assert min(lags) > -1 - 1e-6


@settings(max_examples=40)
@given(WEIGHTS)
def test_nobody_starves(weights: list[float]) -> None:
    scheduler = Scheduler(clients_of(*weights))
    waited = [0] * len(weights)
    for client, _ in saturated(scheduler, 400):
        for index in range(len(weights)):
            waited[index] = 0 if index == client else waited[index] + 1
            bound = scheduler.bound(index)
            assert bound is not None
            assert waited[index] <= bound


@settings(max_examples=60)
@given(WEIGHTS, st.integers(0, 10**9))
def test_nobody_starves_where_others_come_and_go(weights: list[float], seed: int) -> None:
    """Some go after each quantum, some never, and come back after a while: the bound is exceeded by a few at most."""
    dice = random.Random(seed)
    scheduler = Scheduler(clients_of(*weights), hold_ns=0)
    goes = [dice.choice([0, 0.05, 0.5, 1]) for _ in weights]
    comes = dice.choice([0.02, 0.3, 1])
    waited, away = dict.fromkeys(range(len(weights)), 0), set[int]()
    for index in waited:
        scheduler.arrive(index, 0)
    for now in range(1, 400):
        client = scheduler.choose(now).client
        assert client is not None or len(away) == len(weights)
        if client is not None:
            bound = scheduler.bound(client)
            assert bound is not None
            assert waited[client] < bound + len(weights)
            for index in waited.keys() - away:
                waited[index] += 1
            waited[client] = 0
            scheduler.finish(client, now, 1)
            if dice.random() < goes[client]:
                scheduler.leave(client, now)
                away.add(client)
            else:
                scheduler.arrive(client, now)
        for index in [index for index in sorted(away) if dice.random() < comes]:
            away.remove(index)
            scheduler.arrive(index, now)


def test_the_bound_is_reached() -> None:
    """It promises no more than what happens."""
    for weights in ((1.0, 50.0, 1.0), (29.5, 5.0, 0.1, 2.0, 7.0, 5.0, 2.0, 7.0)):
        scheduler = Scheduler(clients_of(*weights))
        found = sequence(scheduler, 1000)
        heaviest = max(range(len(weights)), key=lambda index: weights[index])
        gaps = found.strip(LETTERS[:heaviest] + LETTERS[heaviest + 1 :]).split(LETTERS[heaviest])
        assert max(map(len, gaps)) == scheduler.bound(heaviest)


@settings(max_examples=40)
@given(WEIGHTS, st.integers(0, 10**9), st.booleans())
def test_shares_by_time_are_within_one_largest_quantum(weights: list[float], seed: int, even: bool) -> None:
    """From the first quantum on, when nothing is known about costs; costs that jump about may exceed it."""
    dice = random.Random(seed)
    usual = [dice.choice([0.1, 1.0, 14.6, 71.0, 180.0]) * NS_PER_MS for _ in weights]
    largest = max(usual) if even else 1.5 * max(usual)
    scheduler = Scheduler(clients_of(*weights), "fair-time")
    served, total, time = [0.0] * len(weights), sum(weights), 0
    costs = lambda client: int(usual[client] if even else usual[client] * dice.uniform(0.5, 1.5))  # noqa: E731
    for client, cost in saturated(scheduler, 120, costs):
        served[client] += cost
        time += cost
        for weight, mine in zip(weights, served, strict=True):
            assert abs(time * weight / total - mine) <= largest * (1 + 1e-6) * (1 if even else 1.5)


def test_shares_by_time_hold_where_phases_cost_differently() -> None:
    """A client that alternates expensive and cheap steps gets its time, not its turns."""
    scheduler = Scheduler(clients_of(1, 1), "fair-time")
    for index in (0, 1):
        scheduler.arrive(index, 0, "decode")
    now, served, turn = 0, [0, 0], 0
    for _ in range(2000):
        client = scheduler.choose(now).client
        assert client is not None
        turn += client == 0
        cost = (180 if turn % 2 else 15) * NS_PER_MS if client == 0 else 20 * NS_PER_MS
        now += cost
        served[client] += cost
        scheduler.finish(client, now, cost)
        scheduler.arrive(client, now, "decode" if client or turn % 2 == 0 else "prefill")
        assert abs(served[0] - served[1]) <= 2 * 180 * NS_PER_MS
    assert min(served) > 0.49 * sum(served)


def serve(scheduler: Scheduler, now: int) -> int:
    """Let one quantum of 1 ms run, and its client wait again; returns whose it was."""
    client = scheduler.choose(now).client
    assert client is not None
    scheduler.finish(client, now + NS_PER_MS, NS_PER_MS)
    scheduler.arrive(client, now + NS_PER_MS)
    return client


@pytest.mark.parametrize("discipline", ["weighted", "fair-time"])
def test_who_wakes_has_hoarded_nothing(discipline: str) -> None:
    scheduler = Scheduler(clients_of(1, 1, 1), discipline)
    scheduler.arrive(0, 0)
    scheduler.arrive(1, 0)
    now = 0
    for _ in range(1000):
        serve(scheduler, now)
        now += NS_PER_MS
    scheduler.arrive(2, now)
    found = []
    for _ in range(12):
        found.append(serve(scheduler, now))
        now += NS_PER_MS
    assert [found.count(index) for index in range(3)] == [4, 4, 4]
    assert (2, 2) not in pairwise(found)


def test_who_goes_and_comes_gets_no_more_than_its_share() -> None:
    """A client that is away for a moment after each of its quanta is not served at each return."""
    scheduler = Scheduler(clients_of(1, 1, 1, 1))
    for index in range(4):
        scheduler.arrive(index, 0)
    served, now = [0] * 4, 0
    for _ in range(400):
        client = scheduler.choose(now).client
        assert client is not None
        served[client] += 1
        now += NS_PER_MS
        scheduler.finish(client, now, NS_PER_MS)
        if client == 3:
            scheduler.leave(3, now)
        scheduler.arrive(client, now)
    assert max(served) - min(served) <= 2


def test_what_a_client_that_goes_was_owed_is_shared_by_the_others() -> None:
    """After C has gone without its turn the others go on 2 to 1, from where they are."""
    scheduler = Scheduler(clients_of(2, 1, 1))
    for index in range(3):
        scheduler.arrive(index, 0)
    assert [serve(scheduler, place) for place in range(2)] == [0, 1]
    scheduler.end(2, 2)
    assert scheduler.state(2) is State.ENDED
    found = [serve(scheduler, 3 + place) for place in range(300)]
    assert 199 <= found.count(0) <= 201
    assert found.count(0) + found.count(1) == 300


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=6))
def test_shares_hold_in_every_segment(weights: list[tuple[int, int, int]]) -> None:
    """Whatever the weights were before, a new segment begins with nobody owed anything."""
    length = 50
    lines = [",".join(f"{row[index]}:{place * length}" for place, row in enumerate(weights)) for index in range(3)]
    scheduler = Scheduler(clients_of(*lines))
    for index in range(3):
        scheduler.arrive(index, 0)
    for place, row in enumerate(weights):
        served, now = [0, 0, 0], place * length * NS_PER_MS
        for done in range(1, length + 1):
            if not any(row):
                break
            served[serve(scheduler, now)] += 1
            now += NS_PER_MS
            if place == 0 or weights[place - 1] != row:
                for weight, count in zip(row, served, strict=True):
                    assert abs(done * weight / sum(row) - count) < 1 + 1e-6
        assert all(count == 0 for weight, count in zip(row, served, strict=True) if not weight)
