"""What the user's cache holds: finished steps, quantized checkpoints, unfinished calibrations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewright.build.store import SEAL, drop, read_entry, sweep_store
from edgewright.errors import OutputError
from edgewright.files import cache_home, quantized_home, steps_home, tool_logs_home
from edgewright.locks import try_lock

#: The kinds of what it holds. Builds do steps again; a quantized checkpoint may be needed by a verification.
STEP, QUANTIZED, UNFINISHED = "finished step", "quantized checkpoint", "unfinished calibration"
KINDS = (STEP, QUANTIZED, UNFINISHED)
#: The file of a quantized checkpoint that names its recipe; the module that writes it is a heavy import.
_REPORT = "quantization_report.json"


@dataclass(frozen=True)
class Cached:
    """One thing that is in the cache; `used` is when it was last used, in seconds since 1970."""

    kind: str
    path: Path
    title: str
    bytes: int
    used: float

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {"kind": self.kind, "path": str(self.path), "title": self.title, "bytes": self.bytes, "used": self.used}


@dataclass(frozen=True)
class Cleared:
    """What was deleted, and what was left because something works with it."""

    gone: tuple[Cached, ...]
    in_use: tuple[Cached, ...]


def contents() -> list[Cached]:
    """Return what is in the cache, by kind, those first that were not used for longest."""
    found = [*_folders(STEP, steps_home()), *_folders(QUANTIZED, quantized_home()), *_folders(UNFINISHED, _work_home())]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.used, one.path.name))


def clear(*, everything: bool = False) -> Cleared:
    """Delete the finished steps, or all there is; what is in use stays. Raises OutputError where the disk refuses."""
    gone: list[Cached] = []
    in_use: list[Cached] = []
    try:
        for one in contents():
            if everything or one.kind == STEP:
                (gone if _dropped(one) else in_use).append(one)
        sweep_store()
        if everything:
            (cache_home() / "digests.json").unlink(missing_ok=True)
            for log in tool_logs_home().glob("*.log"):
                log.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{error.filename or cache_home()} can't be deleted ({error.strerror or error}): check its permissions."
        ) from None
    return Cleared(tuple(gone), tuple(in_use))


def _work_home() -> Path:
    return cache_home() / "quantizing"


def _folders(kind: str, home: Path) -> Iterator[Cached]:
    try:
        folders = sorted(path for path in home.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return
    for folder in folders:
        with suppress(OSError):  # deleted meanwhile
            files = [path.stat() for path in folder.rglob("*") if path.is_file()]
            seal = folder / SEAL
            used = (seal if seal.is_file() else folder).stat().st_mtime
            yield Cached(kind, folder, _title(kind, folder), sum(file.st_size for file in files), used)


def _title(kind: str, folder: Path) -> str:
    if kind == STEP:
        entry = read_entry(folder)
        return "damaged" if entry is None else f"{entry.about}: {entry.title}"
    if kind == QUANTIZED:
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            return f"recipe {json.loads((folder / _REPORT).read_bytes())['recipe']}"
    return folder.name


def _dropped(one: Cached) -> bool:
    if one.kind != UNFINISHED:
        return drop(one.path)
    lock = try_lock(one.path / "lock")
    if lock is None:
        return False
    with lock:
        shutil.rmtree(one.path)
    return True
