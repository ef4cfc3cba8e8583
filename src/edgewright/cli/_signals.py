"""Ctrl-C and SIGTERM end a verb by KeyboardInterrupt: once a press, and never in the middle of an import.

An import that is interrupted may print a traceback of its own or turn the interrupt into another error (NumPy does
both), and an exception that is raised in a finalizer or below C code can get lost. So an import is waited for, and
what asks `check_stop` between steps hears of a lost one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: A second Ctrl-C within this time is the same wish, and must not cut the clean-up short.
_SAME_PRESS_S = 1.0
_ASK_AGAIN_S = 0.02

Handler = Callable[[int, FrameType | None], Any] | int | None


class Stop:
    """Whether somebody asked to stop; `handle` is the signal handler."""

    def __init__(self) -> None:
        self.requested = False
        self._raised_at = -_SAME_PRESS_S
        self._timer: threading.Timer | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or send the signal again shortly when an import is going on."""
        self.requested = True
        if time.monotonic() - self._raised_at < _SAME_PRESS_S:
            return
        if _importing(frame):
            self._timer = threading.Timer(_ASK_AGAIN_S, signal.pthread_kill, (threading.get_ident(), number))
            self._timer.daemon = True
            self._timer.start()
            return
        self._raised_at = time.monotonic()
        raise KeyboardInterrupt

    def close(self) -> None:
        """Send nothing any more."""
        if self._timer is not None:
            self._timer.cancel()


_stop = Stop()


def check_stop() -> None:
    """Raise KeyboardInterrupt if somebody asked to stop and the interrupt got lost."""
    if _stop.requested:
        raise KeyboardInterrupt


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Handle SIGINT and SIGTERM inside the block."""
    global _stop
    stop = _stop = Stop()
    before: dict[signal.Signals, Handler] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop.handle)
    except ValueError:
        pass  # not the main thread: signals are the caller's business
    try:
        yield stop
    finally:
        stop.close()
        _stop = Stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
