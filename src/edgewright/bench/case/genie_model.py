"""What a Genie dialog configuration says about its dialogs: table, sampling, length, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgewright.errors import GenieError
from edgewright.runtime.encoding import DType, EmbeddingFile, Encoding

if TYPE_CHECKING:
    from edgewright.genie.config import Dialog, Embedding

#: The keys of a sampler's token-penalty, what we call them, and the value that is none.
_PENALTIES = {
    "repetition-penalty": ("repetition_penalty", 1.0),
    "presence-penalty": ("presence_penalty", 0.0),
    "frequency-penalty": ("frequency_penalty", 0.0),
}
_SEEDS = 1 << 64
_LONGEST_PATH = 4096


@dataclass(frozen=True)
class GenieDefaults:
    """What a configuration says, None and {} where it says nothing; `hidden` is the width of a row of embeddings."""

    table: EmbeddingFile | None = None
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    hidden: int | None = None
    vocab: int | None = None
    context: int | None = None


def genie_defaults(path: Path) -> GenieDefaults:
    """Return what a dialog configuration says; nothing where there is no such file.

    Raises GenieError where Genie's library would refuse it, and where it says what can't be done here.
    """
    from edgewright.genie.config import read_dialog

    if not path.is_file():
        return GenieDefaults()
    dialog = read_dialog(path)
    embedding, most = dialog.embedding, dialog.max_num_tokens
    return GenieDefaults(
        table=_table(path, embedding) if embedding is not None and embedding.type == "lut" else None,
        # The library counts after it has given the token: 0 means one.
        max_tokens=None if most is None else max(most, 1),
        sampling=_sampling(path, dialog),
        stop=tuple(text for text in dialog.stop_sequence if text),
        hidden=None if embedding is None else embedding.size,
        vocab=dialog.context.n_vocab,
        context=dialog.context.size,
    )


def _table(path: Path, embedding: Embedding) -> EmbeddingFile:
    """Return the table of a configuration; relative paths are those of the working directory, else beside the file."""
    text = embedding.lut_path or ""
    if not text.isprintable() or not 1 <= len(text) <= _LONGEST_PATH:
        raise GenieError(f"{path}: the table's lut-path can't be the name of a file: correct it.")
    name = Path(text)
    file = path.parent / name if (path.parent / name).is_file() and not name.is_file() else name
    if embedding.dtype == "float32":
        return EmbeddingFile(file)
    if embedding.dtype is None or embedding.scale is None or embedding.offset is None:
        raise GenieError(
            f"{path}: the table {name} is in the engine's own encoding, which isn't known here: state datatype and "
            "quant-param, or give the table with -t."
        )
    return EmbeddingFile(file, Encoding(cast(DType, embedding.dtype), embedding.scale, embedding.offset), stated=True)


def _sampling(path: Path, dialog: Dialog) -> dict[str, Any]:
    """Return a sampler as SamplingParams has it."""
    sampler = dialog.sampler
    if sampler is None:
        return {}
    if sampler.type != "basic":
        raise GenieError(f"{path}: a sampler of the type {sampler.type} is a program's own: use the type basic.")
    found: dict[str, Any] = {}
    if not sampler.greedy:
        found = {"temperature": float(sampler.temp), "top_p": float(sampler.top_p), "top_k": max(sampler.top_k, 0)}
        if sampler.seed is not None:
            found["seed"] = sampler.seed % _SEEDS
    penalty = dialog.data["dialog"]["sampler"].get("token-penalty", {})
    for key, (name, none) in _PENALTIES.items():
        if penalty.get(key, none) != none:
            found[name] = float(penalty[key])
    return found
