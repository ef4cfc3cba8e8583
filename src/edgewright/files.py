"""Files: digests, folders that appear only when complete, paths that stay inside their folder."""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from edgewright.errors import BundleError, OutputError
from edgewright.locks import Held, sweep

try:
    import fcntl
except ImportError:  # not on every system; then files are not cloned
    fcntl = None  # type: ignore[assignment]
_HAS_CLONES: bool = fcntl is not None

#: Files of at least this size are shared as links where they can't be cloned; smaller ones, which people edit, are not.
LINKED_BYTES = 1 << 20
#: Linux's requests to clone a file (FICLONE), and to swap two names (RENAME_EXCHANGE of renameat2, at AT_FDCWD).
_CLONE, _EXCHANGE, _HERE = 0x40049409, 2, -100
_SCRATCH = ".edgewright-scratch-"
Standing = dict[str, tuple[int, int, int]]


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 in hex, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(data: Any) -> bytes:
    """Return the one spelling of JSON data: sorted keys, two spaces, a final newline."""
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def inside(folder: Path, name: str) -> Path:
    """Return `folder / name` for a name read from a file; raises BundleError when it would leave the folder."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise BundleError(f"The file name {name!r} points outside the bundle, so the bundle is refused.")
    path = folder.joinpath(*parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"The file {name!r} is a link that leaves the bundle, so the bundle is refused.")
    return path


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn what the operating system refuses into an OutputError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"No space is left while writing {what}: free some, or choose another disk.") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OutputError(
                f"{error.filename or what} can't be written ({error.strerror}): choose a folder you may write to."
            ) from None
        place = f" at {error.filename}" if error.filename else ""
        raise OutputError(
            f"Writing {what} failed{place} ({error.strerror or error}): choose another place, or check the disk."
        ) from None


@contextmanager
def new_folder(
    final: Path, *, replace: bool = False, mark: str = "manifest.json", kind: str = "bundle"
) -> Iterator[Path]:
    """Give a temporary sibling of `final` that takes its name only when the block ends well.

    Anything else (an error, Ctrl-C) removes the sibling; what a killed process left of it is removed by the next one
    that makes the same. Only an empty folder, or one that holds the file `mark` of its `kind`, is ever replaced. Raises
    OutputError when `final` exists and is not to be replaced, or can't be written.
    """
    final = final.resolve() if replace else final.absolute()
    # The process's number alone is not enough: threads share it, and containers with a folder in common may.
    own = f"{os.getpid()}-{secrets.token_hex(4)}"
    old, work = (final.with_name(f".{final.name}.{what}-{own}") for what in ("old", "partial"))
    clear_leftovers(final)
    _require_room(final, mark, kind, replace=replace)
    with os_errors(final.name):
        final.parent.mkdir(parents=True, exist_ok=True)
        held = Held(work)
    try:
        with os_errors(final.name):
            yield work
            _flush(work)
            _require_room(final, mark, kind, replace=replace)  # much may have happened meanwhile
            if not (final.exists() and _exchanged(work, final)):
                if final.exists():
                    final.rename(old)
                work.rename(final)
            _flush_names(final.parent)
    finally:
        if old.exists() and not final.exists():
            old.rename(final)  # interrupted between the two renames
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
        held.release()


def clear_leftovers(final: Path) -> None:
    """Remove what killed processes left beside `final`; what they had moved away before is moved back."""
    if not final.parent.is_dir():
        return
    old = sorted(final.parent.glob(f".{glob.escape(final.name)}.old-*"))
    if old and not final.exists() and not final.is_symlink():
        with suppress(OSError):
            old[0].rename(final)
    sweep([*final.parent.glob(f".{glob.escape(final.name)}.partial-*"), *old])


def _exchanged(work: Path, final: Path) -> bool:
    """Swap two folders in one step, so that one of the two is `final` at every moment; False where that can't be."""
    try:
        swap = ctypes.CDLL(None).renameat2
        return bool(swap(_HERE, os.fsencode(work), _HERE, os.fsencode(final), _EXCHANGE) == 0)
    except (OSError, AttributeError, TypeError):
        return False


@contextmanager
def scratch_folder(place: Path | None = None) -> Iterator[Path]:
    """Give a temporary folder in `place`, by default the system's, that is gone when the block ends.

    What killed processes left of such is removed, too.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    sweep(place.glob(f"{_SCRATCH}*"))
    folder = place / f"{_SCRATCH}{secrets.token_hex(8)}"
    held = Held(folder, mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        held.release()


def _require_room(final: Path, mark: str, kind: str, *, replace: bool) -> None:
    """Raise OutputError unless `final` isn't there, or may be replaced: ours or empty, and nobody works in it."""
    if (final.exists() or final.is_symlink()) and not replace:
        raise OutputError(f"{final.name} exists already: remove it, choose another name, or pass --force.")
    if not final.exists():
        return
    if not final.is_dir():
        raise OutputError(f"{final.name} exists and is not a folder: choose another name.")
    if any(final.iterdir()) and not (final / mark).is_file():
        raise OutputError(f"{final.name} exists and is no {kind}, so it is not replaced: remove it, or choose another.")
    if Path.cwd().resolve().is_relative_to(final):
        raise OutputError(f"{final.name} is the folder you are in, so it is not replaced: choose another name.")


def refuse_source(source: Path, final: Path) -> None:
    """Raise OutputError for an output that would replace the checkpoint it is made from."""
    if source.resolve().is_relative_to(final.resolve()):
        raise OutputError(f"{final.name} holds the checkpoint, so it is not replaced: choose another output.")


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise OutputError when the disk of `folder` has less than `needed_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise OutputError(
            f"{what} needs {needed_bytes / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free: free some, or choose "
            "another disk."
        )


def _flush(folder: Path) -> None:
    """Ask the disk to keep every file of the folder before it gets its final name."""
    for path in folder.rglob("*"):
        if path.is_file():
            _sync(path)
        elif path.is_dir():
            _flush_names(path)
    _flush_names(folder)


def _flush_names(folder: Path) -> None:
    """Ask the disk to keep the names in a folder, where it can be asked."""
    with suppress(OSError):
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a page and the folders above it; raises OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"The page {path} can't be written ({error.strerror or error}): choose another place."
        ) from None


def copy_files(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy the named files of a folder into `target`; see `share_file`."""
    for name in names:
        path, place = inside(source, name), inside(target, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        share_file(path, place)


def share_file(source: Path, target: Path) -> None:
    """Make a file's copy, cloned where the disk can do that; else a large one is a hard link if it can be.

    Replace such copies, don't rewrite them: a link shares its bytes with the source. Raises OSError.
    """
    if _cloned(source, target):
        return
    if source.stat().st_size >= LINKED_BYTES:
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _cloned(source: Path, target: Path) -> bool:
    """Copy a file without copying its bytes, as Btrfs and XFS can."""
    if not _HAS_CLONES:
        return False
    try:
        other = target.open("xb")
    except FileExistsError:
        return False
    try:
        with other, source.open("rb") as one:
            fcntl.ioctl(other.fileno(), _CLONE, one.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        return False
    shutil.copystat(source, target)
    return True


def standing(folder: Path, leave_out: Path | None = None) -> Standing:
    """Return everything in a folder but folders, by path: inode, size and time, of which one changes with the file.

    Links are not followed. What is in `leave_out` is left out.
    """
    found = {}
    for path in folder.rglob("*"):
        if leave_out is not None and path.is_relative_to(leave_out):
            continue
        known = path.lstat()
        if not stat.S_ISDIR(known.st_mode):
            found[path.relative_to(folder).as_posix()] = known.st_ino, known.st_size, known.st_mtime_ns
    return found


def changed(before: Standing, after: Standing) -> list[str]:
    """Return the paths of what was made, changed or removed, sorted."""
    return [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]


def cache_home() -> Path:
    """Return the folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118
    return Path(base) / "edgewright"


def steps_home() -> Path:
    """Return where the finished steps of builds are kept."""
    return cache_home() / "steps"


def quantized_home() -> Path:
    """Return where quantized checkpoints that a build made are kept."""
    return cache_home() / "quantized"


def tool_logs_home() -> Path:
    """Return where all that other vendors' compilers said is kept when they fail, the last time each."""
    return cache_home() / "tools"
