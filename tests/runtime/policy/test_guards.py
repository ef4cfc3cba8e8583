"""Guards: whatever a policy plans, what is sent is finite, within range, and as slow as the limits say."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgewright.errors import GenerationError
from edgewright.runtime.policy.guards import Guard, Watchdog
from edgewright.runtime.policy.spec import Limits

NUMBERS = 3
ANY = arrays(np.float64, NUMBERS, elements=st.floats(width=64))
FALLBACKS = ["hold", "last-chunk", "stop"]


def sent(guard: Guard, action: Any, **more: Any) -> list[float] | None:
    got = guard.step(action, **more).action
    return None if got is None else got.tolist()


def limits(**changes: Any) -> Limits:
    return Limits(**{"minimum": (-1.0, -2.0, 0.1), "maximum": (1.0, 2.0, 0.3), **changes})


def test_without_limits_finite_actions_pass() -> None:
    guard = Guard(Limits(), NUMBERS)
    assert sent(guard, [1.0, -2.0, 3e30]) == np.float32([1, -2, 3e30]).tolist()
    assert sent(guard, [math.nan, 0.0, 0.0]) == np.float32([1, -2, 3e30]).tolist()
    assert sent(guard, [1e39, 0.0, 0.0]) == np.float32([1, -2, 3e30]).tolist(), "infinite in float32"
    assert guard.counts == {"not-finite": 2}


def test_range_and_rate() -> None:
    guard = Guard(limits(rate=(0.5, 10.0, 10.0)), NUMBERS)
    first = guard.step([5.0, 0.0, 0.2])
    assert first.action is not None
    np.testing.assert_array_equal(first.action, np.float32([1.0, 0.0, 0.2]))
    assert [(one.reason, one.done, one.dimensions) for one in first.interventions] == [("range", "clipped", (0,))]
    second = guard.step([-1.0, -1.0, 0.9])
    assert second.action is not None
    np.testing.assert_allclose(second.action, [0.5, -1.0, 0.3], rtol=0, atol=1e-7)
    assert [(one.reason, one.dimensions, one.step) for one in second.interventions] == [
        ("range", (2,), 2),
        ("rate", (0,), 2),
    ]
    assert guard.counts == {"range": 2, "rate": 1}


def test_rounding_doesnt_exceed_a_rate() -> None:
    """Near 1000 the float32 numbers are 6e-5 apart, near 0.1 the nearest one is above it."""
    rate, seen = 0.1, []
    for start in np.linspace(0.0, 2000.0, 101):
        guard = Guard(Limits(rate=(rate,) * NUMBERS), NUMBERS)
        guard.reset([start, -start, 0.0])
        before = np.float32([start, -start, 0.0]).astype(np.float64)
        got = guard.step([1e6, -1e6, 1e6]).action
        assert got is not None
        change = np.abs(got.astype(np.float64) - before)
        assert (change <= rate).all()
        assert (change > rate - 3e-4).all()
        seen.append(np.abs((before + np.array([rate, -rate, rate])).astype(np.float32) - before) > rate)
    assert np.array(seen).any(), "or the rounding would not have been tried"


def test_a_known_place_makes_the_first_action_slow_too() -> None:
    guard = Guard(limits(rate=(0.5, 0.5, 0.5)), NUMBERS)
    guard.reset([0.0, 0.0, 0.2])
    assert sent(guard, [1.0, -1.0, 0.2]) == [0.5, -0.5, np.float32(0.2)]
    with pytest.raises(GenerationError, match="wrong \\(not-finite\\)"):
        guard.reset([0.0, math.inf, 0.0])
    with pytest.raises(GenerationError, match="wrong \\(shape\\)"):
        guard.reset([0.0])


@pytest.mark.parametrize(("fallback", "wanted"), [("hold", [0.5] * 3), ("last-chunk", [0.5] * 3), ("stop", None)])
@pytest.mark.parametrize("wrong", [[math.nan, 0, 0], [0, 0], None, [["a"]], [[0, 0, 0]], "xyz", [True] * 3, [1j] * 3])
def test_what_is_done_about_a_wrong_action(fallback: Any, wanted: Any, wrong: Any) -> None:
    guard = Guard(Limits(fallback=fallback), NUMBERS)
    guard.step([0.5] * 3)
    got = guard.step(wrong)
    assert (None if got.action is None else got.action.tolist()) == wanted
    assert [one.done for one in got.interventions] == [fallback]
    assert sum(guard.counts.values()) == 1
    assert sent(guard, [0.25] * 3) == (None if fallback == "stop" else [0.25] * 3)
    assert guard.stopped == (fallback == "stop")
    guard.reset()
    assert sent(guard, [0.75] * 3) == [0.75] * 3


@pytest.mark.parametrize("fallback", FALLBACKS)
@pytest.mark.parametrize("place", [None, [0.5, 0.5, 0.5]])
def test_a_robot_that_waits_for_its_first_chunk(fallback: Any, place: Any) -> None:
    guard = Guard(Limits(fallback=fallback, deadline_ms=50.0), NUMBERS)
    guard.reset(place)
    assert sent(guard, None) is None
    assert not guard.counts
    late = guard.step(None, waited_ms=51.0)
    assert (late.action, [one.done for one in late.interventions]) == (None, ["waited"])
    assert guard.admit(np.zeros((4, NUMBERS)), waited_ms=52.0)
    assert sent(guard, [0.25] * 3) == [0.25] * 3
    assert guard.counts == {"deadline": 2}
    assert not guard.admit(np.zeros((4, NUMBERS)), waited_ms=50.5), "it has begun"


def test_a_robot_outside_the_range_is_moved_in_slowly() -> None:
    guard = Guard(limits(rate=(0.5, 0.5, 0.5)), NUMBERS)
    guard.reset([3.0, 0.0, 0.2])
    assert [sent(guard, [0.0, 0.0, 0.2])[0] for _ in range(6)] == [2.5, 2.0, 1.5, 1.0, 0.5, 0.0]  # type: ignore[index]
    guard.reset([3.0, 0.0, 0.2])
    assert guard.step([math.nan] * 3).action.tolist() == np.float32([3.0, 0.0, 0.2]).tolist()  # type: ignore[union-attr]


def test_what_is_held_is_told() -> None:
    guard = Guard(Limits(jump=(0.5,) * NUMBERS), NUMBERS)
    assert not guard.step([0.0] * 3).held
    assert not guard.admit(np.full((2, NUMBERS), 9.0))
    for _ in range(3):
        got = guard.step([0.1] * 3)
        assert (got.held, got.interventions) == (True, ())
    assert guard.admit(np.zeros((2, NUMBERS)))
    assert not guard.step([0.1] * 3).held


def test_a_silence_of_the_loop() -> None:
    for fallback, wanted in (("hold", [0.5] * 3), ("last-chunk", [0.25] * 3), ("stop", None)):
        guard = Guard(Limits(fallback=fallback), NUMBERS)  # type: ignore[arg-type]
        assert guard.step(None, silent=True).action is None
        assert not guard.stopped
        assert sent(guard, [0.5] * 3) == [0.5] * 3
        assert sent(guard, [0.25] * 3, silent=True) == wanted
        assert guard.counts == {"watchdog": 2}


@pytest.mark.parametrize("fallback", FALLBACKS)
def test_before_the_first_chunk_nothing_is_wrong(fallback: Any) -> None:
    guard = Guard(Limits(fallback=fallback, deadline_ms=50.0), NUMBERS)
    assert sent(guard, None, waited_ms=10.0) is None
    assert sent(guard, [0.5] * 3) == [0.5] * 3
    assert not guard.counts


def test_the_deadline() -> None:
    action, held = [0.25] * 3, [0.5] * 3
    for fallback, wanted in (("hold", held), ("last-chunk", action), ("stop", None)):
        guard = Guard(Limits(fallback=fallback, deadline_ms=50.0), NUMBERS)  # type: ignore[arg-type]
        assert sent(guard, held, waited_ms=50.0) == held
        assert sent(guard, action, waited_ms=50.1) == wanted
        assert guard.counts == {"deadline": 1}
        assert guard.stopped == (fallback == "stop")
        assert sent(guard, action, waited_ms=3.0) == (None if fallback == "stop" else action)
    guard = Guard(Limits(fallback="last-chunk", deadline_ms=50.0), NUMBERS)
    guard.step(held)
    assert sent(guard, None, waited_ms=60.0) == held, "the last chunk has ended"
    assert guard.counts == {"deadline": 1, "missing": 1}
    assert sent(guard, action, waited_ms=math.nan) == action
    assert guard.counts["deadline"] == 2


def test_a_jump_refuses_the_chunk() -> None:
    chunk = np.zeros((4, NUMBERS), np.float32)
    for fallback in FALLBACKS:
        guard = Guard(Limits(jump=(0.5, 0.5, 9.0), fallback=fallback), NUMBERS)  # type: ignore[arg-type]
        assert guard.admit(chunk + 7), "the first chunk jumps from nowhere"
        guard.step([0.1, 0.2, 5.0])
        assert guard.admit(chunk)
        assert not guard.admit(chunk + np.float32([0.0, 0.75, 0.0]))
        assert guard.admit(chunk + 3, first=[0.1, 0.2, 0.3])
        assert guard.counts == {"jump": 1}
        assert guard.report()["recent"][0]["dimensions"] == [1]


@pytest.mark.parametrize(("fallback", "wanted"), [("hold", [0.5] * 3), ("last-chunk", [0.25] * 3), ("stop", None)])
def test_what_runs_after_a_refused_chunk(fallback: Any, wanted: Any) -> None:
    guard = Guard(Limits(fallback=fallback), NUMBERS)
    guard.step([0.5] * 3)
    bad = np.zeros((4, NUMBERS))
    bad[3, 1] = math.nan
    assert not guard.admit(bad)
    assert guard.counts == {"not-finite": 1}
    for _ in range(3):
        assert sent(guard, [0.25] * 3) == wanted
    assert guard.admit(np.zeros((4, NUMBERS)))
    assert sent(guard, [0.125] * 3) == (None if fallback == "stop" else [0.125] * 3)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(3), np.zeros((4, 2)), np.zeros((0, 3)), [["a"] * 3], None, np.ones((4, 3), bool), np.ones((4, 3)) * 1j],
)
def test_chunks_of_another_shape(wrong: Any) -> None:
    guard = Guard(Limits(), NUMBERS)
    assert not guard.admit(wrong)
    assert guard.counts == {"shape": 1}
    assert not guard.admit(np.zeros((4, NUMBERS)), horizon=5)
    assert guard.admit(np.zeros((4, NUMBERS)), horizon=4)


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.one_of(ANY, st.none()), st.one_of(st.none(), st.floats(0, 200))),
        st.tuples(st.just("admit"), arrays(np.float64, (2, NUMBERS), elements=st.floats(width=64)), st.none()),
    ),
    max_size=40,
)
BOUND = st.one_of(st.none(), st.tuples(*[st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3))] * NUMBERS))
RATE = st.one_of(st.none(), st.tuples(*[st.floats(1e-6, 1e3)] * NUMBERS))


@given(CALLS, BOUND, RATE, RATE, st.sampled_from(FALLBACKS), st.one_of(st.none(), st.floats(1, 100)))
def test_nothing_leaves_that_may_not(
    calls: Any, bound: Any, rate: Any, jump: Any, fallback: Any, deadline_ms: float | None
) -> None:
    low = None if bound is None else tuple(a for a, _ in bound)
    # At least a float32 lies between the bounds.
    high = None if bound is None else tuple(a + b + 1e-3 for a, b in bound)
    guard = Guard(
        Limits(minimum=low, maximum=high, rate=rate, jump=jump, fallback=fallback, deadline_ms=deadline_ms), NUMBERS
    )
    last: np.ndarray | None = None
    for kind, values, waited_ms in calls:
        if kind == "admit":
            guard.admit(values)
            continue
        before = sum(guard.counts.values())
        got = guard.step(values, waited_ms=waited_ms)
        assert sum(guard.counts.values()) - before == len(got.interventions)
        if got.action is None:
            assert guard.stopped or last is None
            continue
        assert not guard.stopped
        exact = got.action.astype(np.float64)
        assert got.action.dtype == np.float32
        assert np.isfinite(exact).all()
        if low is not None and high is not None:
            assert (exact >= low).all()
            assert (exact <= high).all()
        if rate is not None and last is not None:
            assert (np.abs(exact - last) <= rate).all()
        if not got.interventions and not guard._holding:
            np.testing.assert_array_equal(got.action, np.asarray(values, np.float32))
        last = exact
        got.action[:] = math.nan  # what is given out is the caller's


def test_the_report_is_plain_and_bounded() -> None:
    guard = Guard(limits(), NUMBERS)
    for _ in range(500):
        guard.step([9.0, 0.0, 0.2])
    report = guard.report()
    assert json.loads(json.dumps(report)) == report
    assert (report["steps"], report["counts"], report["stopped"]) == (500, {"range": 500}, False)
    assert 0 < len(report["recent"]) <= 64
    assert report["recent"][-1] == {"reason": "range", "done": "clipped", "step": 500, "dimensions": [0]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minimum": (0.0, 0.0)}, "minimum must be 3 finite numbers and has 2"),
        ({"rate": (1.0, math.nan, 1.0)}, "rate must be 3 finite"),
        ({"minimum": (2.0, 0.0, 0.0), "maximum": (1.0, 1.0, 1.0)}, "a minimum is over its maximum"),
    ],
)
def test_limits_that_cant_be_kept(changes: Any, words: str) -> None:
    with pytest.raises(GenerationError, match=words):
        Guard(Limits(**changes), NUMBERS)


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_the_watchdog_asks_the_clock() -> None:
    clock = Clock()
    dog = Watchdog.of(Limits(deadline_ms=100.0), clock)
    clock.now_s += 0.09
    assert not dog.expired
    clock.now_s += 0.02
    assert dog.expired
    dog.feed()
    assert not dog.expired
    never = Watchdog.of(Limits(), clock)
    clock.now_s += 1e9
    assert not never.expired
    never.start(lambda: pytest.fail("it has no timeout"))
    never.stop()


@pytest.mark.parametrize("timeout_ms", [0.0, -1.0, math.nan, math.inf])
def test_watchdogs_that_cant_be(timeout_ms: float) -> None:
    with pytest.raises(GenerationError, match="watchdog's timeout"):
        Watchdog(timeout_ms)


def test_a_watchdog_whose_bark_fails_goes_on() -> None:
    clock, barked = Clock(), threading.Semaphore(0)

    def bark() -> None:
        barked.release()
        raise RuntimeError(f"bark {dog.barks}")

    dog = Watchdog(4.0, clock)
    clock.now_s += 9.0
    dog.start(bark)
    try:
        assert not barked.acquire(timeout=0.05), "what was before the start is no silence"
        for _ in range(2):
            clock.now_s += 1.0
            assert barked.acquire(timeout=10)
            dog.feed()
    finally:
        dog.stop()
    assert [str(error) for error in dog.errors] == ["bark 1", "bark 2"]


def test_the_watchdog_barks_once_for_each_silence() -> None:
    clock, barked = Clock(), threading.Semaphore(0)
    dog = Watchdog(4.0, clock)
    dog.start(barked.release)
    dog.start(barked.release)
    try:
        for silence in range(1, 4):
            clock.now_s += 1.0
            assert barked.acquire(timeout=10), silence
            assert not barked.acquire(timeout=0.05), "once for each"
            dog.feed()
    finally:
        dog.stop()
    assert dog.barks == 3
    clock.now_s += 1.0
    assert not barked.acquire(timeout=0.05), "it has stopped"
