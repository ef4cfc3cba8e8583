"""Runs in real time: the same order as in virtual time, pauses, and that no thread waits for ever.

Nothing here asserts how long anything takes; where time matters it is a clock that the tasks themselves move.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import (
    Clock,
    Script,
    broken,
    clients_of,
    dialog,
    leaving_nothing,
    nothing,
    order,
    overlaps,
    quanta,
    simulate,
    waited,
)
from scheduling_cases import run_real as run

from edgewright.errors import SchedulingError, UsageError
from edgewright.runtime.scheduling.course import Recorder
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.threads import run_threads
from edgewright.runtime.scheduling.timeline import NS_PER_MS
from edgewright.runtime.scheduling.work import StepRecord, Task


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every run ends all its threads and gives the interpreter its switch interval back."""
    yield from leaving_nothing()


@pytest.mark.parametrize(
    ("discipline", "weights"),
    [
        ("weighted", (4, 2, 1)),
        ("weighted", (1, 1, 1)),
        ("weighted", ("4:0,1:300", "1:0,4:300", "0:0,2:600")),
        ("fair-time", (4, 2, 1)),
        ("round-robin", (1, 1, 1)),
        ("priority", (1, 3, 1)),
    ],
)
def test_the_order_is_that_of_virtual_time(discipline: str, weights: tuple[float | str, ...]) -> None:
    """The accelerator is held for whoever comes back, so the order does not depend on the threads."""
    clock = Clock()
    real = [
        dialog(name, cost, max_tokens=60, work=clock.spend) for name, cost in zip("ABC", (14.6, 30, 71), strict=True)
    ]
    virtual = [dialog(name, cost, max_tokens=60) for name, cost in zip("ABC", (14.6, 30, 71), strict=True)]
    recorder, outcome = run(real, *weights, discipline=discipline, clock=clock)
    assert not outcome.failures
    expected, same, _ = simulate(virtual, weights, discipline)
    # From the end of the first task on the others may be asked before it has said that it has ended.
    until = min(expected.jobs[0].end_ns, recorder.jobs[0].end_ns)
    steps = [step for step in recorder.steps if step.end_ns <= until]
    assert order(steps) == order([step for step in expected.steps if step.end_ns <= until])
    assert len(steps) > 60
    assert outcome.busy_ns == same.busy_ns == sum(step.end_ns - step.start_ns for step in expected.steps)
    assert quanta(recorder.steps) == {0: 60, 1: 60, 2: 60}
    assert not overlaps(recorder.steps)


def test_one_at_a_time_has_the_accelerator_and_all_work_on_the_host() -> None:
    """A's host work waits for B to run, so it can't be done with the accelerator in hand."""
    inside, most, ran = 0, 0, Event()

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.0005)
        inside -= 1

    def other() -> None:
        enter()
        ran.set()

    recorder, outcome = run([Script("A", [enter] * 3, between=lambda: waited(ran)), Script("B", [other] * 3)])
    assert most == 1
    assert not outcome.failures
    assert quanta(recorder.steps) == {0: 3, 1: 3}


def test_free_lets_all_run_at_once() -> None:
    together = threading.Barrier(2, timeout=20)

    def meet() -> None:
        together.wait()

    tasks: list[Task] = [Script(name, [meet]) for name in "AB"]
    recorder, outcome = run(tasks, discipline="free")
    assert not outcome.failures
    assert len(recorder.steps) == 2
    one, other = recorder.steps
    assert max(one.start_ns, other.start_ns) < min(one.end_ns, other.end_ns)
    both = max(one.end_ns, other.end_ns) - min(one.start_ns, other.start_ns)
    assert both <= outcome.busy_ns <= outcome.end_ns, "what several use at once is busy once"


def test_records_tell_what_happened() -> None:
    facts = {"prompt_tokens": 7}
    recorder, outcome = run([Script("A", [nothing, nothing], [nothing], facts=lambda: dict(facts))], 3)
    assert [(step.iteration, step.index, step.emits, step.weight) for step in recorder.steps] == [
        (0, 0, True, 3),
        (0, 1, True, 3),
        (1, 0, True, 3),
    ]
    for step in recorder.steps:
        assert 0 <= step.ready_ns <= step.start_ns <= step.end_ns <= step.done_ns
    assert [(job.finish, job.facts, job.error) for job in recorder.jobs] == [("complete", facts, None)] * 2
    assert recorder.jobs[0].ready_ns == recorder.jobs[0].eligible_ns == recorder.steps[0].ready_ns
    assert (outcome.stopped, outcome.failures) == (None, {})


def test_pauses_are_slept_through_and_end() -> None:
    recorder, outcome = run([Script("A", [nothing]), Script("B", [nothing] * 3)], "0:0,1:30", "0:0,1:20")
    assert not outcome.failures
    assert min(step.start_ns for step in recorder.steps if step.task == 0) >= 30 * NS_PER_MS
    assert min(step.start_ns for step in recorder.steps if step.task == 1) >= 20 * NS_PER_MS
    (first,) = [job for job in recorder.jobs if job.task == 0]
    assert first.ready_ns is not None
    assert first.eligible_ns == max(first.ready_ns, 30 * NS_PER_MS)


def test_tasks_that_can_never_run_fail_by_name() -> None:
    recorder, outcome = run([Script("A", [nothing]), Script("B", [nothing] * 3), Script("C", [nothing])], 0, 1, 0)
    assert outcome.failures.keys() == {0, 2}
    assert all(isinstance(error, SchedulingError) for error in outcome.failures.values())
    assert {job.task: (job.finish, job.error is None) for job in recorder.jobs} == {
        0: ("failed", False),
        1: ("complete", True),
        2: ("failed", False),
    }


def test_a_job_waits_for_its_release() -> None:
    recorder, _ = run([Script("A", [nothing], release_ns=20 * NS_PER_MS), Script("B", [nothing])])
    assert recorder.jobs[0].task == 1
    assert recorder.jobs[1].ready_ns is not None
    assert recorder.jobs[1].ready_ns >= 20 * NS_PER_MS


def test_misuse_is_named() -> None:
    with pytest.raises(UsageError, match="1 tasks don't fit a scheduler of 2 clients"):
        run([Script("A", [nothing])], 1, 1)
    scheduler = Scheduler(clients_of(1))
    run_threads([Script("A", [nothing])], scheduler, Recorder())
    with pytest.raises(UsageError, match="good for one run"):
        run_threads([Script("A", [nothing])], scheduler, Recorder())


@settings(max_examples=40)
@given(
    st.integers(0, 10**9),
    st.sampled_from(["fifo", "round-robin", "weighted", "fair-time", "priority", "deadline", "free"]),
)
def test_no_thread_ever_waits_for_ever(seed: int, discipline: str) -> None:
    """Random tasks that compute, sleep, fail, are paused or stopped: the run ends, and accounts for every job."""
    dice = random.Random(seed)

    def piece() -> object:
        return dice.choice([nothing, nothing, lambda: time.sleep(0.0003), broken if dice.random() < 0.1 else nothing])

    tasks: list[Task] = []
    for index in range(dice.randint(1, 6)):
        jobs = [[piece() for _ in range(dice.randint(0, 6))] for _ in range(dice.randint(1, 3))]
        tasks.append(
            Script(
                f"T{index}",
                *jobs,  # type: ignore[arg-type]
                between=dice.choice([nothing, nothing, lambda: time.sleep(0.0005), lambda: time.sleep(0.004)]),
                release_ns=dice.choice([0, 0, 2 * NS_PER_MS]),
                deadline_ns=dice.choice([None, NS_PER_MS, 9 * NS_PER_MS]),
            )
        )
    weights = [dice.choice(["1:0", "4:0", "0:0,1:3", "2:0,0:1,1:4", "1:0,0:2"]) for _ in tasks]
    stop = Event()

    class Stopping(Recorder):
        def step(self, record: StepRecord) -> None:
            super().step(record)
            if len(self.steps) == limit:
                stop.set()

    limit, observer = dice.choice([10**9, 10**9, 5]), Stopping()
    scheduler = Scheduler(clients_of(*weights), discipline, hold_ns=dice.choice([0, 10**5, 2 * 10**6]))
    outcome = run_threads(
        tasks,
        scheduler,
        observer,
        stop=stop if dice.random() < 0.5 else None,
        on_error=dice.choice(["isolate", "isolate", "fail-fast"]),  # type: ignore[arg-type]
    )
    assert discipline == "free" or not overlaps(observer.steps)
    assert discipline == "free" or outcome.busy_ns >= sum(step.end_ns - step.start_ns for step in observer.steps)
    assert outcome.busy_ns <= outcome.end_ns
    for index, task in enumerate(tasks):
        mine = [job for job in observer.jobs if job.task == index]
        assert [job.iteration for job in mine] == list(range(len(mine)))
        assert all(job.finish == "complete" for job in mine[:-1])
        if index in outcome.failures:
            assert mine[-1].finish == "failed"
        elif outcome.stopped is None:
            assert len(mine) == len(task._jobs)  # type: ignore[attr-defined]
            assert all(job.finish == "complete" for job in mine)
