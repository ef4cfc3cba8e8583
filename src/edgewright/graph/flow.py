"""What of a graph depends on which of its inputs."""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx_ir as ir


def reached_from(graph: ir.Graph, values: Iterable[ir.Value], *, of_shape: Container[ir.Value] = ()) -> set[ir.Value]:
    """Return the values that are made of `values`, and these; the graph is in order.

    What is made of the shapes alone of the values in `of_shape` does not count.
    """
    reached = set(values)
    for node in graph:
        if node.op_type == "Shape" and not node.domain and node.inputs[0] in of_shape:
            continue
        if any(value in reached for value in node.inputs):
            reached.update(node.outputs)
    return reached


def input_named(graph: ir.Graph, name: str) -> ir.Value:
    """Return the graph's input of that name."""
    return next(value for value in graph.inputs if value.name == name)
