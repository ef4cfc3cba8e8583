"""Who works where: locks on files and on folders that end with their process, however it ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on every system; then nothing guards against two runs of the same, and nothing is swept
    fcntl = None  # type: ignore[assignment]
_HAS_LOCKS: bool = fcntl is not None


def try_lock(path: Path) -> IO[bytes] | None:
    """Return a lock file, made with the folders above it and held until it is closed; None while another has it.

    Whoever holds it may delete it. Raises OSError where it can't be made.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("ab")
        except FileNotFoundError:  # the folder was deleted just now
            continue
        try:
            if _HAS_LOCKS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still(path, file.fileno()):
                return file
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        file.close()  # it was deleted just now


class Held:
    """A folder that is made anew and held, so that `sweep` leaves it alone, until `release` or the process's end.

    Raises OSError when it can't be made; what stood in its place is deleted.
    """

    def __init__(self, folder: Path, *, mode: int = 0o777) -> None:
        while True:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode)
            try:
                self._descriptor = _opened(folder)
            except FileNotFoundError:  # a sweep came between
                continue
            if self._descriptor is None or _still(folder, self._descriptor):
                return
            os.close(self._descriptor)  # the same, a moment later

    def release(self) -> None:
        """Let go; the folder stays, under whatever name it has now."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def sweep(folders: Iterable[Path]) -> None:
    """Delete those folders that nobody holds any more: what killed processes left."""
    for folder in folders:
        try:
            descriptor = None if folder.is_symlink() or not folder.is_dir() else _opened(folder, wait=False)
        except OSError:  # held, or just deleted
            continue
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _opened(folder: Path, *, wait: bool = True) -> int | None:
    """Open a folder and lock it; None where the system has no locks."""
    if not _HAS_LOCKS:
        return None
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a disk without locks: held as far as that goes, and never swept
        os.close(descriptor)
        return None
    return descriptor


def _still(path: Path, descriptor: int) -> bool:
    """Tell whether a path is still what was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
