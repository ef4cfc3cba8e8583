"""What a node of TensorRT Edge-LLM 0.11 may look like: the ops of its exporter that this toolkit writes.

The names, inputs, attributes and types are those that the exporter registers; a golden holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, TensorProto

from edgewright.dialects.edgellm.spelling import PLUGINS, TENSORRT

_INT, _FLOAT, _FLOATS = AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.FLOATS

_HALF, _WIDE = frozenset({TensorProto.FLOAT16}), frozenset({TensorProto.FLOAT})
_E4M3, _I8, _I32 = (frozenset({getattr(TensorProto, name)}) for name in ("FLOAT8E4M3FN", "INT8", "INT32"))
_CODES = _E4M3 | {TensorProto.FLOAT4E2M1}
_POWERS = frozenset({TensorProto.UINT8})


@dataclass(frozen=True)
class OpForm:
    """An op: its inputs with their types, of which those after `needed` may be left out, and its outputs' types.

    An output's type None is that of the second input. `attributes` have their types; `given` must be there.
    """

    inputs: Mapping[str, frozenset[int]]
    needed: int
    outputs: tuple[int | None, ...]
    attributes: Mapping[str, int] = field(default_factory=dict)
    given: tuple[str, ...] = ()


_ATTENTION_INPUTS = {
    "qkv": _HALF,
    "past_key_value": _HALF | _E4M3,
    "query_lengths": _I32,
    "rope_rotary_cos_sin": _WIDE,
    "past_lengths": _I32,
    "kv_page_table": _I32,
    "q_norm_gamma": _HALF,
    "k_norm_gamma": _HALF,
    "context_mask_selector": _I32,
    "attention_mask": _I32,
    "attention_pos_id": _I32,
    "skip_softmax_scale": _I8,
    "swa_kv_cache_mode": _I8,
    "attention_sinks": _WIDE,
    "query_start_offsets": _I32,
    "attention_sequence_lengths": _I32,
    "execution_phase_marker": _I32,
    "context_sequence_count_carrier": _I32,
}
_ATTENTION_INTS = (
    "num_q_heads",
    "num_kv_heads",
    "head_size",
    "enable_tree_attention",
    "enable_fp8_kv_cache",
    "enable_context_mask_selector",
    "enable_vision_block_attention",
    "sliding_window_size",
    "enable_qk_norm",
    "qk_norm_post_rope",
    "enable_kv_shared",
    "enable_attention_sink",
    "enable_contiguous_query_swa",
    "supports_bounded_kv_cache",
)
_ATTENTION = OpForm(
    _ATTENTION_INPUTS,
    6,
    (TensorProto.FLOAT16, None),
    {
        **dict.fromkeys(_ATTENTION_INTS, _INT),
        **dict.fromkeys(("attention_scale", "skip_softmax_scale_factor", "rms_norm_eps"), _FLOAT),
        "qkv_scales": _FLOATS,
        "plugin_version": AttributeProto.STRING,
    },
    ("num_q_heads", "num_kv_heads", "head_size", "enable_tree_attention", "plugin_version"),
)
_GEMM = dict.fromkeys(("gemm_n", "gemm_k", "group_size"), _INT)
_INT4 = OpForm({"input": _HALF, "qweight": _I8, "scales": _HALF}, 3, (TensorProto.FLOAT16,), _GEMM, tuple(_GEMM))
_MX = dict.fromkeys(("axis", "block_size", "output_dtype"), _INT)

#: The ops by domain and name.
FORMS: dict[tuple[str, str], OpForm] = {
    (PLUGINS, "AttentionPlugin"): _ATTENTION,
    (PLUGINS, "Int4GroupwiseGemmPlugin"): _INT4,
    (PLUGINS, "Int4GroupwiseGemmPluginV2"): _INT4,
    (PLUGINS, "QkvConcatPlugin"): OpForm({"q": _HALF, "k": _HALF, "v": _HALF}, 3, (TensorProto.FLOAT16,)),
    # The exporter registers a float16 scale, and writes a float32 one.
    (TENSORRT, "TRT_FP4DynamicQuantize"): OpForm(
        {"x": _HALF, "global_scale": _HALF | _WIDE},
        2,
        (TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E4M3FN),
        dict.fromkeys(("axis", "block_size", "scale_type"), _INT),
        ("block_size", "scale_type"),
    ),
    (TENSORRT, "DequantizeLinear"): OpForm(
        {"x": _CODES, "x_scale": _HALF, "x_zero_point": _CODES}, 2, (None,), dict.fromkeys(("axis", "block_size"), _INT)
    ),
    (TENSORRT, "TRT_MXFP8DynamicQuantize"): OpForm(
        {"x": _HALF}, 1, (TensorProto.FLOAT8E4M3FN, TensorProto.UINT8), _MX, ("block_size", "output_dtype")
    ),
    (TENSORRT, "TRT_MXFP8DequantizeLinear"): OpForm(
        {"x": _E4M3, "x_scale": _POWERS}, 2, (TensorProto.FLOAT16,), _MX, ("output_dtype",)
    ),
}
