"""What a Genie configuration needs to know of a bundle, with what only the user can say."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewright.bundle import Manifest
from edgewright.errors import BundleError, GenieError, UsageError
from edgewright.files import inside

if TYPE_CHECKING:
    from edgewright.genie.writing import Model
    from edgewright.runtime.embedding import EmbeddingTable, Floats

_ROWS = 1024
#: Of a checkpoint's config.json, which may name thousands of labels.
_LARGEST_CONFIG = 16 << 20


def model_of(args: argparse.Namespace, manifest: Manifest, table: EmbeddingTable | None) -> Model:
    """Return a bundle's figures for Genie.

    Raises GenieError where Genie can't run such a model, UsageError for what must be given or can't be.
    """
    from edgewright.genie.rope import Rope, rope_of
    from edgewright.genie.writing import Model, Table

    folder = Path(args.bundle)
    head_dim = _head_dim(manifest)
    longest = manifest.stages["llm"].contract.bounds["capacity"][1]
    if args.context is not None and args.context > longest:
        raise UsageError(f"The bundle was built for {longest} tokens, so --context {args.context} can't be: give less.")
    config = _checkpoint_config(args, manifest)
    rope = Rope(args.rope_theta, head_dim // 2) if args.rope_theta is not None else rope_of(config, head_dim)
    generation = _sidecar(folder, manifest, "generation_config.json")
    bos, eos = _specials(args, folder, manifest, generation, config)
    return Model(
        context=args.context or longest,
        vocab=int(manifest.model["vocab_size"]),
        bos=bos,
        eos=eos,
        head_dim=head_dim,
        rope=rope,
        table=None if table is None else Table(table.hidden),
        sampling=generation,
    )


def _head_dim(manifest: Manifest) -> int:
    """Return the width of the heads, which must be one; raises GenieError for what isn't a plain decoder."""
    if "llm" not in manifest.stages or manifest.model.get("policy") is not None:
        raise GenieError("The bundle holds no language model, and Genie runs nothing else: give another.")
    contract = manifest.stages["llm"].contract
    widths = {(layer.head_dim, layer.value_dim or layer.head_dim) for layer in contract.kv}
    if contract.state or len(widths) != 1 or any(key != value for key, value in widths):
        raise GenieError(
            "The model has recurrent states, or heads of several widths, and Genie has one kv-dim for all layers: it "
            "can't run there."
        )
    if manifest.model.get("vocabulary"):
        raise GenieError("The bundle has a reduced vocabulary, which Genie can't translate: deploy all of it.")
    return next(iter(widths))[0]


def _checkpoint_config(args: argparse.Namespace, manifest: Manifest) -> dict[str, Any]:
    """Return the checkpoint's config.json, nothing where the base of the rotation was given instead."""
    from edgewright.genie.document import read_bytes

    if (args.model_config is None) == (args.rope_theta is None):
        raise UsageError(
            "A bundle doesn't say how its model turns positions: give --model-config with its config.json, or "
            "--rope-theta for a model that scales nothing; one of them."
        )
    if args.model_config is None:
        return {}
    path = Path(args.model_config)
    path = path / "config.json" if path.is_dir() else path
    try:
        raw = read_bytes(path, _LARGEST_CONFIG)
        config = json.loads(raw)
    except GenieError as error:
        raise UsageError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON ({error}): give the checkpoint's config.json.") from None
    known = manifest.source.get("files", {}).get("config.json", {}).get("sha256")
    if known is not None and known != hashlib.sha256(raw).hexdigest():
        raise UsageError(f"{path} is not the config.json that the bundle was built from: give that one.")
    if not isinstance(config, dict):
        raise UsageError(f"{path} holds no object: give the checkpoint's config.json.")
    return config


def _specials(
    args: argparse.Namespace,
    folder: Path,
    manifest: Manifest,
    generation: Mapping[str, Any],
    config: Mapping[str, Any],
) -> tuple[int, tuple[int, ...]]:
    """Return the ids that begin and end a text; raises UsageError where nothing says them."""
    from edgewright.runtime.stopping import eos_token_ids
    from edgewright.runtime.text import Tokenizer

    path = tokenizer_of(folder, manifest)
    tokenizer = Tokenizer.from_files(path, _sidecar(folder, manifest, "tokenizer_config.json"))
    eos = tuple(args.eos) if args.eos else eos_token_ids(generation, manifest.model, tokenizer)
    if not eos:
        raise UsageError("Nothing in the bundle says which token ends a text: give --eos.")
    said = (args.bos, generation.get("bos_token_id"), config.get("bos_token_id"), tokenizer.bos_token_id)
    bos = next((one for one in said if isinstance(one, int)), None)
    if bos is None:
        raise UsageError(
            "Nothing says which token begins a text, and Genie wants one: give --bos (the end's id where the model "
            "has none)."
        )
    vocab = int(manifest.model["vocab_size"])
    beyond = [one for one in (bos, *eos) if not 0 <= one < vocab]
    if beyond:
        raise UsageError(
            f"The token {beyond[0]} is none of the model's, which end with {vocab - 1}: give --bos, --eos."
        )
    return bos, eos


def tokenizer_of(folder: Path, manifest: Manifest) -> Path:
    """Return the path of the bundle's tokenizer; raises BundleError where there is none."""
    name = "sidecars/tokenizer.json"
    if name not in manifest.files:
        raise BundleError("The bundle has no tokenizer.json, which Genie needs: deploy from a checkpoint that has it.")
    return inside(folder, name)


def _sidecar(folder: Path, manifest: Manifest, name: str) -> dict[str, Any]:
    place = f"sidecars/{name}"
    if place not in manifest.files:
        return {}
    try:
        data = json.loads(inside(folder, place).read_bytes())
    except (OSError, ValueError, RecursionError):
        raise BundleError(f"The bundle's {name} can't be read: copy or build the bundle again.") from None
    return data if isinstance(data, dict) else {}


def rows_of(table: EmbeddingTable) -> Iterator[Floats]:
    """Yield all rows of a table, some at a time."""
    for start in range(0, table.vocab, _ROWS):
        yield table.rows(np.arange(start, min(start + _ROWS, table.vocab)))


def span_of(table: EmbeddingTable) -> tuple[float, float]:
    """Return the smallest and the largest value of a table."""
    low = high = 0.0
    for rows in rows_of(table):
        low, high = min(low, float(rows.min())), max(high, float(rows.max()))
    return low, high
