"""The gate in front of the accelerator, for tasks that are threads: a scheduler, a lock, and a wake-up for each task.

A task that waits sleeps until another one, which gives the accelerator back, has found that it is its turn: one
handover is one wake-up. When the accelerator is held for a task, or all are paused, nobody comes by, so a keeper of the
time is told when to ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from edgewright.errors import SchedulingError
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.work import Phase

#: How long a task that has handed the accelerator over lets the next one go first.
_LET_BEGIN_S = 5e-4


class StoppedError(Exception):
    """The run was stopped while a task waited; the driver of the task catches it."""


class Gate:
    """Gives the accelerator to one task at a time (to all that are not paused, where the discipline is `free`).

    `now` tells the run's time in ns; `alarm` is called, one call at a time, when `until_ns` comes earlier than it was
    and when the last task has gone. Methods are called from the task's own thread; `stop` and `keep` from any.
    """

    def __init__(self, scheduler: Scheduler, now: Callable[[], int], alarm: Callable[[], None]) -> None:
        self._scheduler, self._now, self._alarm = scheduler, now, alarm
        self._lock = Lock()
        count = len(scheduler.clients)
        self._wake = [_locked() for _ in range(count)]
        #: Tasks that sleep, or are about to, until somebody releases their lock; tasks that have the accelerator.
        self._sleeping: set[int] = set()
        self._granted: set[int] = set()
        #: What tasks release when they begin, where the one that gave them the accelerator waits for that.
        self._awaited: dict[int, Lock] = {}
        self._stopped = False
        self._stuck: SchedulingError | None = None
        self._weights = [0.0] * count
        self.busy_ns = self._busy_from = 0
        #: When the keeper of the time is to ask next, and how many tasks have not gone.
        self.until_ns: int | None = None
        self.left = count

    def enter(self, index: int, deadline_ns: int | None = None) -> None:
        """Begin the host work of a job, due then."""
        with self._lock:
            self._scheduler.enter(index, self._now(), deadline_ns)

    def leave(self, index: int) -> None:
        """Be away until the task enters or asks."""
        with self._lock:
            self._scheduler.leave(index, self._now())
            self._choose()

    def ask(self, index: int, phase: Phase, deadline_ns: int | None) -> int:
        """Ask for the accelerator without waiting; returns when that was. `wait` must follow, or `end`."""
        with self._lock:
            now = self._now()
            self._scheduler.arrive(index, now, phase, deadline_ns)
            self._sleeping.add(index)
            if self._stopped or self._stuck is not None:
                self._wake_sleepers()
            else:
                self._choose()
            return now

    def wait(self, index: int) -> float:
        """Wait until the task has the accelerator; returns its weight at that time.

        Raises StoppedError when the run was stopped, SchedulingError when nobody that is left can ever run.
        """
        self._wake[index].acquire()
        begun = self._awaited.pop(index, None)
        if begun is not None:
            begun.release()
        if index in self._granted:
            return self._weights[index]
        raise self._stuck or StoppedError("The run was stopped.")

    def give_back(self, index: int, cost_ns: int) -> None:
        """Give the accelerator back after `cost_ns` of use."""
        with self._lock:
            now = self._now()
            self._granted.discard(index)
            if self._scheduler.exclusive:
                self.busy_ns += cost_ns
            elif not self._granted:  # several at once keep it busy once
                self.busy_ns += now - self._busy_from
            self._scheduler.finish(index, now, cost_ns)
            begun = self._choose(awaited=True)
        # The host work that follows would keep the one that was woken from the interpreter's lock, or its processor.
        if begun is not None:
            begun.acquire(timeout=_LET_BEGIN_S)

    def end(self, index: int) -> None:
        """Go for good, from wherever the task was; if it had the accelerator it no longer has it."""
        with self._lock:
            self._granted.discard(index)
            self._sleeping.discard(index)
            self._scheduler.end(index, self._now())
            self.left -= 1
            self._choose()
            if not self.left:
                self._alarm()

    def stop(self) -> None:
        """Let no task have the accelerator any more, and wake all that wait."""
        with self._lock:
            self._stopped = True
            self._wake_sleepers()
            self._alarm()

    def keep(self) -> None:
        """Ask again whose turn it is: time has passed."""
        with self._lock:
            self.until_ns = None
            self._choose()

    def _choose(self, *, awaited: bool = False) -> Lock | None:
        """Give the accelerator to whose turn it is; the lock is held.

        With `awaited`, returns a lock that the task which gets it releases when it begins.
        """
        if self._stopped or self._stuck is not None:
            return None
        scheduler, now = self._scheduler, self._now()
        try:
            choice = scheduler.choose(now)
            while choice.client is not None:
                begun = _locked() if awaited and scheduler.exclusive else None
                if begun is not None:
                    # A new one each time: another may still be waiting for the one before.
                    self._awaited[choice.client] = begun
                if not self._granted:
                    self._busy_from = now
                self._grant(choice.client)
                if scheduler.exclusive:
                    return begun
                choice = scheduler.choose(now)
        except SchedulingError as error:
            self._stuck = error
            self._wake_sleepers()
            return None
        # A keeper that wakes too early asks again, so only an earlier time is news.
        if choice.until_ns is not None and (self.until_ns is None or choice.until_ns < self.until_ns):
            self.until_ns = choice.until_ns
            self._alarm()
        return None

    def _grant(self, index: int) -> None:
        self._weights[index] = self._scheduler.weight(index)
        self._granted.add(index)
        self._sleeping.discard(index)
        self._wake[index].release()

    def _wake_sleepers(self) -> None:
        for index in self._sleeping:
            self._wake[index].release()
        self._sleeping.clear()


def _locked() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock
