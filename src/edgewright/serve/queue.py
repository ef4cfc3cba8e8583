"""One inference at a time, and a bounded queue before it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgewright.serve.errors import RefusedError
from edgewright.serve.protocol import Inferred

Infer = Callable[[Mapping[str, Any]], Inferred]


@dataclass(frozen=True)
class Outcome:
    """What an inference came to: a chunk or an error, and the times in milliseconds."""

    chunk: Inferred | None
    error: BaseException | None
    queue_ms: float
    infer_ms: float


class InferenceQueue:
    """Runs `infer` on a thread of its own, in the order of arrival; to be made and used inside one event loop.

    A running inference can't be interrupted: when its request is given up (deadline, client gone), it runs to its end,
    its result is dropped, and the next one starts then. The thread is a daemon: a hung policy can't keep the process.
    """

    def __init__(self, infer: Infer, *, waiting: int) -> None:
        self._infer = infer
        self._limit = waiting
        self._loop = asyncio.get_running_loop()
        self._slot = asyncio.Lock()
        self._jobs: queue.SimpleQueue[tuple[Mapping[str, Any], asyncio.Future[Outcome], float] | None]
        self._jobs = queue.SimpleQueue()
        self._started: float | None = None
        self.waiting = 0
        threading.Thread(target=self._work, name="policy", daemon=True).start()

    @property
    def running_s(self) -> float:
        """How long the inference of now has been running, 0 when there is none."""
        return 0.0 if self._started is None else time.monotonic() - self._started

    def check_room(self) -> None:
        """Raise RefusedError when a request would find the queue full."""
        if (self._slot.locked() or self.waiting) and self.waiting >= self._limit:
            raise RefusedError(
                "busy",
                f"The policy is busy and {self.waiting} observations wait already, so this one was refused: "
                f"send the next one later.",
            )

    async def run(self, observation: Mapping[str, Any]) -> Outcome:
        """Wait for the turn, run, return; raises RefusedError when the queue is full. May be cancelled at any point."""
        self.check_room()
        arrived = time.monotonic()
        self.waiting += 1
        try:
            await self._slot.acquire()  # first in, first out
        finally:
            self.waiting -= 1
        self._started = time.monotonic()
        done: asyncio.Future[Outcome] = self._loop.create_future()
        self._jobs.put((observation, done, 1000 * (self._started - arrived)))
        return await done

    def close(self) -> None:
        """End the thread, after the inference that is running."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            observation, done, queue_ms = job
            chunk, error = None, None
            start = time.perf_counter()
            try:
                chunk = self._infer(observation)
            except BaseException as caught:  # whatever a policy raises, the next request must find this thread
                error = caught
            outcome = Outcome(chunk, error, queue_ms, 1000 * (time.perf_counter() - start))
            try:
                self._loop.call_soon_threadsafe(self._deliver, done, outcome)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _deliver(self, done: asyncio.Future[Outcome], outcome: Outcome) -> None:
        self._started = None
        self._slot.release()
        if not done.done():
            done.set_result(outcome)
