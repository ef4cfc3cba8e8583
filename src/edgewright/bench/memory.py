"""This process's memory as Linux counts it; None everywhere else."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR, _CLEAR_PEAK = Path("/proc/self/clear_refs"), "5"


def status_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status (`VmHWM`, `VmRSS`, `RssAnon`) in bytes."""
    try:
        text = _STATUS.read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None


def forget_peak() -> None:
    """Let `VmHWM` count from now on, where this system allows that."""
    with suppress(OSError):
        _CLEAR.write_text(_CLEAR_PEAK, encoding="ascii")


class AnonymousPeak:
    """Samples `RssAnon` on a thread while it is entered: memory that is not backed by a file, such as the weights' map.

    A peak shorter than `period_s` can be missed.
    """

    def __init__(self, period_s: float = 0.02) -> None:
        self._period_s = period_s
        self._done = threading.Event()
        self.bytes: int | None = None

    def __enter__(self) -> AnonymousPeak:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._done.is_set():
            self._sample()
            self._done.wait(self._period_s)

    def _sample(self) -> None:
        now = status_bytes("RssAnon")
        if now is not None:
            self.bytes = max(now, self.bytes or 0)
