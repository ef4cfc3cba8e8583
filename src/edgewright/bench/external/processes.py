"""Starts programs at once and waits for them: chains of commands, with a time limit, and stopped as groups."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Why = Literal["timeout", "fail-fast", "interrupted"]

#: Errors of commands that were stopped before they began, and of those that went on.
NOT_STARTED, NOT_ENDED = "it was not started", "it could not be ended"

STDOUT, STDERR = "stdout.txt", "stderr.txt"
#: How long a stopped program may take to end by itself.
_GRACE_NS = 2_000_000_000
#: How often the waiting thread looks at the clock.
_LOOK_S = 0.02


@dataclass(frozen=True)
class Command:
    """One start of a program: what is executed, in which folder its output is kept, and when it may start.

    `earliest_ns` counts from the start of all chains, `pause_ns` from the end of the command before it in its chain.
    """

    argv: Sequence[str]
    folder: Path
    earliest_ns: int = 0
    pause_ns: int = 0


@dataclass(frozen=True)
class Ended:
    """How a command ended, in nanoseconds since the start of all chains.

    `returncode` is None where it could not be started (`error` says why) or was not, because of a stop, and where it
    could not be ended; minus the signal where one of this machine ended it. `stopped` says why it was stopped.
    """

    started_ns: int
    ended_ns: int
    returncode: int | None = None
    error: str | None = None
    stopped: Why | None = None


@dataclass
class _Running:
    """What the waiting thread and the chains' threads share; `left` chains have not ended.

    `under_way` has the place in its chain of each chain's command, and when it was begun; nobody adds to it once what
    could not be ended was given up.
    """

    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)
    given_up: bool = False
    why: Why | None = None
    stopped_ns: int = 0

    def stop_all(self, why: Why) -> None:
        """Ask every program to end; the first reason stays."""
        with self.lock:
            if self.why is None:
                self.why, self.stopped_ns = why, time.monotonic_ns()
                self.stop.set()
                _signal(self.processes, signal.SIGTERM)

    def chain_ended(self) -> None:
        """Count a chain as ended."""
        with self.lock:
            self.left -= 1
            if not self.left:
                self.done.set()

    def begin(self, chain: int, place: int) -> bool:
        """Note that a chain's command begins; False where everything was given up."""
        with self.lock:
            if not self.given_up:
                self.under_way[chain] = place, time.monotonic_ns()
            return not self.given_up

    def end(self, chain: int) -> bool:
        """Note that a chain's command ended; False where it was given up, so that its end is told already."""
        with self.lock:
            return not self.given_up and self.under_way.pop(chain, None) is not None

    def insist(self) -> None:
        """End what has not ended by itself after a stop; give up what even then goes on, another user's say."""
        since = 0 if self.why is None else time.monotonic_ns() - self.stopped_ns
        if since > _GRACE_NS:
            self.end_all()
        if since > 2 * _GRACE_NS:
            with self.lock:
                self.given_up = True

    def end_all(self) -> None:
        """End every program at once."""
        with self.lock:
            _signal(self.processes, signal.SIGKILL)


def run_chains(
    chains: Sequence[Sequence[Command]],
    ended: Callable[[int, int, Ended], None],
    *,
    timeout_s: float | None = None,
    fail_fast: bool = False,
) -> None:
    """Run all chains at once, the commands of each one after the other, a chain no further than its first failure.

    `ended` is told of each command that ends: its chain, its place there, and how; from the chains' threads. After
    `timeout_s` everything is stopped; with `fail_fast` also after the first failure. A KeyboardInterrupt stops
    everything, waits, and goes on.
    """
    if not chains:
        return
    running = _Running(len(chains))
    go = threading.Event()
    start: list[int] = []

    def follow(number: int) -> None:
        try:
            follow_to_its_end(number)
        finally:
            running.chain_ended()

    def follow_to_its_end(number: int) -> None:
        go.wait()
        before = 0
        for place, command in enumerate(chains[number]):
            if not running.begin(number, place):
                return
            try:
                result = _run(command, running, start[0], before)
            except OSError as error:  # no space for its outputs
                now = time.monotonic_ns() - start[0]
                result = Ended(now, now, None, error.strerror or str(error))
            if not running.end(number):
                return
            ended(number, place, result)
            before = result.ended_ns
            if result.returncode != 0:
                if fail_fast:
                    running.stop_all("fail-fast")
                return

    for number in range(len(chains)):
        threading.Thread(target=follow, args=(number,), name=f"chain-{number}", daemon=True).start()
    start.append(time.monotonic_ns())
    try:
        go.set()
        _wait(running, None if timeout_s is None else start[0] + int(timeout_s * 1e9))
        _tell_given_up(running, ended, start[0])
    except BaseException:
        running.stop_all("interrupted")
        try:
            _wait(running, None)
            _tell_given_up(running, ended, start[0])
        finally:
            running.end_all()  # nothing is left unless this was interrupted again
        raise


def _wait(running: _Running, limit_ns: int | None) -> None:
    # An interrupted Thread.join takes a thread for ended that is not (Python 3.11, 3.12), so it is not used.
    while not running.given_up and not running.done.wait(_LOOK_S):
        if limit_ns is not None and time.monotonic_ns() >= limit_ns:
            running.stop_all("timeout")
        running.insist()


def _tell_given_up(running: _Running, ended: Callable[[int, int, Ended], None], start_ns: int) -> None:
    if running.given_up:
        now = time.monotonic_ns() - start_ns
        for chain, (place, began) in running.under_way.items():
            ended(chain, place, Ended(began - start_ns, now, None, NOT_ENDED, running.why))


def _run(command: Command, running: _Running, start_ns: int, before_ns: int) -> Ended:
    """Run one command; its output goes straight into files, so that a crash of either program keeps it."""
    earliest = start_ns + max(command.earliest_ns, before_ns + command.pause_ns if before_ns else 0)
    running.stop.wait(max(0, earliest - time.monotonic_ns()) / 1e9)
    began = time.monotonic_ns()
    process: subprocess.Popen[bytes] | None = None
    with (command.folder / STDOUT).open("wb") as out, (command.folder / STDERR).open("wb") as err:
        with running.lock:
            now = began - start_ns
            if running.why is not None:
                return Ended(now, now, None, NOT_STARTED, running.why)
            try:
                process = subprocess.Popen(
                    list(command.argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                )
            except (OSError, ValueError) as error:
                return Ended(now, now, None, getattr(error, "strerror", None) or str(error))
            running.processes.add(process)
        code = process.wait()
        done = time.monotonic_ns()
    with running.lock:
        running.processes.discard(process)
        stopped = running.why if code != 0 else None
    return Ended(began - start_ns, done - start_ns, code, None, stopped)


def _signal(processes: set[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
