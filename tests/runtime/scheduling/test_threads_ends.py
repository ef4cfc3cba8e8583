"""How runs in real time end: failures, stops, Ctrl-C, time limits, tasks that hang."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain, repeat
from threading import Event

import pytest
from scheduling_cases import (
    Clock,
    Script,
    broken,
    clients_of,
    leaving_nothing,
    nothing,
    quanta,
    waited,
)
from scheduling_cases import run_real as run

from edgewright.errors import SchedulingError
from edgewright.runtime.scheduling.course import Recorder
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.threads import run_threads
from edgewright.runtime.scheduling.timeline import NS_PER_MS
from edgewright.runtime.scheduling.work import JobRecord, StepRecord


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every run ends all its threads and gives the interpreter its switch interval back."""
    yield from leaving_nothing()


def test_a_failing_task_ends_alone() -> None:
    good, bad = Script("A", [nothing] * 20), Script("B", [nothing, broken, nothing], [nothing])
    recorder, outcome = run([good, bad])
    assert quanta(recorder.steps) == {0: 20, 1: 1}
    assert {job.task: (job.finish, job.error) for job in recorder.jobs} == {
        0: ("complete", None),
        1: ("failed", "ValueError: the device is on fire"),
    }
    assert outcome.stopped is None
    assert isinstance(outcome.failures[1], ValueError)
    assert (good.closed, bad.closed) == (1, 1)


def test_a_failing_task_stops_all_where_that_is_wanted() -> None:
    endless = Script("A", repeat(nothing))
    tasks = [endless, Script("B", [lambda: waited(endless.began), broken])]
    recorder, outcome = run(tasks, on_error="fail-fast")
    assert outcome.stopped == "failure"
    assert {job.task: job.finish for job in recorder.jobs} == {0: "stopped", 1: "failed"}
    assert endless.closed == endless.opened


@pytest.mark.parametrize("place", ["between", "facts", "jobs", "exit"])
def test_whatever_a_task_raises_ends_it(place: str) -> None:
    def facts() -> dict[str, object]:
        broken()
        return {}

    class Refuses(Script):
        def jobs(self, now: object) -> object:  # type: ignore[override]
            broken()

    task = {
        "between": Script("B", [nothing] * 3, [nothing], between=broken),
        "facts": Script("B", [nothing], [nothing], facts=facts),
        "jobs": Refuses("B", [nothing]),
        "exit": Script("B", [nothing, lambda: sys.exit(3)]),
    }[place]
    recorder, outcome = run([Script("A", [nothing] * 5), task])
    assert outcome.failures.keys() == {1}
    jobs = [(job.finish, job.error) for job in recorder.jobs if job.task == 1]
    error = "SystemExit: 3" if place == "exit" else "ValueError: the device is on fire"
    assert jobs == ([] if place == "jobs" else [("failed", error)])
    assert quanta(recorder.steps) == ({0: 5} if place == "jobs" else {0: 5, 1: 1})


@pytest.mark.parametrize("what", ["step", "job"])
def test_what_the_observer_raises_stops_the_run_and_comes_out(what: str) -> None:
    class Full(Recorder):
        def step(self, record: StepRecord) -> None:
            super().step(record)
            if what == "step" and len(self.steps) == 5:
                raise OSError("no space left")

        def job(self, record: JobRecord) -> None:
            if what == "job":
                raise OSError("no space left")

    tasks = [Script(name, *[[nothing] * 3] * 50) for name in "ABC"]
    observer = Full()
    with pytest.raises(OSError, match="no space left"):
        run_threads(tasks, Scheduler(clients_of(1, 1, 1)), observer)
    assert all(task.closed == task.opened for task in tasks)
    assert any(task.opened for task in tasks)
    if what == "step":
        assert len(observer.steps) == 5, "it is not told anything after that"


def test_the_observer_is_told_one_thing_at_a_time() -> None:
    class Strict(Recorder):
        inside = 0

        def step(self, record: StepRecord) -> None:
            self.inside += 1
            time.sleep(0.0002)
            assert self.inside == 1
            self.inside -= 1
            super().step(record)

        job = step  # type: ignore[assignment]

    observer = Strict()
    outcome = run_threads([Script(name, [nothing] * 8) for name in "ABCD"], Scheduler(clients_of(1, 1, 1, 1)), observer)
    assert not outcome.failures
    assert len(observer.steps) == 4 * 9


def test_the_callers_stop_ends_the_run() -> None:
    stop, tasks = Event(), [Script(name, repeat(nothing)) for name in "AB"]

    class Stopping(Recorder):
        def step(self, record: StepRecord) -> None:
            super().step(record)
            if len(self.steps) >= 20 and all(task.began.is_set() for task in tasks):
                stop.set()

    observer = Stopping()
    outcome = run_threads(tasks, Scheduler(clients_of(1, 1)), observer, stop=stop)
    assert outcome.stopped == "stop"
    assert sorted((job.task, job.finish) for job in observer.jobs) == [(0, "stopped"), (1, "stopped")]
    assert [task.closed for task in tasks] == [task.opened for task in tasks]
    assert len(observer.steps) >= 20


def test_a_time_limit_ends_the_run_whatever_tasks_do() -> None:
    """One computes, one sleeps until its release, one is paused; the first one lets the time pass."""
    clock = Clock()
    others = [Script("B", [nothing], release_ns=3600 * 10**9), Script("C", [nothing])]

    def spend() -> None:
        for other in others:
            waited(other.began)
        clock.spend(NS_PER_MS)

    tasks = [Script("A", repeat(spend)), *others]
    recorder, outcome = run(tasks, 1, 1, "0:0,1:3600000", timeout_s=0.05, clock=clock)
    assert outcome.stopped == "timeout"
    assert {job.task: job.finish for job in recorder.jobs} == {0: "stopped", 1: "stopped", 2: "stopped"}
    assert quanta(recorder.steps).keys() == {0}
    assert not outcome.failures


def test_a_stop_reaches_a_task_whose_jobs_have_no_quanta() -> None:
    stop = Event()

    def jobs() -> Iterator[list[object]]:
        for count in range(1 << 40):
            if count == 100:
                stop.set()
            yield []

    recorder, outcome = run([Endless("A", jobs())], stop=stop)
    assert outcome.stopped == "stop"
    assert not outcome.failures, "it has not been left behind"
    assert len(recorder.jobs) >= 100
    assert {job.finish for job in recorder.jobs} == {"complete"}


class Endless(Script):
    """A script of so many jobs that they are made one by one."""

    def __init__(self, name: str, jobs: Iterator[list[object]]) -> None:
        super().__init__(name)
        self._jobs = jobs  # type: ignore[assignment]


def test_ctrl_c_while_it_stops_does_not_wait_and_leaves_the_observer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, come_back, late, join = Event(), Event(), Recorder(), threading.Thread.join

    def hang() -> None:
        stop.set()
        waited(come_back)

    def interrupt(self: threading.Thread, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_threads([Script("hung", [hang])], Scheduler(clients_of(1)), late, stop=stop)
    finally:
        come_back.set()
        for thread in threading.enumerate():
            if thread.name == "hung":
                join(thread, 20)
    assert (late.steps, late.jobs) == ([], [])


def test_ctrl_c_returns_what_there_is() -> None:
    main = threading.main_thread().ident
    assert main is not None

    other = Script("B", repeat(lambda: time.sleep(0.001)))

    def interrupt() -> None:
        waited(other.began)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.01)

    recorder, outcome = run([Script("A", chain([nothing] * 5, [interrupt], repeat(lambda: time.sleep(0.001)))), other])
    assert outcome.stopped == "interrupt"
    assert quanta(recorder.steps)[0] >= 6
    assert sorted((job.task, job.finish) for job in recorder.jobs) == [(0, "stopped"), (1, "stopped")]


def test_a_task_that_never_comes_back_is_left_behind() -> None:
    come_back, late, stop = Event(), Recorder(), Event()

    def hang() -> None:
        stop.set()
        waited(come_back)

    hung = Script("B", [hang])
    outcome = run_threads(
        [Script("A", [nothing], [nothing]), hung],
        Scheduler(clients_of(1, 1)),
        late,
        stop=stop,
        grace_s=0.05,
    )
    try:
        assert outcome.stopped == "stop"
        assert "B did not come back from its step within 0.05 s" in str(outcome.failures[1])
        before = (len(late.steps), len(late.jobs))
    finally:
        come_back.set()
        for thread in threading.enumerate():
            if thread.name == "B":
                thread.join(20)
    assert (len(late.steps), len(late.jobs)) == before, "the observer is not told any more"
    assert hung.closed == 1


def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def refuse(self: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    task = Script("A", [nothing])
    with pytest.raises(SchedulingError, match="A thread for each of 4 tasks can't be started"):
        run([task, Script("B", [nothing]), Script("C", [nothing]), Script("D", [nothing])])
    for thread in started:
        thread.join(20)
    assert task.closed == 0
