"""What is in a checkpoint, from its headers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.checkpoint.policy import PolicyCheckpoint, is_policy, open_policy
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.cli._inspect_bundle import calibration
from edgewright.errors import ConfigError, EdgewrightError

#: Config keys worth showing, also below `text_config`.
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "vocab_size": "vocab_size",
    "max_context": "max_position_embeddings",
}


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """Return the description; raises CheckpointError."""
    if is_policy(path):
        return _describe_policy(path)
    checkpoint = open_checkpoint(path)
    config, quantized = checkpoint.config, checkpoint.quantization
    inner = config.get("text_config")
    text = {**(inner if isinstance(inner, dict) else {}), **config}
    return {
        "kind": f"checkpoint ({checkpoint.kind})",
        "path": str(checkpoint.path),
        "model_type": config.get("model_type"),
        **_counts(checkpoint.tensors),
        **{name: text[key] for name, key in _KEYS.items() if key in text},
        "tensor_count": len(checkpoint.tensors),
        **({} if quantized is None else {"quantized": quantized.method, **calibration(quantized.record)}),
        "buildable": _buildable(checkpoint),
        **_tensors(checkpoint.tensors),
    }


def _describe_policy(path: Path) -> dict[str, Any]:
    """Return the description of a robot policy, or what it doesn't say and a build has to be told."""
    try:
        checkpoint = open_policy(path)
    except ConfigError as error:
        return {"kind": "checkpoint (robot policy)", "path": str(path), "buildable": f"not as it is: {error}"}
    return {
        "kind": f"checkpoint (robot policy, {checkpoint.spec.convention})",
        "path": str(checkpoint.path),
        "model_type": checkpoint.kind,
        **_counts(checkpoint.tensors),
        "tensor_count": len(checkpoint.tensors),
        "buildable": _buildable_policy(checkpoint),
        "policy": checkpoint.spec.to_json(),
        "notes": [*checkpoint.notes, *(f"not used: {name} ({rule})" for name, rule in checkpoint.ignored)],
        **_tensors(checkpoint.tensors),
    }


def _counts(tensors: Mapping[str, StoredTensor]) -> dict[str, int]:
    return {
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors.values()),
        "bytes": sum(tensor.nbytes for tensor in tensors.values()),
    }


def _tensors(tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Return bytes by dtype and the list of all tensors."""
    bytes_by_dtype: Counter[str] = Counter()
    for tensor in tensors.values():
        bytes_by_dtype[tensor.dtype] += tensor.nbytes
    return {
        "bytes_by_dtype": dict(bytes_by_dtype.most_common()),
        "tensors": [
            {"name": name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.nbytes} for name, t in tensors.items()
        ],
    }


def _buildable_policy(checkpoint: PolicyCheckpoint) -> str:
    """Return "yes", or why deploy would refuse the policy's tensors or miss its tokenizer."""
    from edgewright.models._policy import build_policy

    try:
        build_policy(checkpoint)
        checkpoint.sidecars()
    except EdgewrightError as error:
        return f"no: {error}"
    return "yes"


def _buildable(checkpoint: Checkpoint) -> str:
    """Return "yes", or why deploy would refuse the checkpoint's config or tensors."""
    from edgewright.models import build_llm

    try:
        build_llm(checkpoint)
    except EdgewrightError as error:
        return f"no: {error}"
    return "yes"
