"""A Genie folder around context binaries: dialog, HTP extensions, tokenizer, encodings of inputs and outputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.contract import StageContract
from edgewright.dialects.qnn_graph import COS, SIN
from edgewright.errors import GenieError, UsageError
from edgewright.files import canonical_json, inside
from edgewright.genie.config import write_config
from edgewright.genie.document import read_bytes
from edgewright.genie.rope import Rope, rope_of
from edgewright.genie.soc import Soc, extensions_of
from edgewright.genie.writing import CONFIG, EXTENSIONS, TOKENIZER, Model, Running, dialog_config
from edgewright.runtime.stopping import eos_token_ids
from edgewright.runtime.text import Tokenizer
from edgewright.runtime.vocabulary import SIDECAR

METADATA = "metadata.json"
_LARGEST_CONFIG = 16 << 20
_CLOSE = 1e-4


def write_genie(
    folder: Path,
    root: Path,
    contract: StageContract,
    soc: Soc,
    *,
    context: int,
    binaries: Sequence[str],
    metadata: Mapping[str, Any],
    tables: Mapping[str, npt.NDArray[np.float32]],
    windows: Mapping[str, int | None],
    config: Path | None,
) -> str | None:
    """Write the files into `folder`, where the binaries are; returns why there is no dialog, or None.

    `root` is the bundle. Raises UsageError on a config.json that can't be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / METADATA).write_bytes(canonical_json(dict(metadata)))
    write_config(folder / EXTENSIONS, "extensions", extensions_of(soc))
    if not (root / "sidecars" / TOKENIZER).is_file():
        return "there is no tokenizer"
    shutil.copyfile(inside(root, f"sidecars/{TOKENIZER}"), folder / TOKENIZER)
    try:
        model = _model(root, contract, context, tables, windows, config)
    except GenieError as error:
        return str(error)
    write_config(folder / CONFIG, "dialog", dialog_config(model, Running(list(binaries), mmap=soc.mmap)))
    return None


def _model(
    root: Path,
    contract: StageContract,
    context: int,
    tables: Mapping[str, npt.NDArray[np.float32]],
    windows: Mapping[str, int | None],
    config: Path | None,
) -> Model:
    """Return the model's figures; raises GenieError where Genie can't run it or nothing says them."""
    widths = {(layer.head_dim, layer.value_dim or layer.head_dim) for layer in contract.kv}
    if len(widths) != 1 or any(key != value for key, value in widths):
        raise GenieError("The heads have several widths, and Genie has one kv-dim for all layers.")
    if (root / "sidecars" / SIDECAR).is_file():
        raise GenieError("The vocabulary is reduced, which Genie can't translate.")
    if any(window is not None for window in windows.values()):
        raise GenieError("Some layers see a window of the context, and a basic Genie dialog gives all the same mask.")
    head_dim = next(iter(widths))[0]
    vocab = contract.outputs[0].shape[-1]
    assert isinstance(vocab, int)
    generation = _sidecar(root, "generation_config.json")
    tokenizer = Tokenizer.from_files(inside(root, f"sidecars/{TOKENIZER}"), _sidecar(root, "tokenizer_config.json"))
    given = {} if config is None else read_model_config(config)
    eos = eos_token_ids(generation, given, tokenizer)
    bos = next((one for one in (generation.get("bos_token_id"), tokenizer.bos_token_id) if isinstance(one, int)), None)
    if not eos:
        raise GenieError("Nothing in the bundle says which token ends a text: give one with edgewright genie-config.")
    rope = rope_of(given, head_dim) if config is not None else _rope(tables)
    return Model(context, vocab, eos[0] if bos is None else bos, eos, head_dim, rope, sampling=generation)


def _rope(tables: Mapping[str, npt.NDArray[np.float32]]) -> Rope:
    """Return the rotation that tables of cosines and sines are of, from the angles of the first position."""
    if len(tables) != 2:
        raise GenieError("The model turns positions in several ways, by layer, and Genie has one.")
    cos, sin = tables[COS], tables[SIN]
    pairs = cos.shape[1]
    angles = np.arctan2(sin[1].astype(np.float64), cos[1].astype(np.float64))
    plain = abs(float(np.hypot(cos[1], sin[1]).max()) - 1) < _CLOSE and abs(angles[0] - 1) < _CLOSE
    theta = float(angles[1] ** -pairs) if pairs > 1 and angles[1] > 0 else 0.0
    expected = theta ** (-np.arange(pairs) / pairs) if theta > 0 else np.zeros(pairs)
    if not plain or not np.allclose(angles, expected, rtol=1e-3, atol=1e-6):
        raise GenieError("The model scales its positions: give its config.json as the option genie-config.")
    digits = round(theta, -2) if abs(theta - round(theta, -2)) < theta * 1e-3 else theta
    return Rope(digits, pairs)


def read_model_config(path: Path) -> dict[str, Any]:
    """Return a checkpoint's config.json; raises UsageError where it can't be read."""
    try:
        data = json.loads(read_bytes(path, _LARGEST_CONFIG))
    except GenieError as error:
        raise UsageError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON ({error}): give the checkpoint's config.json.") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no object: give the checkpoint's config.json.")
    return data


def _sidecar(root: Path, name: str) -> dict[str, Any]:
    path = inside(root, f"sidecars/{name}")
    try:
        data = json.loads(path.read_bytes()) if path.is_file() else {}
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
