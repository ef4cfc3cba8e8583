"""The vocabulary of the graphs: semantic ops of the domain `ew`, each with a reference body of standard ONNX ops."""

from __future__ import annotations

from edgewright.ops._body import Call, Op
from edgewright.ops.activation import ACTIVATION, ACTIVATIONS, GATED_ACTIVATION, activation, gated_activation
from edgewright.ops.ada_rms_norm import ADA_RMS_NORM, ada_rms_norm
from edgewright.ops.attention import ATTENTION, attention
from edgewright.ops.cache_codes import CACHE_READ, CACHE_ROUND, cache_read, cache_round
from edgewright.ops.cache_write import CACHE_WRITE, cache_write
from edgewright.ops.causal_conv import CAUSAL_CONV, causal_conv
from edgewright.ops.decode import DECODE, DECODE_ROWS, decode, decode_rows
from edgewright.ops.embedding import EMBEDDING, embedding
from edgewright.ops.experts import EXPERTS, experts
from edgewright.ops.gated_delta import GATED_DELTA, gated_delta
from edgewright.ops.layer_norm import LAYER_NORM, layer_norm
from edgewright.ops.linear import LINEAR, linear
from edgewright.ops.mixed_attention import MIXED_ATTENTION, mixed_attention
from edgewright.ops.quantized import DEQUANTIZE, QUANT_EMBEDDING, QUANT_LINEAR
from edgewright.ops.rms_norm import RMS_NORM, rms_norm
from edgewright.ops.rope import ROPE, rope
from edgewright.ops.round_input import ROUND_INPUT, round_input
from edgewright.ops.softcap import SOFTCAP, softcap
from edgewright.ops.state_space import STATE_SPACE, state_space

#: Every op by its name.
OPS: dict[str, Op] = {
    op.name: op
    for op in (
        ACTIVATION,
        ADA_RMS_NORM,
        ATTENTION,
        CACHE_READ,
        CACHE_ROUND,
        CACHE_WRITE,
        CAUSAL_CONV,
        DECODE,
        DECODE_ROWS,
        DEQUANTIZE,
        EMBEDDING,
        EXPERTS,
        GATED_ACTIVATION,
        GATED_DELTA,
        LAYER_NORM,
        LINEAR,
        MIXED_ATTENTION,
        QUANT_EMBEDDING,
        QUANT_LINEAR,
        RMS_NORM,
        ROPE,
        ROUND_INPUT,
        SOFTCAP,
        STATE_SPACE,
    )
}

__all__ = [
    "ACTIVATIONS",
    "OPS",
    "Call",
    "Op",
    "activation",
    "ada_rms_norm",
    "attention",
    "cache_read",
    "cache_round",
    "cache_write",
    "causal_conv",
    "decode",
    "decode_rows",
    "embedding",
    "experts",
    "gated_activation",
    "gated_delta",
    "layer_norm",
    "linear",
    "mixed_attention",
    "rms_norm",
    "rope",
    "round_input",
    "softcap",
    "state_space",
]
