"""The goldens of quantized checkpoints: what every case must give, and folders with one thing changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.tensor import DTYPES
from llama_files import write_checkpoint

GOLDENS = Path(__file__).resolve().parents[2] / "goldens" / "prequantized"
Arrays = dict[str, np.ndarray]
Change = Callable[[dict[str, Any], Arrays], None]


def cases(prefix: str) -> list[str]:
    """Return the names of the cases of a tool."""
    return [
        entry["case"] for entry in json.loads((GOLDENS / "index.json").read_text()) if entry["case"].startswith(prefix)
    ]


def case_json(case: str) -> dict[str, Any]:
    """Return the facts of a case."""
    facts: dict[str, Any] = json.loads((GOLDENS / case / "case.json").read_text())
    return facts


def weights(checkpoint: Checkpoint) -> Arrays:
    """Return the float32 weights of all quantized modules, columns in the order of the input."""
    found = {}
    for name, tensor in checkpoint.tensors.items():
        if tensor.encoding is not None:
            values = tensor.read()
            if tensor.input is not None and tensor.input.permutation is not None:
                ordered = np.empty_like(values)
                ordered[:, tensor.input.permutation] = values
                values = ordered
            found[name.removesuffix(".weight")] = values
    return found


def digest(values: np.ndarray) -> str:
    """Return what the goldens name a weight by: minus zero counts as zero."""
    return hashlib.sha256(np.ascontiguousarray(values + 0.0, np.float32).tobytes()).hexdigest()


def arrays(case: str) -> Arrays:
    """Return all tensors of a case in the dtypes they are stored in."""
    found = {}
    for name, tensor in read_safetensors(GOLDENS / case / "model.safetensors").items():
        data = np.array(tensor.raw(0, tensor.row_count)).reshape(-1)
        found[name] = data.view(DTYPES[tensor.dtype]).reshape(tensor.shape)
    return found


def changed(folder: Path, case: str, change: Change) -> Path:
    """Write a case with its config or its tensors changed in place by `change`."""
    config = json.loads((GOLDENS / case / "config.json").read_text())
    tensors = arrays(case)
    change(config, tensors)
    return write_checkpoint(folder, config, tensors)


def opened(folder: Path, case: str, change: Change) -> Checkpoint:
    """Open a changed case."""
    return open_checkpoint(changed(folder, case, change))
