"""Checkpoints that a tool quantized: one file a layout, each turns stored tensors into encoded ones."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.checkpoint.layouts.quantization import Quantization, Reader
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import read_json_object
from edgewright.errors import CheckpointError, UnsupportedFormatError

#: `quant_method` in the config, and the module that reads it.
READERS = {
    "edgewright": "native",
    "compressed-tensors": "compressed_tensors",
    "modelopt": "modelopt",
    "gptq": "gptq",
    "auto-round": "gptq",
    "awq": "awq",
    "fp8": "fp8",
    "mxfp4": "mxfp4",
}
#: ModelOpt's own file, which may stand instead of a config entry.
MODELOPT = "hf_quant_config.json"
#: Files of older tools that stand instead of a config entry, and what they mean.
OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def read_quantized(
    folder: Path, config: dict[str, Any], tensors: dict[str, StoredTensor]
) -> tuple[dict[str, Any], dict[str, StoredTensor], Quantization | None]:
    """Return config, tensors and what was found, for a folder whose weights may be quantized.

    Raises UnsupportedFormatError for a layout that can't be read, CheckpointError where config and tensors disagree.
    """
    entry = config.get("quantization_config")
    holder: Mapping[str, Any] = config
    if entry is None and isinstance(config.get("text_config"), Mapping):
        holder = config["text_config"]
        entry = holder.get("quantization_config")
    if entry is None and isinstance(config.get("compression_config"), Mapping):  # the key of old files
        entry = config["compression_config"]
    own = (folder / MODELOPT).is_file() and (entry is None or _is_modelopt(entry))
    if own:
        entry = {"quant_method": "modelopt", **(entry or {}), **read_json_object(folder / MODELOPT)}
    if entry is None and any(name.endswith(".qweight") for name in tensors):
        entry = _old_entry(folder)
    if entry is None:
        return config, tensors, None
    if not isinstance(entry, Mapping):
        raise CheckpointError("The quantization_config of config.json is no mapping: repair it, or remove it.")
    method = entry.get("quant_method")
    if not isinstance(method, str) or method not in READERS:
        raise UnsupportedFormatError(
            f"The checkpoint is quantized by {method!r}, which can't be read; known are {', '.join(READERS)}: "
            "take the unquantized checkpoint."
        )
    reader: Reader = importlib.import_module(f"edgewright.checkpoint.layouts.{READERS[method]}").read
    stripped = {key: value for key, value in config.items() if key not in ("quantization_config", "compression_config")}
    if holder is not config:
        stripped["text_config"] = {k: v for k, v in holder.items() if k != "quantization_config"}
    read, found = reader(entry, tensors)
    return stripped, read, found


def _old_entry(folder: Path) -> dict[str, Any] | None:
    """Return what a file of an older tool says, or None."""
    for name, method in OLD_FILES.items():
        if (folder / name).is_file():
            return {**read_json_object(folder / name), "quant_method": method}
    return None


def _is_modelopt(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("quant_method") == "modelopt"


__all__ = ["MODELOPT", "READERS", "Quantization", "Reader", "read_quantized"]
