"""Chunks and guards together, around a policy that is a function."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import numpy as np
import pytest
from policy_inputs import spec_of

from edgewright.errors import GenerationError
from edgewright.runtime.policy.chunks import Chunking, Request
from edgewright.runtime.policy.control import Control
from edgewright.runtime.policy.spec import Limits

HORIZON, NUMBERS, RATE = 6, 7, 10.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 7.0

    def __call__(self) -> float:
        return self.now_s


def control_of(clock: Clock, **limits: Any) -> Control:
    return Control.of(spec_of("pi05", horizon=HORIZON, steps_to_run=4, limits=Limits(**limits)), RATE, clock=clock)


def chunk(start: float, slope: float = 0.01) -> np.ndarray:
    return (start + slope * np.arange(HORIZON)[:, None] + np.zeros(NUMBERS)).astype(np.float32)


def begun(control: Control) -> Request:
    request = control.due()
    assert request is not None
    return request


def run(control: Control, clock: Clock, ticks: int, policy: Any) -> list[float | None]:
    """Run with an inference that takes no time; returns the first number of what was sent."""
    seen: list[float | None] = []
    for _ in range(ticks):
        request = control.due()
        if request is not None:
            control.deliver(request, policy(request.number))
        got = control.step()
        assert got is not None
        seen.append(None if got.action is None else round(float(got.action[0]), 4))
        clock.now_s += 1 / RATE
    return seen


def test_a_chunk_after_another() -> None:
    clock = Clock()
    control = control_of(clock)
    seen = run(control, clock, 6, lambda number: chunk(number))
    assert seen == [1.0, 1.01, 1.02, 1.03, 2.0, 2.01]
    report = control.report()
    assert report["chunks"]["executed"] == 6
    assert report["guard"]["counts"] == {}


@pytest.mark.parametrize(
    ("fallback", "wanted"),
    [
        ("hold", [0.0, 0.01, 0.02, 0.03, 0.03, 0.03, 0.05, 0.06]),
        ("last-chunk", [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.05, 0.06]),
        ("stop", [0.0, 0.01, 0.02, 0.03, None, None, None, None]),
    ],
)
def test_chunks_that_jump_are_refused(fallback: Any, wanted: list[float | None]) -> None:
    """The second and the third jump, the fourth doesn't."""
    starts = {1: 0.0, 2: 3.0, 3: -3.0, 4: 0.05}
    clock = Clock()
    control = control_of(clock, jump=(0.1,) * NUMBERS, fallback=fallback)
    assert run(control, clock, 8, lambda number: chunk(starts[number])) == wanted
    assert control.guard.counts["jump"] == (1 if fallback == "stop" else 2)
    if fallback == "stop":
        assert control.due() is None
        control.reset()
        assert run(control, clock, 1, lambda _: chunk(1.0)) == [1.0]


def test_a_jump_is_measured_where_a_late_chunk_enters() -> None:
    """Its first action is far from where the robot is by now, its fourth isn't, so it may; and the other way around."""
    for slope, taken in ((0.5, True), (-0.5, False)):
        clock = Clock()
        control = control_of(clock, jump=(0.2,) * NUMBERS)
        control.deliver(begun(control), chunk(0.0, 0.05))
        request = None
        for _ in range(7):
            request = control.due() or request
            control.step()
            clock.now_s += 1 / RATE
        assert request is not None
        assert request.start == 4
        # three of its actions are over, and the robot is at 0.25
        assert control.deliver(request, chunk(0.25 - 3 * 0.5 if slope > 0 else 0.25, slope)) == taken


def test_a_chunk_of_nan_never_reaches_the_robot() -> None:
    clock = Clock()
    control = control_of(clock, fallback="last-chunk")
    bad = chunk(0.0)
    bad[2] = np.nan
    assert run(control, clock, 8, lambda number: chunk(1.0) if number == 1 else bad)[:6] == [
        1.0, 1.01, 1.02, 1.03, 1.04, 1.05,
    ]  # fmt: skip
    assert control.guard.counts["not-finite"] == 4
    assert control.step() is not None


@pytest.mark.parametrize(
    ("fallback", "wanted"),
    [
        ("hold", [1.0, 1.01, 1.02, 1.03, 1.04, 1.04, 1.04, 3.0, 3.01]),
        ("last-chunk", [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.05, 3.0, 3.01]),
        ("stop", [1.0, 1.01, 1.02, 1.03, 1.04, None, None, None, None]),
    ],
)
def test_a_late_chunk_is_refused(fallback: Any, wanted: list[float | None]) -> None:
    """Asked for at tick 4, there at tick 6 but due by 4.5; the next one, asked for at tick 7, takes no time."""
    clock = Clock()
    control = control_of(clock, deadline_ms=50.0, fallback=fallback)
    control.deliver(begun(control), chunk(1.0))
    request, seen, taken = None, [], []
    for tick in range(9):
        asked = control.due()
        if asked is not None and tick > 6:
            assert control.deliver(asked, chunk(3.0))
        request = asked or request
        if tick == 6 and request is not None:
            taken.append(control.deliver(request, chunk(2.0)))
        got = control.step()
        assert got is not None
        seen.append(None if got.action is None else round(float(got.action[0]), 4))
        clock.now_s += 1 / RATE
    assert seen == wanted
    assert taken == [False]
    assert control.guard.counts["deadline"] == (1 if fallback == "stop" else 2), "once waiting, once for the chunk"


@pytest.mark.parametrize(("fallback", "sent"), [("hold", 1.0), ("last-chunk", 1.01), ("stop", None)])
def test_a_loop_that_infers_itself_is_late_too(fallback: Any, sent: float | None) -> None:
    """No step is between the request and its chunk, so nothing but the clock tells."""
    clock = Clock()
    control = Control(Limits(deadline_ms=500.0, fallback=fallback), NUMBERS, Chunking(
        rate_hz=RATE, horizon=HORIZON, steps_to_run=1
    ), clock=clock)  # fmt: skip
    assert control.deliver(begun(control), chunk(1.0))
    control.step()
    clock.now_s += 0.1
    request = begun(control)
    clock.now_s += 0.51
    if fallback == "last-chunk":
        clock.now_s -= 0.51  # the chunk before is over by then; but it is late all the same
        request = dataclasses.replace(request, asked_s=request.asked_s - 0.51)
    assert not control.deliver(request, chunk(2.0))
    assert control.guard.counts["deadline"] == 1
    got = control.step()
    assert got is not None
    assert (None if got.action is None else round(float(got.action[0]), 4)) == sent
    assert got.held == (fallback != "last-chunk")
    assert control.guard.stopped == (fallback == "stop")


@pytest.mark.parametrize("fallback", ["hold", "last-chunk", "stop"])
def test_a_slow_first_inference_is_counted_and_taken(fallback: Any) -> None:
    clock = Clock()
    control = control_of(clock, deadline_ms=150.0, fallback=fallback)
    control.reset(np.zeros(NUMBERS))
    request = begun(control)
    for _ in range(4):
        got = control.step()
        assert got is not None
        assert got.action is None
        clock.now_s += 1 / RATE
    assert control.guard.counts == {"deadline": 2}, "after 200 and 300 ms"
    assert control.deliver(request, chunk(1.0))
    got = control.step()
    assert got is not None
    assert got.action is not None
    assert got.action[0] == 1
    assert not control.guard.stopped
    assert control.guard.report()["recent"][-1]["done"] == "taken"


def test_a_failed_inference_is_asked_for_again() -> None:
    clock = Clock()
    control = control_of(clock)
    request = begun(control)
    assert control.due() is None
    control.failed(request)
    again = begun(control)
    assert not control.deliver(request, chunk(9.0)), "nobody waits for it any more"
    assert control.deliver(again, chunk(1.0))
    assert control.buffer.counts["stale"] == 1
    third = control.step()
    assert third is not None
    assert third.action is not None
    assert control.step() is None, "this tick had its action"


@pytest.mark.parametrize(
    "wrong", [chunk(1.0)[:3], chunk(1.0)[:, :3], chunk(1.0)[None], chunk(1.0) > 0, "abc", [[1], []]]
)
def test_what_is_no_chunk_of_the_policy_is_refused(wrong: Any) -> None:
    control = control_of(Clock())
    assert not control.deliver(begun(control), wrong)
    assert control.guard.counts == {"shape": 1}
    assert control.due() is not None, "the request was closed"


def test_committed_actions_of_a_control_loop() -> None:
    clock = Clock()
    spec = spec_of("pi05", horizon=HORIZON, steps_to_run=4)
    control = Control.of(spec, RATE, mode="committed", delay=2, clock=clock)
    control.deliver(begun(control), chunk(1.0))
    for _ in range(2):
        assert control.due() is None
        control.step()
        clock.now_s += 1 / RATE
    np.testing.assert_array_equal(begun(control).committed, chunk(1.0)[2:4])


@pytest.mark.parametrize("seed", [0, 1])
def test_committed_actions_are_as_the_guard_will_send_them(seed: int) -> None:
    rng, clock = np.random.default_rng(seed), Clock()
    limits = Limits(minimum=(-0.6,) * NUMBERS, maximum=(0.5,) * NUMBERS, rate=(0.2,) * NUMBERS)
    spec = spec_of("pi05", horizon=HORIZON, steps_to_run=3, limits=limits)
    control = Control.of(spec, RATE, mode="committed", delay=2, clock=clock)
    control.deliver(begun(control), rng.uniform(-2, 2, (HORIZON, NUMBERS)).astype(np.float32))
    control.step()
    clock.now_s += 1 / RATE
    committed, sent = begun(control).committed, []
    for _ in range(2):
        got = control.step()
        assert got is not None
        assert got.action is not None
        sent.append(got.action)
        clock.now_s += 1 / RATE
    np.testing.assert_array_equal(committed, sent)
    assert np.abs(sent).max() <= 0.6


def test_committed_actions_while_it_holds() -> None:
    clock = Clock()
    spec = spec_of("pi05", horizon=HORIZON, steps_to_run=2, limits=Limits(jump=(0.1,) * NUMBERS))
    control = Control.of(spec, RATE, mode="committed", delay=1, clock=clock)
    control.deliver(begun(control), chunk(1.0, 0.5))
    control.step()
    clock.now_s += 1 / RATE
    assert not control.deliver(begun(control), chunk(5.0))
    np.testing.assert_array_equal(begun(control).committed, chunk(1.0)[:1])


def told(**changes: Any) -> dict[str, Any]:
    limits = Limits(maximum=(0.5,) * NUMBERS, deadline_ms=700.0, fallback="stop").to_json()
    counts = {"action_dim": NUMBERS, "horizon": HORIZON, "steps_to_run": 4}
    return {**counts, "limits": limits, "takes_committed": True, **changes}


def test_metadata_is_enough() -> None:
    clock = Clock()
    control = Control.of(json.loads(json.dumps(told())), RATE, clock=clock)
    assert run(control, clock, 5, lambda number: chunk(0.49, 0.1)) == [0.49, 0.5, 0.5, 0.5, 0.49]
    assert control.guard.limits.fallback == "stop"
    assert control.buffer.chunking == Chunking(rate_hz=RATE, horizon=HORIZON, steps_to_run=4)
    assert Control.of(told(), RATE, mode="committed").buffer.chunking.mode == "committed"


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({"limits": {"minimum": [1.0]}}, {}, "metadata can't be used: .*lacks"),
        ({"horizon": None}, {}, "doesn't tell its horizon"),
        ({"takes_committed": False}, {"mode": "committed"}, "takes no committed actions here"),
        ({"steps_to_run": 9}, {}, "steps_to_run 9"),
    ],
)
def test_metadata_that_cant_be_used(changes: Any, more: Any, words: str) -> None:
    with pytest.raises(GenerationError, match=words):
        Control.of(told(**changes), RATE, **more)
    with pytest.raises(GenerationError, match="doesn't tell its limits"):
        Control.of({name: value for name, value in told().items() if name != "limits"}, RATE)


def test_the_watchdog_is_fed_by_the_loop() -> None:
    clock = Clock()
    control = control_of(clock, deadline_ms=100.0)
    clock.now_s += 0.19
    assert not control.watchdog.expired, "a loop may be silent for two periods"
    clock.now_s += 0.02
    assert control.watchdog.expired
    control.step()
    assert not control.watchdog.expired
    assert control.report()["watchdog"] == {"barks": 0, "expired": False, "errors": []}


@pytest.mark.parametrize(("fallback", "wanted"), [("hold", 1.01), ("last-chunk", 1.04), ("stop", None)])
@pytest.mark.parametrize("first", ["due", "step"])
def test_a_loop_that_hung_falls_back(fallback: Any, wanted: float | None, first: str) -> None:
    clock = Clock()
    control = control_of(clock, deadline_ms=210.0, fallback=fallback)
    assert run(control, clock, 2, lambda _: chunk(1.0)) == [1.0, 1.01]
    clock.now_s += 0.2
    if first == "due":
        control.due()
    got = control.step()
    assert got is not None
    assert (None if got.action is None else round(float(got.action[0]), 4)) == wanted
    assert [(one.reason, one.done) for one in got.interventions] == [("watchdog", fallback)]
    assert control.guard.stopped == (fallback == "stop")
    clock.now_s += 1 / RATE
    control.reset()
    assert run(control, clock, 1, lambda _: chunk(2.0)) == [2.0]
    assert control.guard.counts == {"watchdog": 1}


def test_an_inference_within_the_deadline_is_no_silence() -> None:
    """The loop that infers itself is silent for 490 ms, then waits for its tick."""
    clock = Clock()
    control = control_of(clock, deadline_ms=500.0, fallback="stop")
    for _ in range(3):
        request = control.due()
        if request is not None:
            clock.now_s += 0.49
            control.deliver(request, chunk(1.0))
        control.step()
        clock.now_s += 0.1
    assert control.guard.counts == {}


def test_the_watchdog_may_stop_the_robot() -> None:
    clock = Clock()
    control = control_of(clock, deadline_ms=100.0)
    assert run(control, clock, 1, lambda _: chunk(1.0)) == [1.0]
    barked = threading.Event()

    def bark() -> None:
        control.stop()
        control.watchdog.stop()
        barked.set()

    control.watchdog.start(bark)
    clock.now_s += 5.0
    assert barked.wait(10)
    assert control.due() is None
    assert run(control, clock, 2, lambda _: chunk(2.0)) == [None, None]
    control.reset()
    assert run(control, clock, 1, lambda _: chunk(3.0)) == [3.0]


def test_a_second_inference_is_asked_for_one_tick_early() -> None:
    """Both take two ticks at first, so the second is asked for three before it is needed, and may take one more."""
    clock = Clock()
    control = control_of(clock)
    asked, coming = [], None
    for tick in range(14):
        request = control.due()
        if request is not None:
            asked.append(tick)
            coming = (tick + 2, request)
        if coming is not None and tick == coming[0]:
            assert control.deliver(coming[1], chunk(1.0))
            coming = None
        control.step()
        clock.now_s += 1 / RATE
    assert asked[:4] == [0, 3, 6, 9]
    assert control.buffer.expected_delay == 2
