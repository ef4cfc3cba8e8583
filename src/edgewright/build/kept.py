"""Quantized checkpoints that builds keep in the user's cache: where they are, who works on them, if they are whole.

Light on purpose: an up-to-date answer must not wait for heavy imports.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from edgewright._version import __version__
from edgewright.build.key import DigestMemory, data_digests, up_to_date
from edgewright.bundle import Manifest
from edgewright.errors import OutputError
from edgewright.files import cache_home, canonical_json, clear_leftovers, quantized_home
from edgewright.locks import try_lock
from edgewright.progress import Progress
from edgewright.quant.recipe import Recipe

#: The file with the digests of all others of a kept folder.
SEAL = "seal.json"
_POLL_SECONDS = 0.2


def kept_folder(record: Mapping[str, Any], recipe: Recipe, **more: Any) -> Path:
    """Return where the quantized form of a checkpoint is kept; `more` is what decides over it besides."""
    parts = {"source": record["files"], "recipe": recipe.to_json(), "version": __version__, **more}
    parts["data"] = data_digests(recipe)
    return quantized_home() / hashlib.sha256(canonical_json(parts)).hexdigest()[:24]


def seal(folder: Path) -> None:
    """Write down the digests of a finished folder's files."""
    with DigestMemory() as memory:
        digests = {path.name: memory.digest(path) for path in sorted(folder.iterdir())}
    (folder / SEAL).write_bytes(canonical_json(digests))


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds the files it was sealed with and no others, each as it was."""
    try:
        digests = json.loads((folder / SEAL).read_bytes())
        if {path.name for path in folder.iterdir()} != {*digests, SEAL}:
            return False
        with DigestMemory() as memory:
            return bool(digests) and all(memory.digest(folder / name) == wanted for name, wanted in digests.items())
    except (OSError, ValueError, TypeError):
        return False


def unchanged(output: Path, key: str, *, verified: bool = False, force: bool = False) -> Manifest | None:
    """Return the manifest of a bundle of this very build, see `up_to_date`; what killed runs left beside it is removed.

    With `force` its quantized checkpoint must be whole as well, where one was kept: so a lost one can be made again.
    """
    clear_leftovers(output.absolute())
    manifest = up_to_date(output, key, verified=verified)
    if manifest is None or not force or "kept" not in manifest.source:
        return manifest
    return manifest if is_whole(quantized_home() / Path(str(manifest.source["kept"])).name) else None


def check_cache() -> None:
    """Make the cache's folder; raises OutputError, which names the variable that moves it, where that can't be."""
    home = quantized_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / f".writable-{os.getpid()}").open("wb") as file:
            file.write(b"\n")
        (home / f".writable-{os.getpid()}").unlink()
    except OSError as error:
        raise OutputError(
            f"The cache folder {cache_home()} can't be used ({error.strerror or error}), and a quantized checkpoint "
            "is made there: let XDG_CACHE_HOME name a folder you may write to."
        ) from None


@contextmanager
def held(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold a kept folder for the block: whoever wants the same meanwhile waits, and finds it finished."""
    lock = lock_of(folder)
    if lock is None:
        with progress.step("wait for another run of the same"):
            while lock is None:
                time.sleep(_POLL_SECONDS)
                lock = lock_of(folder)
    with lock:
        yield


def remove(folder: Path) -> None:
    """Delete what stands in a kept folder's place, whatever it is."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Delete the unfinished folders of runs that were killed: those whose lock nobody holds."""
    for left in [*quantized_home().glob(".*.partial-*"), *quantized_home().glob(".*.old-*")]:
        name = left.name[1:].rpartition(".")[0]
        lock = lock_of(quantized_home() / name)
        if lock is not None:
            with lock:
                shutil.rmtree(left, ignore_errors=True)


def lock_of(folder: Path) -> IO[bytes] | None:
    """Return the lock file of a kept folder, held until it is closed, or None while another run has it."""
    return try_lock(folder.with_name(f"{folder.name}.lock"))
