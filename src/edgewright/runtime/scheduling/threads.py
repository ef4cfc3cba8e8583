"""A run in real time: a thread for each task, which does the host work, and one gate in front of the accelerator.

Threads share the interpreter, so host work can keep a thread that has the accelerator from going on. A short switch
interval for the time of the run keeps that short, and the gate lets whoever was woken begin first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Lock, Semaphore, Thread
from typing import TypeVar

from edgewright.errors import SchedulingError
from edgewright.runtime.scheduling.course import Course, OnError, Outcome, Stopped
from edgewright.runtime.scheduling.gate import Gate, StoppedError
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.work import Finish, Observer, Quantum, Task

#: The interpreter's switch interval during a run; the usual one is 5 ms.
SWITCH_INTERVAL_S = 1e-4
#: How often the caller's `stop` is looked at while nothing else happens.
_POLL_S = 0.05
#: The longest sleep at once; who wakes looks whether it is time.
_LONGEST_S = 3600.0
_Record = TypeVar("_Record")


def run_threads(
    tasks: Sequence[Task],
    scheduler: Scheduler,
    observer: Observer,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    stop: Event | None = None,
    timeout_s: float | None = None,
    on_error: OnError = "isolate",
    grace_s: float = 30.0,
) -> Outcome:
    """Run tasks, the clients of a new scheduler in the same order, to their end.

    Times count from when all threads stand ready. What a task raises ends it, or, with "fail-fast", all. The run stops
    early when `stop` is set, after `timeout_s`, and on Ctrl-C in the main thread: steps that have begun are completed,
    everything so far has been recorded. A task that does not come back from its step within `grace_s` is left behind
    and counts as failed; Ctrl-C while a run stops already does not wait for it, and comes out as KeyboardInterrupt.
    Raises UsageError where tasks and clients differ or the scheduler is not new, SchedulingError when threads can't be
    started, and whatever the observer raises.
    """
    scheduler.begin(len(tasks))
    run = _Run(tasks, scheduler, observer, clock, on_error)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, SWITCH_INTERVAL_S))
    try:
        return run.run(stop, None if timeout_s is None else round(timeout_s * 1e9), grace_s)
    finally:
        sys.setswitchinterval(interval)


class _Run:
    """One run: its threads, the gate, and the keeper of the time."""

    def __init__(
        self,
        tasks: Sequence[Task],
        scheduler: Scheduler,
        observer: Observer,
        clock: Callable[[], int],
        on_error: OnError,
    ) -> None:
        self._scheduler, self._observer, self._clock, self._on_error = scheduler, observer, clock, on_error
        self._courses = [
            Course(index, task, client.timeline)
            for index, (task, client) in enumerate(zip(tasks, scheduler.clients, strict=True))
        ]
        self._gate = Gate(scheduler, self.now, self._ring)
        self._begun_ns = clock()
        self._standing, self._go = Semaphore(0), Event()
        self._observing, self._closed = Lock(), False
        self._broken: BaseException | None = None
        self._failures: dict[int, BaseException] = {}
        self._stopped: Stopped | None = None
        self._stopping, self._finished = Event(), Event()
        self._bell, self._ringing = Lock(), False
        self._bell.acquire()

    def now(self) -> int:
        return self._clock() - self._begun_ns

    def run(self, stop: Event | None, timeout_ns: int | None, grace_s: float) -> Outcome:
        threads = [Thread(target=self._work, args=(one,), name=one.task.name, daemon=True) for one in self._courses]
        keeper = Thread(target=self._keep, args=(stop, timeout_ns), name="keeper", daemon=True)
        try:
            self._start(threads, keeper)
            self._finished.wait()
        except KeyboardInterrupt:
            self._stop("interrupt")
        finally:
            self._go.set()
        try:
            self._join(threads, grace_s)
        finally:
            with self._observing:
                self._closed = True
        if self._broken is not None:
            raise self._broken
        scheduler = self._scheduler
        return Outcome(
            self.now(), self._gate.busy_ns, scheduler.held_ns, scheduler.lost_turns, self._failures, self._stopped
        )

    def _start(self, threads: list[Thread], keeper: Thread) -> None:
        """Start all threads and let them go at once: that is time 0."""
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                self._standing.acquire()
            self._begun_ns = self._clock()
            for course in self._courses:
                self._gate.enter(course.index)
            keeper.start()
        except RuntimeError as error:
            self._stop("failure")
            raise SchedulingError(f"A thread for each of {len(threads)} tasks can't be started ({error}).") from error
        self._go.set()

    def _join(self, threads: list[Thread], grace_s: float) -> None:
        """Wait until all threads have ended; where the run was stopped, not for ever."""
        deadline = None if self._stopped is None else time.monotonic() + grace_s
        for course, thread in zip(self._courses, threads, strict=True):
            while thread.is_alive() and (deadline is None or time.monotonic() < deadline):
                try:
                    thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
                except KeyboardInterrupt:
                    if self._stopping.is_set():  # not to be waited for any longer
                        raise
                    self._stop("interrupt")
            if thread.is_alive():
                self._failures[course.index] = SchedulingError(
                    f"{course.task.name} did not come back from its step within {grace_s:g} s after the stop."
                )

    def _work(self, course: Course) -> None:
        """What a task's thread does."""
        self._standing.release()
        self._go.wait()
        finish: Finish = "stopped"
        error: BaseException | None = None
        try:
            if self._stopped is None:
                self._drive(course)
        except StoppedError:
            pass
        except BaseException as found:
            finish, error = "failed", found
            self._failures[course.index] = found
            if self._on_error == "fail-fast":
                self._stop("failure")
        # Whatever happened, others may have the accelerator before this task says what became of it.
        now = self.now()
        self._gate.end(course.index)
        step, job = course.done(now), course.close(now, finish, error)
        with suppress(StoppedError):
            self._tell(self._observer.step, step)
            self._tell(self._observer.job, job)

    def _drive(self, course: Course) -> None:
        """Take a task through all its jobs."""
        gate, index = self._gate, course.index
        # A job may have no quanta, and so never meet the gate.
        while not self._stopping.is_set() and (job := course.begin(self.now)) is not None:
            if job.release_ns > self.now():
                gate.leave(index)
                self._sleep_until(job.release_ns)
            gate.enter(index, job.deadline_ns)
            while (quantum := course.fetch()) is not None:
                step = course.done(self.now())
                # Ask first: while the record is written, the accelerator can be found to be free for this task.
                course.asks(quantum, gate.ask(index, quantum.phase, job.deadline_ns))
                self._tell(self._observer.step, step)
                self._take(course, quantum)
            now = self.now()
            self._tell(self._observer.step, course.done(now))
            self._tell(self._observer.job, course.close(now))
            if course.failure is not None:
                raise course.failure

    def _take(self, course: Course, quantum: Quantum) -> None:
        """Run a quantum when it is the task's turn."""
        weight = self._gate.wait(course.index)
        start = end = self.now()
        try:
            quantum.run()
        finally:
            end = self.now()
            self._gate.give_back(course.index, end - start)
        course.ran(start, end, weight)

    def _sleep_until(self, time_ns: int) -> None:
        while (left := time_ns - self.now()) > 0:
            if self._stopping.wait(min(left / 1e9, _LONGEST_S)):
                raise StoppedError

    def _tell(self, call: Callable[[_Record], None], record: _Record | None) -> None:
        """Tell the observer; where it fails, the run is over, and it is told nothing any more."""
        if record is None:
            return
        with self._observing:
            if self._closed or self._broken is not None:
                raise StoppedError
            try:
                call(record)
                return
            except BaseException as error:
                self._broken = error
        self._stop("failure")
        raise StoppedError

    def _stop(self, why: Stopped) -> None:
        if self._stopped is None:
            self._stopped = why
        self._stopping.set()
        self._gate.stop()

    def _ring(self) -> None:
        """Wake the keeper; called with the gate's lock held."""
        if not self._ringing:
            self._ringing = True
            self._bell.release()

    def _keep(self, stop: Event | None, timeout_ns: int | None) -> None:
        """What the keeper of the time does: ask the gate again when it wants that, and look for reasons to stop."""
        try:
            while self._gate.left and self._stopped is None:
                now, until = self.now(), self._gate.until_ns
                if stop is not None and stop.is_set():
                    self._stop("stop")
                elif timeout_ns is not None and now >= timeout_ns:
                    self._stop("timeout")
                elif until is not None and now >= until:
                    self._gate.keep()
                else:
                    waits = [(at - now) / 1e9 for at in (until, timeout_ns) if at is not None]
                    longest = _LONGEST_S if stop is None else _POLL_S
                    if self._bell.acquire(timeout=min([*waits, longest])):
                        self._ringing = False
        except BaseException as error:
            self._broken = self._broken or error
            self._stop("failure")
        finally:
            self._finished.set()
