"""Runs another program: no shell, bounded output, a time limit, and nothing of it left running afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgewright.errors import ToolError, first_line

_BLOCK = 1 << 16
_LOOK_S = 0.02
#: How long a program that was asked to end may take to clean up.
GRACE_S = 2.0


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code (negative: the signal), None where the time was up; and what it printed."""

    code: int | None
    stdout: str
    stderr: str


class _Kept:
    """The first and the last bytes of a stream, on a thread of its own, so that the program never waits."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._half = stream, max(1, limit // 2)
        self._first, self._last, self._seen = bytearray(), bytearray(), 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):  # the stream is closed when the program is stopped
            while block := os.read(self._stream.fileno(), _BLOCK):
                self._seen += len(block)
                room = self._half - len(self._first)
                self._first += block[:room]
                self._last += block[max(room, 0) :]
                if len(self._last) > 2 * self._half:
                    del self._last[: -self._half]

    def text(self) -> str:
        """Return what there was, after the stream has ended."""
        self._thread.join(GRACE_S)
        last = bytes(self._last[-self._half :])
        left = self._seen - len(self._first) - len(last)
        middle = f"\n[{left} bytes are left out]\n" if left > 0 else ""
        return self._first.decode("utf-8", "replace") + middle + last.decode("utf-8", "replace")


def find_program(name: str, needed_by: str, package: str = "") -> str:
    """Return the path of a program that is on the PATH, or that is a path; raises ToolError where it isn't there."""
    found = shutil.which(name)
    if found is None:
        advice = package or "install it, and put it on the PATH"
        raise ToolError(f"{needed_by} needs the program {name}, which is not there: {advice}.")
    return str(Path(found).absolute())


def run_program(
    argv: Sequence[str], folder: Path, *, environment: Mapping[str, str], timeout_s: float, limit: int
) -> Ended:
    """Run a program in `folder` to its end, with all that it starts; `limit` bytes of each of its outputs are kept.

    Whatever ends this call (an interrupt, the time), the program's whole group of processes is ended first. Raises
    ToolError when it can't be started.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ToolError(f"The program {argv[0]} can't be started ({reason}): check its file and permissions.") from None
    assert process.stdout is not None
    assert process.stderr is not None
    kept = [_Kept(stream, limit) for stream in (process.stdout, process.stderr)]
    try:
        ended = _wait(process, timeout_s)
    finally:
        _end_group(process)
    texts = [one.text() for one in kept]
    for stream in (process.stdout, process.stderr):
        stream.close()
    return Ended(process.returncode if ended else None, *texts)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the end without collecting it: until it is collected, its group's number can't be another's."""
    until = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started: asked first, then by force, whatever happens meanwhile."""
    try:
        _signal(process, signal.SIGTERM)
        _wait(process, GRACE_S)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
