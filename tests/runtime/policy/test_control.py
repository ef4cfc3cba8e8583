"""Chunks and guards together, around a policy that is a function."""

from __future__ import annotations

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
    spec = spec_of("pi05", horizon=HORIZON, steps_to_run=4, limits=Limits(**limits))
    return Control(spec, RATE, clock=clock)


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


def test_a_late_inference_falls_back_and_its_chunk_enters_in_time() -> None:
    clock = Clock()
    control = control_of(clock, deadline_ms=150.0, fallback="hold")
    control.deliver(begun(control), chunk(1.0))
    request, seen = None, []
    for tick in range(9):
        request = control.due() or request
        if tick == 7 and request is not None:
            assert control.deliver(request, chunk(2.0))
        got = control.step()
        assert got is not None
        assert got.action is not None
        seen.append(round(float(got.action[0]), 4))
        clock.now_s += 1 / RATE
    # asked at tick 4, late from tick 6 on, and at tick 7 the chunk's fourth action
    assert seen == [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.05, 2.03, 2.04]
    assert control.guard.counts == {"deadline": 1}


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


def test_a_chunk_of_another_horizon_is_an_error() -> None:
    clock = Clock()
    control = control_of(clock)
    with pytest.raises(GenerationError, match="must have 6 actions"):
        control.deliver(begun(control), chunk(1.0)[:3])
    assert control.due() is not None, "the request was closed"


def test_committed_actions_of_a_control_loop() -> None:
    clock = Clock()
    spec = spec_of("pi05", horizon=HORIZON, steps_to_run=4)
    chunking = Chunking.of(spec, RATE, mode="committed", delay=2)
    control = Control(spec, RATE, chunking=chunking, clock=clock)
    control.deliver(begun(control), chunk(1.0))
    for _ in range(2):
        assert control.due() is None
        control.step()
        clock.now_s += 1 / RATE
    np.testing.assert_array_equal(begun(control).committed, chunk(1.0)[2:4])


def test_the_watchdog_is_fed_by_the_steps() -> None:
    clock = Clock()
    control = control_of(clock, deadline_ms=100.0)
    clock.now_s += 0.2
    assert control.watchdog.expired
    control.step()
    assert not control.watchdog.expired
    assert control.report()["watchdog"] == {"barks": 0, "expired": False}
