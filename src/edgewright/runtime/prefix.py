"""A prompt's cache in a file: computed once, restored in milliseconds, refused for any other model.

The file is an uncompressed `.npz` without pickled objects: `ids` int64 `[n]`, `model` (the model id), and the cache
tensors `kv.0`, `kv.1`, ... `[batch, kv_heads, n, width]`, recurrent states at the end.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgewright.errors import GenerationError
from edgewright.files import os_errors
from edgewright.runtime.session import Session

#: What NumPy and zipfile raise on damaged files.
_DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    MemoryError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)


def save_prefix(path: Path, session: Session, ids: Sequence[int], model_id: str) -> None:
    """Write a session's cache and the ids it was made of; the file appears only when complete.

    Raises GenerationError when `ids` are not as many as the session holds or it was fed embeddings, OutputError when
    the disk refuses.
    """
    if session.cache() and session.cache()[0].shape[0] != 1:
        raise GenerationError("A prefix cache holds one sequence: save it from a session of batch 1.")
    if not session.ids_only:
        raise GenerationError(
            "The session was fed rows of embeddings, which ids don't describe: its prefix can't be saved."
        )
    if len(ids) != session.length:
        raise GenerationError(f"{len(ids)} ids don't describe a session that holds {session.length} tokens.")
    arrays: dict[str, np.ndarray] = {"ids": np.asarray(ids, dtype=np.int64), "model": np.array(model_id)}
    arrays |= {f"kv.{index}": array for index, array in enumerate(session.cache())}
    scratch = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with os_errors(path.name), scratch.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        with os_errors(path.name):
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def load_prefix(path: Path, session: Session, model_id: str) -> list[int]:
    """Restore a saved cache into `session`; returns its ids.

    Raises GenerationError when the file is missing, damaged, or was made by another model.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            if str(data["model"]) != model_id:
                raise GenerationError(f"{path.name} was saved by another model or build: compute the prefix again.")
            ids = data["ids"]
            cache = [data[f"kv.{index}"] for index in range(len(session.cache()))]
    except FileNotFoundError:
        raise GenerationError(f"There is no prefix cache {path}: save one first.") from None
    except _DAMAGED as error:
        raise GenerationError(
            f"{path.name} is not a readable prefix cache ({error}): compute the prefix again."
        ) from None
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise GenerationError(f"{path.name} holds no token ids: compute the prefix again.")
    session.restore(cache, ids)
    return [int(i) for i in ids]
