"""A reduced vocabulary: which token ids a bundle kept, and where their rows and logits stand.

Ids are the tokenizer's own everywhere outside; only what goes into the engine and comes out of it is counted in places
of the kept ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.bundle import Manifest
from edgewright.errors import BundleError, GenerationError
from edgewright.files import inside

Ids = npt.NDArray[np.int64]
#: Name of the sidecar, and of the one tensor in it.
SIDECAR = "vocabulary.safetensors"
_TENSOR = "kept_ids"


class Vocabulary:
    """The kept ids, int64 `[kept]`, ascending, of a full vocabulary of `full_size` ids.

    Row j of the tables and column j of the logits belong to token `ids[j]`. Raises BundleError for ids that are not
    ascending, not unique, or out of range.
    """

    def __init__(self, ids: Ids, full_size: int) -> None:
        problem = _problem(ids, full_size)
        if problem:
            raise BundleError(f"The bundle's reduced vocabulary {problem}: deploy the checkpoint again.")
        self.ids = ids.astype(np.int64)
        self.full_size = full_size
        self._columns = np.full(full_size, -1, dtype=np.int64)
        self._columns[self.ids] = np.arange(len(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, token_id: int) -> bool:
        return 0 <= token_id < self.full_size and bool(self._columns[token_id] >= 0)

    def columns(self, ids: Ids) -> Ids:
        """Return the places of token ids of any shape; raises GenerationError that names the first that was dropped."""
        if ids.size:
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.full_size:
                odd = low if low < 0 else high
                raise GenerationError(f"Token id {odd} is outside the vocabulary of {self.full_size}.")
        columns = self._columns[ids]
        if columns.size and columns.min() < 0:
            raise GenerationError(self.refusal(int(ids[columns < 0][0])))
        return columns

    def refusal(self, token_id: int, token: str | None = None) -> str:
        """Say in a sentence that a token was dropped."""
        named = f"id {token_id}" if token is None else f"{token!r} (id {token_id})"
        return (
            f"The token {named} is not among the {len(self)} of {self.full_size} that the bundle's reduced vocabulary "
            "keeps: use another token, or deploy again and name it with --vocab-keep."
        )


def sidecar_bytes(ids: Ids) -> bytes:
    """Return the sidecar: a safetensors file with one tensor `kept_ids`, int32 `[kept]`."""
    data = ids.astype("<i4").tobytes()
    entry = {"dtype": "I32", "shape": [len(ids)], "data_offsets": [0, len(data)]}
    header = json.dumps({_TENSOR: entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


def read_sidecar(path: Path, full_size: int) -> Vocabulary:
    """Read the sidecar; raises BundleError when it is damaged or holds other than ascending ids below `full_size`."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"The bundle's {path.name} can't be read ({error.strerror or error}): copy the bundle again."
        ) from None
    try:
        ids = _parsed(raw)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        raise BundleError(f"The bundle's {path.name} is damaged: copy the bundle again.") from None
    return Vocabulary(ids, full_size)


def vocabulary_of(folder: Path, manifest: Manifest) -> Vocabulary | None:
    """Return the reduced vocabulary of a bundle's `llm` stage, None where it is whole.

    Raises BundleError when it is damaged, or not of the engine's size.
    """
    if "vocabulary" not in manifest.model:
        return None
    name = f"sidecars/{SIDECAR}"
    if name not in manifest.files:
        raise BundleError(f"The bundle's vocabulary is reduced and {SIDECAR} is missing: copy the bundle again.")
    vocabulary = read_sidecar(inside(folder, name), int(manifest.model["vocab_size"]))
    columns = manifest.stages["llm"].contract.outputs[0].shape[-1]
    if len(vocabulary) != columns:
        raise BundleError(
            f"The bundle's {SIDECAR} has {len(vocabulary)} ids and its engine {columns} logits: deploy again."
        )
    return vocabulary


def _parsed(raw: bytes) -> Ids:
    """Return the ids of a sidecar; raises ValueError, KeyError, TypeError or AttributeError on another layout."""
    size = int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8 : 8 + size])
    entry = header[_TENSOR]
    (count,) = entry["shape"]
    data = raw[8 + size :]
    if header.keys() != {_TENSOR} or entry["dtype"] != "I32" or entry["data_offsets"] != [0, len(data)]:
        raise ValueError("another layout")
    if len(data) != 4 * count:
        raise ValueError("another size")
    return np.frombuffer(data, dtype="<i4").astype(np.int64)


def _problem(ids: Ids, full_size: int) -> str:
    """Say what is wrong with kept ids; empty when nothing is."""
    if not ids.size:
        return "is empty"
    steps = np.diff(ids)
    if (steps == 0).any():
        return f"has the id {int(ids[:-1][steps == 0][0])} twice"
    if (steps < 0).any():
        return "is not in ascending order"
    if ids[0] < 0 or ids[-1] >= full_size:
        return f"has the id {int(ids[0] if ids[0] < 0 else ids[-1])}, outside 0 to {full_size - 1}"
    return ""
