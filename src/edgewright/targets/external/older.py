"""Says a graph in an older ONNX operator set: what that lacks is spelled in its ops, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import onnx
from onnx import helper

from edgewright.errors import UnsupportedFormatError


def lower_opset(model: onnx.ModelProto, opset: int, title: str) -> None:
    """Say the model in an operator set, in place; raises UnsupportedFormatError naming op and layer.

    Ops, attributes and numbers of inputs are looked at here; dtypes are the checker's affair.
    """
    here = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    if here <= opset:
        return
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        since, spelled = _SPELLED.get(node.op_type, (0, None))
        kept += spelled(_Made(node)) if spelled is not None and opset < since else [node]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    for node in nodes_of(model.graph):
        _require_known(node, here, opset, title)
    for one in model.opset_import:
        if one.domain in ("", "ai.onnx"):
            one.version = opset


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs in them."""
    for node in graph.node:
        yield node
        for inner in graphs_in(node):
            yield from nodes_of(inner)


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g


def _require_known(node: onnx.NodeProto, here: int, opset: int, title: str) -> None:
    """Raise unless an op has, in the older operator set, all that the node says; defaults need not be said."""
    lacks = f"which the operator set {opset} of {title} lacks: use another recipe or target."
    try:
        old = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        raise UnsupportedFormatError(f"{node.name} is made of {node.op_type}, {lacks}") from None
    new = onnx.defs.get_schema(node.op_type, here, node.domain)
    said = [one for one in node.attribute if one.name in old.attributes]
    for attribute in node.attribute:
        if attribute.name in old.attributes:
            continue
        default = new.attributes[attribute.name].default_value
        if not default.name or helper.get_attribute_value(default) != helper.get_attribute_value(attribute):
            raise UnsupportedFormatError(f"{node.name} is {node.op_type} with {attribute.name}, {lacks}")
    del node.attribute[:]
    node.attribute.extend(said)
    if len(node.input) > old.max_input or len(node.output) > old.max_output:
        raise UnsupportedFormatError(f"{node.name} is {node.op_type} with more inputs or outputs, {lacks}")


class _Made:
    """The nodes that are made in a node's place, named after it."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.node = node
        self.attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        self.nodes: list[onnx.NodeProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an op; returns its output's name."""
        out = f"{self.node.output[0]}:{len(self.nodes)}"
        name = f"{self.node.name}/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=name, **attributes))
        return out

    def integers(self, *values: int) -> str:
        """Add a constant int64 vector."""
        return self.op("Constant", value=helper.make_tensor("", onnx.TensorProto.INT64, [len(values)], values))

    def like(self, value: float, other: str) -> str:
        """Add a constant number of another value's dtype."""
        number = self.op("Constant", value=helper.make_tensor("", onnx.TensorProto.FLOAT, [], [value]))
        return self.op("CastLike", number, other)

    def last(self, kind: str, *inputs: str, **attributes: Any) -> list[onnx.NodeProto]:
        """Add the op that gives the node's own output; returns all nodes."""
        made = helper.make_node(kind, list(inputs), list(self.node.output), name=self.node.name, **attributes)
        return [*self.nodes, made]


def _scatter(made: _Made) -> list[onnx.NodeProto]:
    """Spell TensorScatter (since 24): each sequence's rows are written from its own index on.

    Row `i` of the update of sequence `b` goes to row `write_indices[b] + i` of its cache, for every head and column.
    """
    node = made.node
    if (
        len(node.input) < 3
        or made.attributes.get("axis", -2) not in (-2, 2)
        or made.attributes.get("mode") == b"circular"
    ):
        return [node]  # refused by name, as any op that can't be spelled
    cache, update, starts = node.input
    size = made.op("Shape", update)
    count = made.op("Squeeze", made.op("Gather", size, made.integers(2)))
    zero, one = (made.op("Squeeze", made.integers(number)) for number in (0, 1))
    rows = made.op("Reshape", made.op("Range", zero, count, one), made.integers(1, 1, -1, 1))
    first = made.op("Reshape", starts, made.integers(-1, 1, 1, 1))
    places = made.op("Expand", made.op("Add", first, rows), size)
    return made.last("ScatterElements", cache, places, update, axis=2)


def _gelu(made: _Made) -> list[onnx.NodeProto]:
    """Spell Gelu (since 20), with erf or with its approximation by tanh, as ONNX defines both."""
    (x,) = made.node.input
    half, one = made.like(0.5, x), made.like(1.0, x)
    if made.attributes.get("approximate", b"none") == b"tanh":
        cube = made.op("Mul", made.op("Mul", x, x), x)
        inner = made.op("Add", x, made.op("Mul", made.like(0.044715, x), cube))
        bent = made.op("Tanh", made.op("Mul", made.like(math.sqrt(2.0 / math.pi), x), inner))
    else:
        bent = made.op("Erf", made.op("Mul", x, made.like(math.sqrt(0.5), x)))
    return made.last("Mul", made.op("Mul", half, x), made.op("Add", one, bent))


#: Ops that are spelled in older ones, and the operator set that brought them.
_SPELLED = {"TensorScatter": (24, _scatter), "Gelu": (20, _gelu)}
