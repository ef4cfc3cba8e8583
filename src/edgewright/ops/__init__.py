"""The vocabulary of the graphs: semantic ops of the domain `ew`, each with a reference body of standard ONNX ops."""

from __future__ import annotations

from edgewright.ops._body import Call, Op
from edgewright.ops.attention import ATTENTION, attention
from edgewright.ops.embedding import EMBEDDING, embedding
from edgewright.ops.gated_activation import ACTIVATIONS, GATED_ACTIVATION, gated_activation
from edgewright.ops.linear import LINEAR, linear
from edgewright.ops.quantized import QUANT_EMBEDDING, QUANT_LINEAR
from edgewright.ops.rms_norm import RMS_NORM, rms_norm
from edgewright.ops.rope import ROPE, rope
from edgewright.ops.softcap import SOFTCAP, softcap

#: Every op by its name.
OPS: dict[str, Op] = {
    op.name: op
    for op in (
        ATTENTION,
        EMBEDDING,
        GATED_ACTIVATION,
        LINEAR,
        QUANT_EMBEDDING,
        QUANT_LINEAR,
        RMS_NORM,
        ROPE,
        SOFTCAP,
    )
}

__all__ = [
    "ACTIVATIONS",
    "OPS",
    "Call",
    "Op",
    "attention",
    "embedding",
    "gated_activation",
    "linear",
    "rms_norm",
    "rope",
    "softcap",
]
