"""The openvino dialect: standard ONNX, and those semantic ops as they are for which OpenVINO has more than ONNX says.

The ops of `KEPT` stay nodes of the `ew` domain, with their attributes: the back end turns each into OpenVINO's own
(attention over a state, products of compressed weights), and their reference bodies let any ONNX runtime of opset 24
run the same file. Every other body stands in the graph itself. Linears are not joined: pulling their results apart
again costs OpenVINO more than it gains.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from edgewright.dialects import _qdq
from edgewright.dialects.onnx_qdq import inline
from edgewright.dialects.portable import attach_functions
from edgewright.errors import UnsupportedFormatError
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.step_loop import close_loop

#: The ops that the back end has rules for.
KEPT = frozenset(
    {"Attention", "CacheWrite", "Dequantize", "Linear", "QuantEmbedding", "QuantLinear", "RMSNorm", "Rope"}
)
#: The ops that it has rules for where they are about int8.
_INT8 = ("Decode", "RoundInput")


def lower(stage: Stage) -> Stage:
    """Spell everything but the ops of `KEPT` in standard ops, in place; returns the stage with its contract adapted."""
    _qdq.lower_handed_over(stage)
    _qdq.emulate(stage)
    for node in list(stage.graph):
        if node.domain == EW and not _kept(node):
            inline(stage, node)
    close_loop(stage)
    attach_functions(stage, keep_attributes=True)
    # The engine copies new rows into the caller's caches; the reference bodies do it by TensorScatter.
    stage.contract = dataclasses.replace(stage.contract, kv_in_place=True)
    return stage


def _kept(node: ir.Node) -> bool:
    """Tell whether a node stays; raises UnsupportedFormatError on an input that is rounded to a format but int8."""
    if node.op_type not in _INT8:
        return node.op_type in KEPT
    kind = node.attributes["format"].value
    if node.op_type == "RoundInput" and kind != "int8":
        path = (node.name or "").rsplit("/", 1)[0]
        raise UnsupportedFormatError(
            f"OpenVINO rounds the inputs of products to int8 only, and {path} rounds them to {kind}: use a recipe "
            "whose activations are int8 or none, or --engine onnxruntime."
        )
    return node.op_type == "RoundInput" or (kind == "int8" and node.attributes["scope"].value in ("tensor", "channel"))
