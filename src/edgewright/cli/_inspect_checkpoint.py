"""What is in a checkpoint, from its headers."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.cli._inspect_bundle import calibration
from edgewright.errors import EdgewrightError

#: Config keys worth showing, also below `text_config`.
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "vocab_size": "vocab_size",
    "max_context": "max_position_embeddings",
}


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """Return the description; raises CheckpointError."""
    checkpoint = open_checkpoint(path)
    config, quantized = checkpoint.config, checkpoint.quantization
    inner = config.get("text_config")
    text = {**(inner if isinstance(inner, dict) else {}), **config}
    bytes_by_dtype: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        bytes_by_dtype[tensor.dtype] += tensor.nbytes
    return {
        "kind": f"checkpoint ({checkpoint.kind})",
        "path": str(checkpoint.path),
        "model_type": config.get("model_type"),
        "parameters": sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values()),
        "bytes": sum(bytes_by_dtype.values()),
        **{name: text[key] for name, key in _KEYS.items() if key in text},
        "tensor_count": len(checkpoint.tensors),
        **({} if quantized is None else {"quantized": quantized.method, **calibration(quantized.record)}),
        "buildable": _buildable(checkpoint),
        "bytes_by_dtype": dict(bytes_by_dtype.most_common()),
        "tensors": [
            {"name": name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.nbytes}
            for name, t in checkpoint.tensors.items()
        ],
    }


def _buildable(checkpoint: Checkpoint) -> str:
    """Return "yes", or why deploy would refuse the checkpoint's config or tensors."""
    from edgewright.models import build_llm

    try:
        build_llm(checkpoint)
    except EdgewrightError as error:
        return f"no: {error}"
    return "yes"
