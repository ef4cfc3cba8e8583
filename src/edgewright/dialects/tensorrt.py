"""The tensorrt dialect: standard ONNX ops, every tensor of a type that is meant, quantization as Q/DQ.

It is what the ONNX parsers of TensorRT and TensorRT for RTX take for a strongly typed network. The body is float16, or
bfloat16 or float32 where the recipe stores float weights so; norms, softmax, rotations, the residual stream and what
the graph gives are float32. Caches have a fixed length and are written in place. NVFP4 and MXFP8 inputs are rounded by
TensorRT's own ops of the domain `trt`, which is all there is besides ONNX's.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.dialects import _qdq
from edgewright.dialects._trt_cache import fix_caches, read_codes, scale_queries, write_codes
from edgewright.dialects._trt_types import FLOATS, Typing, body_type
from edgewright.dialects._trt_weights import lower_weights
from edgewright.dialects.onnx_qdq import inline
from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import replace as replace_node
from edgewright.graph.rewrite import scalar_constant
from edgewright.graph.step_loop import close_loop


def lower(stage: Stage) -> Stage:
    """Spell a stage for TensorRT, in place; returns it with its contract adapted.

    Raises UnsupportedFormatError naming op and layer of what TensorRT has no ops for.
    """
    kind = body_type(stage.graph)
    body = FLOATS[kind]
    stage.notes.append(f"computed in {body}, with norms, softmax and the residual stream in float32")
    fix_caches(stage, body)
    for node in list(stage.graph):
        if node.domain == EW and node.op_type in ("Linear", "Experts"):
            _unwrap(node)
    lower_weights(stage, body)
    _qdq.lower_handed_over(stage)
    origins: dict[ir.Node, str] = {}
    for node in list(stage.graph):
        if node.domain == EW:
            _spell(stage, node, origins)
    Typing(stage, kind, origins).run()
    close_loop(stage)
    for node in stage.graph:
        if node.op_type == "Loop" and node.inputs[1] is None:  # TensorRT's parser wants to be told to go on
            node.replace_input_with(1, scalar_constant(stage, True, bool, "loop.going"))
    return stage


def _unwrap(node: ir.Node) -> None:
    """Let a product read its weight in the type that it is stored in."""
    for place, value in enumerate(node.inputs):
        maker = value.producer() if value is not None and place > 0 else None
        if maker is not None and maker.op_type == "Cast" and maker.inputs[0] is not None:
            stored = maker.inputs[0]
            if stored.is_initializer() and stored.dtype in FLOATS:
                node.replace_input_with(place, stored)


def _spell(stage: Stage, node: ir.Node, origins: dict[ir.Node, str]) -> None:
    """Put standard ops in the place of one of the vocabulary, and note what they are a part of."""
    kind = node.op_type
    if kind == "Moved":
        add = make_node("", "Add", node.inputs, {}, name=node.name or "")
        replace_node(stage, node, [add], add.outputs)
        origins[add] = kind
        return
    if kind == "CacheWrite":
        origins.update(dict.fromkeys(write_codes(stage, node), kind))
        return
    if kind in ("Attention", "MixedAttention"):
        scale_queries(stage, node)
    if kind == "Attention":
        read_codes(stage, node)
    origins.update(dict.fromkeys(inline(stage, node), kind))
