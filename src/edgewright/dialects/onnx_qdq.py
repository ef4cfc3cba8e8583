"""The onnx-qdq dialect: standard ONNX ops only, quantization spelled as QuantizeLinear and DequantizeLinear.

Every reference body stands in the graph itself, with no functions and no domain but ONNX's own; weights keep the types
that say what they are (UINT4, UINT8, INT8, FLOAT8E4M3FN, FLOAT4E2M1, FLOAT8E8M0), each DequantizeLinear before its
product. It is for compilers that read quantization off the graph.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from edgewright.dialects import _qdq
from edgewright.dialects.portable import call_of, function_of
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.step_loop import close_loop


def lower(stage: Stage) -> Stage:
    """Spell everything in standard ops, in place; returns the stage."""
    _qdq.lower_integers(stage, tables=True)
    _qdq.lower_narrow(stage)
    _qdq.lower_handed_over(stage)
    for node in list(stage.graph):
        if node.domain == EW:
            inline(stage, node)
    close_loop(stage)
    return stage


def inline(stage: Stage, node: ir.Node, proto: onnx.FunctionProto | None = None) -> list[ir.Node]:
    """Put the nodes of a reference body, or of another one, in the node's place, named after it; returns them."""
    body = ir.serde.deserialize_function(proto or function_of(node.op_type, call_of(node), ""))
    path = node.name or node.op_type
    for formal, value in zip(body.inputs, node.inputs, strict=True):
        if value is not None:
            ir.convenience.replace_all_uses_with(formal, value)
    inner = list(body)
    outputs = list(body.outputs)
    for count, made in enumerate(inner):
        made.name = f"{path}/{made.op_type}_{count}"
        for value in made.outputs:
            value.name = f"{path}:{value.name}" if value.name else value.name
    for made in inner:
        _rename_inside(made)
    body.graph.outputs.clear()
    body.graph.remove(inner)
    for old, new in zip(node.outputs, outputs, strict=False):
        new.shape, new.type = old.shape, old.type
    ir.convenience.replace_nodes_and_values(
        stage.graph, node, [node], inner, node.outputs, outputs[: len(node.outputs)]
    )
    return inner


def _rename_inside(node: ir.Node) -> None:
    """Name what the graphs inside a node make after it, so that no name is there twice."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graph = attribute.as_graph()
            for value in (*graph.inputs, *(output for inner in graph for output in inner.outputs)):
                value.name = f"{node.name}:{value.name}"
            for count, inner in enumerate(graph):
                inner.name = f"{node.name}/{inner.op_type}_{count}"
                _rename_inside(inner)
