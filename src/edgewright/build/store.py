"""Finished steps of builds, kept in the user's cache by what decides over them, and taken over instead of done again.

An entry is a folder `steps/KEY`: the step's files below `files`, and `seal.json` with their sizes and digests, the
step's result, and a digest of itself. It has its name only when all that is on the disk; it is compared with the
digests before it is used. A cache that can't be used costs time, never a build.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewright.build.kept import held, lock_of, remove
from edgewright.build.key import DigestMemory
from edgewright.errors import EdgewrightError, OutputError, UsageError
from edgewright.files import cache_home, canonical_json, inside, new_folder, share_file, standing, steps_home
from edgewright.locks import sweep
from edgewright.progress import Progress

SEAL = "seal.json"
_FILES = "files"
#: Bytes that entries may take: this variable, or that much, or that share of what is free without them.
LIMIT_VARIABLE = "EDGEWRIGHT_CACHE_BYTES"
LIMIT_BYTES = 20 * 10**9
_SHARE_OF_DISK = 0.1
#: Scratch files of other processes that are older than this were left by one that was killed.
_STALE_SECONDS = 600

#: Size and digest of files by their path below a bundle's folder.
Files = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A finished step: what it was and of which model, its result as JSON, its files.

    `used` is when it was last used, in seconds since 1970.
    """

    path: Path
    title: str
    about: str
    result: Any
    files: Files
    used: float = 0.0

    @property
    def bytes(self) -> int:
        """The size of its files. On the disk they may take less: a bundle that has the same file shares it."""
        return sum(entry["bytes"] for entry in self.files.values())


@dataclass(frozen=True)
class Done:
    """What a step gave: its result as JSON, size and digest of its files, and whether it was taken from the store.

    `files` are those that are new or took another's place. `spoilt` are those that were written into or are gone, which
    another step can't be asked to do again.
    """

    result: Any
    files: Files
    reused: bool = False
    spoilt: tuple[str, ...] = ()


class Store:
    """The store of a build, which works in the folder of a bundle that is being made; `about` names its model."""

    def __init__(self, root: Path, progress: Progress, about: str) -> None:
        self._root, self._progress, self._about = root, progress, about
        self._limit = limit_bytes()
        self._usable = self._limit > 0
        if self._usable:
            with self._or_without():
                steps_home().mkdir(parents=True, exist_ok=True)
                sweep_store()

    def step(
        self,
        title: str,
        decides: Mapping[str, Any] | None,
        make: Callable[[], Any],
        worth: Callable[[Any], bool] = lambda result: True,
    ) -> Done:
        """Do a step or take it over: `make` writes files below the root and returns a result that JSON can hold.

        `decides` is everything that decides over them besides the title, None where that can't be said. The files that
        are new in the root, or in another's place, are the step's. `worth` tells of a result whether it is kept. Two
        builds that want the same do it once. Raises what `make` raises.
        """
        if not self._usable or decides is None:
            return self._made(make)
        parts = canonical_json({"step": title, **decides})
        folder = steps_home() / hashlib.sha256(parts).hexdigest()[:32]
        with self._held(folder):
            found = self._taken(folder, title)
            if found is not None:
                return found
            done = self._made(make)
            if self._usable and not done.spoilt and worth(done.result):
                self._put(folder, title, done)
            return done

    def _made(self, make: Callable[[], Any]) -> Done:
        before = standing(self._root)
        result = json.loads(canonical_json(make()))
        after = standing(self._root)
        files = {}
        with DigestMemory() as memory:
            for name in sorted(name for name, now in after.items() if before.get(name) != now):
                path = self._root / name
                files[name] = {"bytes": path.stat().st_size, "sha256": memory.digest(path)}
        spoilt = [
            name
            for name, was in before.items()
            if name not in after or (was != after[name] and was[0] == after[name][0])
        ]
        return Done(result, files, spoilt=tuple(spoilt))

    @contextmanager
    def _held(self, folder: Path) -> Iterator[None]:
        """Hold an entry's place; without a lock where none can be made."""
        with ExitStack() as stack:
            with self._or_without():
                stack.enter_context(held(folder, self._progress))
            yield

    def _taken(self, folder: Path, title: str) -> Done | None:
        """Take an entry's files over; None when there is none, or when it isn't what it was."""
        if not self._usable or not folder.exists():
            return None
        entry = read_entry(folder)
        if entry is None or not self._is_whole(entry):
            self._progress.note(
                f"The cache's copy of a finished step ({title}) is damaged: it is dropped, and the step is done again."
            )
            with self._or_without():
                remove(folder)
            return None
        with self._progress.step(f"reuse {title}"):
            try:
                self._share(entry)
            except OSError as error:
                self._without(error)
                return None
        with suppress(OSError):
            os.utime(folder / SEAL)
        return Done(entry.result, entry.files, reused=True)

    def _share(self, entry: Entry) -> None:
        """Put an entry's files into the root: all of them, or none where the disk refuses one, which is an OSError."""
        places = {name: inside(self._root, name) for name in entry.files}
        scratch = {name: place.with_name(f".{place.name}.taken") for name, place in places.items()}
        try:
            with DigestMemory() as memory:
                for name, file in entry.files.items():
                    scratch[name].parent.mkdir(parents=True, exist_ok=True)
                    share_file(entry.path / _FILES / name, scratch[name])
                    # A link changes the time that digests are remembered by.
                    memory.remember(entry.path / _FILES / name, file["sha256"])
            for name, place in places.items():
                place.unlink(missing_ok=True)  # two links to one file would not be renamed
                scratch[name].rename(place)
        finally:
            for path in scratch.values():
                path.unlink(missing_ok=True)

    def _is_whole(self, entry: Entry) -> bool:
        """Compare an entry's files with its digests."""
        try:
            with DigestMemory() as memory:
                for name, file in entry.files.items():
                    path = inside(entry.path / _FILES, name)
                    if path.stat().st_size != file["bytes"] or memory.digest(path) != file["sha256"]:
                        return False
        except (OSError, EdgewrightError):
            return False
        return True

    def _put(self, folder: Path, title: str, done: Done) -> None:
        """Keep a finished step, as far as there is room."""
        size = sum(entry["bytes"] for entry in done.files.values())
        with self._or_without():
            if not make_room(size, self._limit, keep=folder):
                return
            with new_folder(folder, replace=True, mark=SEAL, kind="finished step") as work:
                for name in done.files:
                    place = inside(work / _FILES, name)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    share_file(self._root / name, place)
                seal(work, title, self._about, done)

    @contextmanager
    def _or_without(self) -> Iterator[None]:
        """Go on without the store when the disk refuses."""
        try:
            yield
        except (OSError, OutputError) as error:
            self._without(error)

    def _without(self, error: Exception) -> None:
        if self._usable:
            words = getattr(error, "strerror", None) or error
            self._progress.note(
                f"The cache folder {cache_home()} can't be used ({words}), so that finished steps of this build are "
                "not kept."
            )
        self._usable = False


def seal(folder: Path, title: str, about: str, done: Done) -> None:
    """Write down what a finished step's folder holds."""
    files = {name: dict(file) for name, file in done.files.items()}
    body = {"step": title, "about": about, "result": done.result, "files": files}
    digest = hashlib.sha256(canonical_json(body)).hexdigest()
    (folder / SEAL).write_bytes(canonical_json({**body, "sha256": digest}))


def read_entry(folder: Path) -> Entry | None:
    """Return an entry by its seal, which is checked; its files are not. None when it isn't as it was written."""
    try:
        body = json.loads((folder / SEAL).read_bytes())
        digest = body.pop("sha256")
        if digest != hashlib.sha256(canonical_json(body)).hexdigest():
            return None
        if not all(isinstance(f["bytes"], int) and isinstance(f["sha256"], str) for f in body["files"].values()):
            return None
        used = (folder / SEAL).stat().st_mtime
        return Entry(folder, str(body["step"]), str(body["about"]), body["result"], body["files"], used)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def entries() -> list[Entry]:
    """Return the entries of the store that can be read, those first that were not used for longest."""
    found = [entry for path in _folders() if (entry := read_entry(path)) is not None]
    return sorted(found, key=lambda entry: entry.used)


def _folders() -> list[Path]:
    try:
        return sorted(path for path in steps_home().iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def make_room(size: int, limit: int, *, keep: Path | None = None) -> bool:
    """Delete the entries that were not used for longest until `size` more bytes fit into the limit.

    Before them go those that can't be read, whose size nobody knows. Those in use stay. Tells whether it fits.
    """
    for path in _folders():
        if path != keep and read_entry(path) is None:
            drop(path)
    present = entries()
    total = sum(entry.bytes for entry in present)
    if size > limit:
        return False
    for entry in present:
        if total + size <= limit:
            break
        if entry.path != keep and drop(entry.path):
            total -= entry.bytes
    return total + size <= limit


def drop(folder: Path) -> bool:
    """Delete an entry unless it is in use; tells whether it is gone. Raises OSError."""
    lock = lock_of(folder)
    if lock is None:
        return False
    with lock:
        remove(folder)
        _lock_name(folder).unlink(missing_ok=True)
    return not folder.exists()


def sweep_store() -> None:
    """Delete what killed builds left in the cache, and the locks of entries that are not there."""
    home = steps_home()
    sweep(home.glob(".*.partial-*"))
    sweep(home.glob(".*.old-*"))
    for path in home.glob("*.lock"):
        if not path.with_suffix("").exists():
            lock = lock_of(path.with_suffix(""))
            if lock is not None:
                with lock:
                    path.unlink(missing_ok=True)
    for path in cache_home().glob("digests-*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def limit_bytes() -> int:
    """Return how many bytes finished steps may take, 0 for a store that isn't used; raises UsageError."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if text:
        if not text.isascii() or not text.isdigit():
            raise UsageError(f"{LIMIT_VARIABLE} is {text!r}: give a number of bytes, 0 to keep no finished steps.")
        return int(text)
    place = cache_home()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        room = shutil.disk_usage(place).free + sum(entry.bytes for entry in entries())
        return min(LIMIT_BYTES, int(room * _SHARE_OF_DISK))
    except OSError:
        return LIMIT_BYTES


def _lock_name(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
