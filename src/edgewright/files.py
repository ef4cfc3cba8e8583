"""Files: digests, folders that appear only when complete, paths that stay inside their folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from edgewright.errors import BundleError, OutputError


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

    Anything else (an error, Ctrl-C) removes the sibling. Only an empty folder, or one that holds the file `mark` of its
    `kind`, is ever replaced. Raises OutputError when `final` exists and is not to be replaced, or can't be written.
    """
    final = final.resolve() if replace else final.absolute()
    if (final.exists() or final.is_symlink()) and not replace:
        raise OutputError(f"{final.name} exists already: remove it, choose another name, or pass --force.")
    if final.exists():
        _require_replaceable(final, mark, kind)
    with os_errors(final.name):
        final.parent.mkdir(parents=True, exist_ok=True)
        work = final.with_name(f".{final.name}.partial-{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
    old = final.with_name(f".{final.name}.old-{os.getpid()}")
    try:
        with os_errors(final.name):
            yield work
            _flush(work)
            if final.exists():
                final.rename(old)
            work.rename(final)
    finally:
        if old.exists() and not final.exists():
            old.rename(final)  # interrupted between the two renames
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)


def _require_replaceable(final: Path, mark: str, kind: str) -> None:
    """Raise OutputError unless `final` is a folder of ours or empty, and nobody works in it."""
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
    """Copy the named files of a folder into `target`, as hard links where the disk allows it.

    Replace the copies, don't rewrite them: a link shares its bytes with the source.
    """
    for name in names:
        path, place = inside(source, name), inside(target, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, place)
        except OSError:
            shutil.copy2(path, place)


def cache_home() -> Path:
    """Return the folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118
    return Path(base) / "edgewright"


def quantized_home() -> Path:
    """Return where quantized checkpoints that a build made are kept."""
    return cache_home() / "quantized"
