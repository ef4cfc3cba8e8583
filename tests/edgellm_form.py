"""A graph in a form that tells whether two graphs compute the same with the same bytes, whatever their names are.

Every node is a line: its op, its attributes and what it reads, by line or, for weights, by dtype, shape and SHA-256 of
its bytes. Nodes that compute the same are one line. Three ways to spell one thing are made one: a matrix product with a
weight that was turned ahead of time (its line says the weight as it was, and a Transpose), what changes nothing (left
out: products with ones, columns picked in their own order), and attributes of the exporter's own tool (left out).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

#: Attributes that say nothing to the builder.
_FOREIGN = frozenset({"_outputs"})


def describe(path: Path) -> dict[str, list[str]]:
    """Return a graph's inputs, outputs and nodes as lines."""
    model = onnx.load(path)
    return {
        "inputs": [_value(value) for value in model.graph.input],
        "outputs": [_value(value) for value in model.graph.output],
        "nodes": list(_Lines(model.graph)),
    }


def _value(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dims = ", ".join(str(dim.dim_param or dim.dim_value) for dim in kind.shape.dim)
    return f"{value.name} {onnx.TensorProto.DataType.Name(kind.elem_type)} [{dims}]"


class _Lines:
    """The nodes that the outputs need, each after what it reads."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._made = {name: (node, place) for node in graph.node for place, name in enumerate(node.output) if name}
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._inputs = {value.name for value in graph.input}
        self._lines: dict[str, int] = {}
        self._names: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        for value in self._graph.output:
            self._name(value.name)
        yield from self._lines

    def _line(self, text: str) -> str:
        return f"%{self._lines.setdefault(text, len(self._lines))}"

    def _name(self, name: str) -> str:
        if not name:
            return "-"
        if name not in self._names:
            self._names[name] = self._read(name)
        return self._names[name]

    def _read(self, name: str) -> str:
        if name in self._inputs:
            return name
        if name in self._weights:
            return tensor_line(self._weights[name])
        node, place = self._made[name]
        if node.op_type == "Mul" and not node.domain:
            for mine, other in ((0, 1), (1, 0)):
                if self._is_ones(node.input[mine]):
                    return self._name(node.input[other])
        if node.op_type == "Gather" and self._is_whole(node):
            return self._name(node.input[0])
        inputs = [self._name(value) for value in node.input]
        if node.op_type == "MatMul" and node.input[1] in self._weights:
            inputs[1] = self._turned(self._weights[node.input[1]])
        while inputs and inputs[-1] == "-":
            inputs.pop()
        attributes = [f"{a.name}={_attribute(a)}" for a in sorted(node.attribute, key=lambda a: a.name)]
        kept = [text for text in attributes if text.partition("=")[0] not in _FOREIGN]
        op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        line = self._line(f"{op}({', '.join(inputs)}) {{{', '.join(kept)}}}")
        return line if len(node.output) == 1 else f"{line}.{place}"

    def _turned(self, tensor: onnx.TensorProto) -> str:
        array = onnx.numpy_helper.to_array(tensor)
        if array.ndim != 2 or array.dtype != np.float16:
            return tensor_line(tensor)
        original = onnx.numpy_helper.from_array(np.ascontiguousarray(array.T))
        return self._line(f"Transpose({tensor_line(original)}) {{perm=[1, 0]}}")

    def _is_ones(self, name: str) -> bool:
        tensor = self._weights.get(name)
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT16 or len(tensor.dims) != 1:
            return False
        return bool((onnx.numpy_helper.to_array(tensor) == 1).all())

    def _is_whole(self, node: onnx.NodeProto) -> bool:
        """Tell whether all columns are picked in their own order; the exporter picks no fewer along the last axis."""
        tensor, axis = self._weights.get(node.input[1]), onnx.helper.get_node_attr_value(node, "axis")
        if tensor is None or axis != -1:
            return False
        order = onnx.numpy_helper.to_array(tensor)
        return bool((order == np.arange(len(order))).all())


def tensor_line(tensor: onnx.TensorProto) -> str:
    """Return a weight as dtype, shape and digest."""
    digest = hashlib.sha256(tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes()).hexdigest()[:16]
    return f"{onnx.TensorProto.DataType.Name(tensor.data_type)}{list(tensor.dims)}#{digest}"


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value
