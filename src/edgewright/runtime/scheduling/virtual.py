"""A run in virtual time: discrete events, no threads, no sleeping.

Tasks tell what their quanta cost (`device_ns`, `host_ns`); the same scheduler as in real time decides. Where the
discipline has no gate (`free`), quanta that run at once get equal parts of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import ceil

from edgewright.errors import SchedulingError
from edgewright.runtime.scheduling.course import Course, OnError, Outcome, Stopped
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.seat import State
from edgewright.runtime.scheduling.work import Observer, Quantum, Task

#: Events at one instant, for each task, that mean that time does not go on.
_STILL = 10_000
#: What division into equal parts may leave over.
_ROUNDING_NS = 1e-3


def run_virtual(
    tasks: Sequence[Task],
    scheduler: Scheduler,
    observer: Observer,
    *,
    until_ns: int | None = None,
    on_error: OnError = "isolate",
) -> Outcome:
    """Run tasks, the clients of a new scheduler in the same order, to their end or up to a time.

    A quantum that is not over by then is not recorded, and its job is stopped. What a task raises ends it, or, with
    "fail-fast", all; Ctrl-C stops the run. Raises UsageError where tasks and clients differ or the scheduler is not
    new, SchedulingError where time does not go on, and whatever the observer raises.
    """
    scheduler.begin(len(tasks))
    return _Run(tasks, scheduler, observer, until_ns, on_error).run()


class _Device:
    """Quanta that are being run: each gets an equal part of the device, where there are several.

    `next_end` is when the first of them is done.
    """

    def __init__(self) -> None:
        self._left: dict[int, float] = {}
        self._begun: dict[int, int] = {}
        self._now = self._busy_ns = 0
        self.next_end: int | None = None

    def add(self, index: int, work_ns: int, now: int) -> None:
        """Begin a quantum."""
        self._advance(now)
        self._left[index] = work_ns
        self._begun[index] = now
        self._expect()

    def take(self, now: int) -> list[tuple[int, int]]:
        """Return who is done by now, and when it began."""
        if self.next_end is None or now < self.next_end:
            return []
        self._advance(now)
        done = [index for index, left in self._left.items() if left <= _ROUNDING_NS]
        for index in done:
            del self._left[index]
        self._expect()
        return [(index, self._begun[index]) for index in done]

    def busy(self, now: int) -> int:
        """Return how long the device was busy up to now."""
        self._advance(now)
        return self._busy_ns

    def _expect(self) -> None:
        left = self._left
        self.next_end = self._now + ceil(min(left.values()) * len(left) - _ROUNDING_NS) if left else None

    def _advance(self, now: int) -> None:
        passed = now - self._now
        self._now = now
        if self._left and passed:
            self._busy_ns += passed
            part = passed / len(self._left)
            for index in self._left:
                self._left[index] -= part


class _Run:
    """One run: a heap of (time, order, what happens then)."""

    def __init__(
        self,
        tasks: Sequence[Task],
        scheduler: Scheduler,
        observer: Observer,
        until_ns: int | None,
        on_error: OnError,
    ) -> None:
        self._scheduler, self._observer = scheduler, observer
        self._until_ns, self._on_error = until_ns, on_error
        self._courses = [
            Course(index, task, client.timeline)
            for index, (task, client) in enumerate(zip(tasks, scheduler.clients, strict=True))
        ]
        self._events: list[tuple[int, int, Callable[[Course], None], Course]] = []
        self._order = count()
        self._device = _Device()
        self._weights: dict[int, float] = {}
        self._wake_ns: int | None = None
        self._failures: dict[int, Exception] = {}
        self._stopped: Stopped | None = None
        self._now = self._still = 0

    def now(self) -> int:
        return self._now

    def run(self) -> Outcome:
        try:
            for course in self._courses:
                self._at(0, self._proceed, course)
            try:
                self._loop()
            except KeyboardInterrupt:
                self._stopped = "interrupt"
            self._stop_all()
        finally:
            # Only where the observer, or the rules of a task, failed is anything left to close.
            for course in self._courses:
                course.close(self._now, "stopped")
        scheduler, busy = self._scheduler, self._device.busy(self._now)
        return Outcome(self._now, busy, scheduler.held_ns, scheduler.lost_turns, self._failures, self._stopped)

    def _loop(self) -> None:
        while True:
            self._give()
            coming = self._next_time()
            if coming is None or self._stopped is not None:
                return
            if self._until_ns is not None and coming > self._until_ns:
                self._now, self._stopped = self._until_ns, "until"
                return
            if coming > self._now:
                self._now, self._still = coming, 0
            self._happen()

    def _give(self) -> None:
        """Give the device to whose turn it is."""
        self._wake_ns = None
        try:
            choice = self._scheduler.choose(self._now)
            while choice.client is not None:
                self._start(self._courses[choice.client])
                choice = self._scheduler.choose(self._now)
            self._wake_ns = choice.until_ns
        except SchedulingError as error:
            for course in self._courses:
                if self._scheduler.state(course.index) is State.WAITING:
                    self._fail(course, error)

    def _next_time(self) -> int | None:
        """Return when something happens next: a quantum ends, host work does, or the scheduler wants to be asked."""
        coming = self._device.next_end
        for time in (self._wake_ns, self._events[0][0] if self._events else None):
            if time is not None and (coming is None or time < coming):
                coming = time
        return coming

    def _happen(self) -> None:
        """Let happen what is due now; whose turn it is is asked for afterwards."""
        now = self._now
        for index, begun in self._device.take(now):
            self._count()
            course = self._courses[index]
            self._scheduler.finish(index, now, now - begun)
            course.ran(begun, now, self._weights[index])
            host = 0 if course.quantum is None else course.quantum.host_ns
            if host > 0:
                self._at(now + host, self._proceed, course)
            else:
                self._proceed(course)
        while self._events and self._events[0][0] <= now and self._stopped is None:
            self._count()
            _, _, act, course = heappop(self._events)
            act(course)

    def _count(self) -> None:
        self._still += 1
        if self._still > _STILL * len(self._courses):
            raise SchedulingError("Time does not go on: tasks have jobs without work for ever.")

    def _at(self, time: int, act: Callable[[Course], None], course: Course) -> None:
        heappush(self._events, (time, next(self._order), act, course))

    def _start(self, course: Course) -> None:
        index, quantum = course.index, course.quantum
        assert quantum is not None
        assert quantum.device_ns is not None
        self._weights[index] = self._scheduler.weight(index)
        try:
            quantum.run()
        except Exception as error:
            self._fail(course, error)
        else:
            self._device.add(index, quantum.device_ns, self._now)

    def _proceed(self, course: Course) -> None:
        """The host work of a task is done: it asks for its next quantum, or has come to the end of a job."""
        step = course.done(self._now)
        if step is not None:
            self._observer.step(step)
        try:
            quantum = self._next_quantum(course)
        except Exception as error:
            self._fail(course, error)
            return
        if quantum is not None:
            course.asks(quantum, self._now)
            deadline = None if course.job is None else course.job.deadline_ns
            self._scheduler.arrive(course.index, self._now, quantum.phase, deadline)

    def _next_quantum(self, course: Course) -> Quantum | None:
        """Return what the task asks for now; None where it waits for a release, or has ended."""
        if course.job is None:
            job = course.begin(self.now)
            if job is None:
                self._scheduler.end(course.index, self._now)
                return None
            if job.release_ns > self._now:
                if self._scheduler.state(course.index) is State.RETURNING:
                    self._scheduler.leave(course.index, self._now)
                self._at(job.release_ns, self._proceed, course)
                return None
        quantum = course.fetch()
        if quantum is None:
            self._at(self._now, self._complete, course)
        elif quantum.device_ns is None or quantum.device_ns < 0 or quantum.host_ns < 0:
            raise SchedulingError(
                f"A {quantum.phase} step of {course.task.name} does not say what it costs: only simulated tasks run in "
                "virtual time."
            )
        return quantum

    def _complete(self, course: Course) -> None:
        record = course.close(self._now)
        if record is not None:
            self._observer.job(record)
        if course.failure is not None:
            self._fail(course, course.failure)
        else:
            self._proceed(course)

    def _fail(self, course: Course, error: Exception) -> None:
        self._failures[course.index] = error
        self._scheduler.end(course.index, self._now)
        record = course.close(self._now, "failed", error)
        if record is not None:
            self._observer.job(record)
        if self._on_error == "fail-fast":
            self._stopped = "failure"

    def _stop_all(self) -> None:
        """Record what had begun and is not complete."""
        for course in self._courses:
            step = course.done(self._now)
            if step is not None:
                self._observer.step(step)
            record = course.close(self._now, "stopped")
            if record is not None:
                self._observer.job(record)
