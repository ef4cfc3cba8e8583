"""Chunks on a clock that the tests move: which action of which chunk is executed when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_inputs import spec_of

from edgewright.errors import GenerationError
from edgewright.runtime.policy.chunks import ActionBuffer, Chunking, Request

HORIZON, RATE = 8, 10.0
MODES = ["switch", "committed", "ensemble"]


class Clock:
    """Seconds that move when they are told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def ticks(self, count: float) -> None:
        self.now_s += count / RATE


def buffer_of(**changes: Any) -> tuple[ActionBuffer, Clock]:
    settings: dict[str, Any] = {"rate_hz": RATE, "horizon": HORIZON, "steps_to_run": 5, "delay": 0}
    clock = Clock()
    return ActionBuffer(Chunking(**{**settings, **changes}), clock), clock


def chunk(number: int) -> np.ndarray:
    """Actions that say which they are: [chunk, index]."""
    return np.stack([np.full(HORIZON, number), np.arange(HORIZON)], axis=1).astype(np.float32)


def told(action: np.ndarray | None) -> tuple[int, int] | None:
    return None if action is None else (int(action[0]), int(action[1]))


def asked(buffer: ActionBuffer) -> Request:
    request = buffer.due()
    assert request is not None
    return request


def test_chunks_one_after_another() -> None:
    """Inference takes no time: five actions of each chunk."""
    buffer, clock = buffer_of()
    seen = []
    for _ in range(12):
        request = buffer.due()
        if request is not None:
            assert request.committed is None
            assert buffer.deliver(request, chunk(request.number))
        seen.append(told(buffer.next().action))
        clock.ticks(1)
    assert seen == [*[(1, i) for i in range(5)], *[(2, i) for i in range(5)], (3, 0), (3, 1)]
    assert buffer.counts == {"executed": 12}


def test_the_robot_waits_for_its_first_chunk() -> None:
    """It stood still since the observation, so the chunk begins where it is."""
    buffer, clock = buffer_of()
    request = asked(buffer)
    for _ in range(3):
        assert buffer.next().state == "starved"
        assert buffer.due() is None, "one request at a time"
        clock.ticks(1)
    assert buffer.deliver(request, chunk(1))
    assert told(buffer.next().action) == (1, 0)
    assert buffer.counts == {"starved": 3, "executed": 1}


def test_it_asks_ahead_and_enters_a_late_chunk_in_time() -> None:
    buffer, clock = buffer_of(delay=2)
    buffer.deliver(asked(buffer), chunk(1))
    seen: list[Any] = []
    pending: Request | None = None
    for tick in range(9):
        pending = buffer.due() or pending
        if tick == 6 and pending is not None:
            assert pending.start == 3
            assert buffer.deliver(pending, chunk(2))
        seen.append(told(buffer.next().action))
        clock.ticks(1)
    assert seen == [*[(1, i) for i in range(6)], (2, 3), (2, 4), (2, 5)]
    assert buffer.counts["late"] == 1
    assert buffer.counts["missed"] == 3


def test_a_chunk_that_comes_when_all_of_it_is_over() -> None:
    buffer, clock = buffer_of(delay=1)
    buffer.deliver(asked(buffer), chunk(1))
    for _ in range(4):
        assert buffer.due() is None
        buffer.next()
        clock.ticks(1)
    request = asked(buffer)
    assert request.start == 4
    for _ in range(10):
        buffer.next()
        clock.ticks(1)
    assert not buffer.deliver(request, chunk(2))
    assert buffer.counts["useless"] == 1
    assert buffer.counts["missed"] == HORIZON
    again = asked(buffer)
    assert buffer.deliver(again, chunk(3))
    assert told(buffer.next().action) == (3, 0)


def test_committed_actions_are_those_that_will_run() -> None:
    buffer, clock = buffer_of(mode="committed", delay=3)
    first = asked(buffer)
    assert first.committed is None, "nothing is there to be committed"
    buffer.deliver(first, chunk(1))
    for _ in range(2):
        assert buffer.due() is None
        buffer.next()
        clock.ticks(1)
    request = asked(buffer)
    assert request.start == 2
    np.testing.assert_array_equal(request.committed, chunk(1)[2:5])
    answer = chunk(2)
    answer[:3] = request.committed
    seen = []
    for tick in range(2, 8):
        if tick == 5:
            assert buffer.deliver(request, answer)
        seen.append(told(buffer.next().action))
        clock.ticks(1)
    assert seen == [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5)]
    assert "late" not in buffer.counts


@pytest.mark.parametrize(("most", "wanted"), [(None, 3), (2, 2), (0, 0)])
def test_not_more_is_committed_than_may_be(most: int | None, wanted: int) -> None:
    buffer, clock = buffer_of(mode="committed", delay=3, most_committed=most)
    buffer.deliver(asked(buffer), chunk(1))
    for _ in range(2):
        buffer.next()
        clock.ticks(1)
    committed = asked(buffer).committed
    assert (0 if committed is None else len(committed)) == wanted


def test_nothing_is_committed_beyond_the_chunk() -> None:
    buffer, clock = buffer_of(mode="committed", delay=4, steps_to_run=8)
    buffer.deliver(asked(buffer), chunk(1))
    buffer.next()
    clock.ticks(6)
    committed = asked(buffer).committed
    np.testing.assert_array_equal(committed, chunk(1)[6:])


def test_the_delay_is_the_longest_of_the_last() -> None:
    buffer, clock = buffer_of(delay=None)
    assert buffer.expected_delay == 0
    for took, expected in ((2.5, 3), (1.0, 3), (3.9, 4), (20.0, HORIZON - 1)):
        request = asked(buffer)
        clock.ticks(took)
        buffer.deliver(request, chunk(1))
        assert buffer.expected_delay == expected
        buffer.reset()
    for _ in range(16):
        request = asked(buffer)
        clock.ticks(1)
        buffer.deliver(request, chunk(1))
        buffer.reset()
    assert buffer.expected_delay == 1, "long ago is forgotten"


def online_mean(chunks: np.ndarray, m: float) -> list[float]:
    """ACT's ensemble as LeRobot keeps it: a running mean for each coming tick, of one chunk per tick."""
    horizon = chunks.shape[1]
    weights = np.exp(-m * np.arange(horizon))
    sums = np.cumsum(weights)
    result, mean, count = [], np.empty(0), np.empty(0, int)
    for one in chunks:
        known = len(mean)
        mean = (mean * sums[count - 1] + one[:known] * weights[count]) / sums[count] if known else mean
        mean, count = np.append(mean, one[known:]), np.append(count + 1, np.ones(horizon - known, int))
        result.append(float(mean[0]))
        mean, count = mean[1:], count[1:]
    return result


@pytest.mark.parametrize("m", [0.01, 0.3, 0.0, -0.5])
def test_the_ensemble_is_acts(m: float) -> None:
    chunks = np.random.default_rng(4).normal(size=(25, HORIZON)).astype(np.float32)
    buffer, clock = buffer_of(mode="ensemble", weight=m)
    got = []
    for values in chunks:
        assert buffer.deliver(asked(buffer), values[:, None])
        planned = buffer.next()
        assert planned.action is not None
        got.append(float(planned.action[0]))
        clock.ticks(1)
    np.testing.assert_allclose(got, online_mean(chunks, m), rtol=0, atol=1e-6)


def test_an_ensemble_of_chunks_that_come_later() -> None:
    """Two chunks for ticks 0 and 3 on: the mean where both reach, the newer one alone behind."""
    buffer, clock = buffer_of(mode="ensemble", weight=0.5)
    buffer.deliver(asked(buffer), np.full((HORIZON, 1), 1.0, np.float32))
    seen = []
    for tick in range(11):
        if tick == 3:
            buffer.deliver(asked(buffer), np.full((HORIZON, 1), 3.0, np.float32))
        planned = buffer.next()
        seen.append(None if planned.action is None else float(planned.action[0]))
        clock.ticks(1)
    mean = (1.0 + 3.0 * np.exp(-0.5)) / (1.0 + np.exp(-0.5))
    np.testing.assert_allclose(seen, [1.0] * 3 + [mean] * 5 + [3.0] * 3, rtol=0, atol=1e-6)


def test_a_tick_is_executed_once() -> None:
    buffer, clock = buffer_of()
    buffer.deliver(asked(buffer), chunk(1))
    assert told(buffer.next().action) == (1, 0)
    clock.ticks(0.5)
    early = buffer.next()
    assert (early.state, early.action) == ("early", None)
    clock.ticks(0.5)
    assert told(buffer.next().action) == (1, 1)
    clock.ticks(3)
    assert told(buffer.next().action) == (1, 4)
    assert buffer.counts["skipped"] == 2


def test_a_request_after_the_tick_was_executed_is_for_the_next() -> None:
    buffer, _ = buffer_of(steps_to_run=1)
    buffer.deliver(asked(buffer), chunk(1))
    buffer.next()
    assert asked(buffer).start == 1


def test_requests_that_are_no_longer_open() -> None:
    buffer, _ = buffer_of()
    first = asked(buffer)
    buffer.give_up(first)
    second = asked(buffer)
    assert not buffer.deliver(first, chunk(1))
    buffer.give_up(first)
    assert buffer.open is second
    buffer.reset()
    assert not buffer.deliver(second, chunk(2))
    assert buffer.counts == {"stale": 2}
    assert buffer.next().state == "starved"


def test_nobody_changes_what_will_be_executed() -> None:
    buffer, clock = buffer_of()
    mine = chunk(1)
    buffer.deliver(asked(buffer), mine)
    mine[:] = 9
    given = buffer.next().action
    assert told(given) == (1, 0)
    assert given is not None
    given[:] = 9
    clock.ticks(1)
    assert told(buffer.next().action) == (1, 1)


@pytest.mark.parametrize("wrong", [chunk(1)[:5], chunk(1)[0], np.full((HORIZON, 2), np.nan)])
def test_chunks_that_are_none(wrong: np.ndarray) -> None:
    buffer, _ = buffer_of()
    request = asked(buffer)
    with pytest.raises(GenerationError, match="can't be executed: it must have 8 actions"):
        buffer.deliver(request, wrong)
    assert buffer.deliver(request, chunk(1)), "the request is still open"


@pytest.mark.parametrize(
    ("name", "value"),
    [("rate_hz", 0.0), ("rate_hz", float("nan")), ("steps_to_run", 0), ("steps_to_run", 9), ("mode", "swap"),
     ("delay", 8), ("delay", -1), ("most_committed", 8), ("weight", float("inf"))],
)  # fmt: skip
def test_chunkings_that_cant_be(name: str, value: Any) -> None:
    with pytest.raises(GenerationError, match=f"with {name} "):
        buffer_of(**{name: value})


def test_the_chunking_of_a_policy() -> None:
    made = Chunking.of(spec_of("pi05", steps_to_run=7), 20.0, mode="committed")
    assert (made.horizon, made.steps_to_run, made.rate_hz, made.mode) == (12, 7, 20.0, "committed")


LOOPS = st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 14.0)), min_size=20, max_size=60)


@given(LOOPS, st.sampled_from(MODES), st.integers(1, HORIZON), st.sampled_from([None, 0, 2, 5]))
def test_every_action_is_of_its_tick(loop: Any, mode: Any, steps_to_run: int, delay: int | None) -> None:
    """Whatever the loop's pace and the inference's delays: an action belongs to its tick, and no tick comes twice.

    The actions say which tick they are for: that of the request plus their index; a robot that stood still since the
    request moves the chunk, which is followed here.
    """
    buffer, clock = buffer_of(mode=mode, steps_to_run=steps_to_run, delay=delay)
    answer: tuple[Request, float] | None = None
    shift: dict[int, int] = {}
    executed: list[int] = []
    newest, asked_for = 0, -1
    for pace, took in loop:
        request = buffer.due()
        if request is not None:
            assert answer is None
            answer = request, clock.now_s + took / RATE
            if request.committed is not None:
                assert len(request.committed) <= buffer.expected_delay
                np.testing.assert_array_equal(request.committed[0], buffer._action(request.start))
        if answer is not None and clock.now_s >= answer[1]:
            number, stood = answer[0].number, not executed or executed[-1] < answer[0].start
            shift[number] = max(buffer.tick, asked_for + 1) if stood else answer[0].start
            if buffer.deliver(answer[0], chunk(number)):
                newest = number
            answer = None
        planned = buffer.next()
        asked_for = planned.tick
        if planned.state == "run":
            assert planned.action is not None
            assert not executed or planned.tick > executed[-1]
            executed.append(planned.tick)
            if mode != "ensemble":
                number, index = told(planned.action) or (0, 0)
                assert number == newest
                assert index == planned.tick - shift[number]
        clock.ticks(pace)
    assert buffer.counts["executed"] == len(executed)
    assert buffer.counts["executed"] + buffer.counts["starved"] <= len(loop)


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=30), st.floats(-1, 1))
def test_an_ensemble_stays_between_its_chunks(values: list[float], m: float) -> None:
    buffer, clock = buffer_of(mode="ensemble", weight=m)
    for index, value in enumerate(values):
        buffer.deliver(asked(buffer), np.full((HORIZON, 1), value, np.float32))
        reaching = values[max(0, index - HORIZON + 1) : index + 1]
        planned = buffer.next()
        assert planned.action is not None
        assert min(reaching) - 1e-5 <= planned.action[0] <= max(reaching) + 1e-5
        clock.ticks(1)
