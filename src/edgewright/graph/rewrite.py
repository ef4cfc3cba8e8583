"""Small helpers passes share: replace a node, look through a node, merge linears that read the same input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.graph.builder import EW, make_node
from edgewright.graph.stage import Stage
from edgewright.graph.weights import StackedProducer


def module_of(node: ir.Node) -> str:
    """Return the module path a node was made for."""
    return (node.name or "").rsplit("/", 1)[0]


def replace(stage: Stage, node: ir.Node, new: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> None:
    """Put `new` in `node`'s place; `outputs` stand for its outputs, names of graph outputs are kept."""
    old_names = {value.name for value in node.outputs}
    for value in (value for inner in new for value in inner.outputs):
        if value not in outputs and value.name in old_names:
            value.name = f"{value.name}.inner"
    ir.convenience.replace_nodes_and_values(stage.graph, node, [node], list(new), list(node.outputs), list(outputs))


def made_by(value: ir.Value | None, op_type: str, domain: str = EW) -> ir.Node | None:
    """Return the node that makes `value` if it is of that type."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and node.domain == domain else None


def int64_constant(stage: Stage, values: Sequence[int], name: str) -> ir.Value:
    """Register a small int64 vector as an initializer (shared by name)."""
    if name not in stage.graph.initializers:
        array = np.asarray(values, dtype=np.int64)
        tensor = ir.tensor(array, name=name)
        stage.graph.register_initializer(
            ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        )
    return stage.graph.initializers[name]


def scalar_constant(stage: Stage, value: Any, dtype: Any, name: str) -> ir.Value:
    """Register a scalar as an initializer (shared by name)."""
    if name not in stage.graph.initializers:
        tensor = ir.tensor(np.asarray(value, dtype=dtype), name=name)
        kind = ir.TensorType(tensor.dtype)
        stage.graph.register_initializer(ir.Value(name=name, shape=ir.Shape(()), type=kind, const_value=tensor))
    return stage.graph.initializers[name]


def number_of(stage: Stage, value: ir.Value) -> Any | None:
    """Return the only number of an initializer that stands in the graph itself, or None."""
    small = value.is_initializer() and value.name not in stage.producers and value.const_value is not None
    if not small or value.const_value is None or value.const_value.size != 1:
        return None
    return value.const_value.numpy().reshape(-1)[0]


def merge_linears(stage: Stage, nodes: Sequence[ir.Node]) -> bool:
    """Join linears into one over stacked rows, followed by a Split; tells whether it could be done.

    They must read one input in one format, each with weights of its own. Rows are quantized along the input axis, so
    stacking them changes no value.
    """
    if len({_kind(stage, node) for node in nodes}) != 1 or _kind(stage, nodes[0]) is None:
        return False
    _merge(stage, list(nodes))
    return True


def _kind(stage: Stage, node: ir.Node) -> tuple[object, ...] | None:
    """Return what linears must have in common to be merged, or None for a node that can't be."""
    if node.domain != EW or node.op_type not in ("Linear", "QuantLinear"):
        return None
    parameters = node.inputs[1:]
    if any(p is not None and (p.name not in stage.producers or len(p.uses()) != 1) for p in parameters):
        return None
    attributes = tuple(sorted((k, a.value) for k, a in node.attributes.items() if k != "out_features"))
    return (id(node.inputs[0]), node.op_type, attributes, tuple(p is not None for p in parameters))


def merge_decoded(stage: Stage, nodes: Sequence[ir.Node]) -> bool:
    """Join linears as `merge_linears` does where their weights are decoded from codes with scales row by row."""
    decodes = [made_by(node.inputs[1], "Decode") if node.op_type == "Linear" else None for node in nodes]
    found = [decode for decode in decodes if decode is not None]
    if len(found) != len(nodes) or len({_decoded_kind(stage, *pair) for pair in zip(nodes, found, strict=True)}) != 1:
        return False
    if _decoded_kind(stage, nodes[0], found[0]) is None:
        return False
    name = _merged_name(nodes)
    rows = [int(decode.attributes["out_features"].value) for decode in found]
    attributes = {k: a.value for k, a in found[0].attributes.items()} | {"out_features": sum(rows)}
    codes = _stacked(stage, found, 0, name)
    decode = make_node(EW, "Decode", codes, attributes, name=f"{name}/Decode")
    stage.graph.insert_before(nodes[0], [decode])
    _put(stage, nodes, [nodes[0].inputs[0], decode.outputs[0], *_stacked(stage, nodes, 2, name)], {}, rows)
    for old in found:
        stage.graph.remove(old, safe=True)
    return True


def _decoded_kind(stage: Stage, node: ir.Node, decode: ir.Node) -> tuple[object, ...] | None:
    """Return what linears over decoded weights must have in common to be merged, or None where they can't be."""
    parameters = [value for value in (*decode.inputs, *node.inputs[2:]) if value is not None]
    if any(p.name not in stage.producers or len(p.uses()) != 1 for p in parameters) or node.domain != EW:
        return None
    a = {name: attribute.value for name, attribute in decode.attributes.items() if name != "out_features"}
    shared = a.get("scope") in ("tensor", "block") or len(decode.inputs) > 2
    if shared or len(decode.outputs[0].uses()) != 1:
        return None
    return (id(node.inputs[0]), tuple(sorted(a.items())), len(node.inputs))


def _merge(stage: Stage, nodes: list[ir.Node]) -> None:
    first, name = nodes[0], _merged_name(nodes)
    rows = []
    for node in nodes:
        weight = node.inputs[1]
        assert weight is not None
        assert weight.shape is not None
        rows.append(int(weight.shape[0]))  # type: ignore[arg-type]
    attributes = {k: a.value for k, a in first.attributes.items()}
    if "out_features" in attributes:
        attributes["out_features"] = sum(rows)
    _put(stage, nodes, [first.inputs[0], *_stacked(stage, nodes, 1, name)], attributes, rows)


def _merged_name(nodes: Sequence[ir.Node]) -> str:
    modules = [module_of(node) for node in nodes]
    return f"{modules[0].rsplit('.', 1)[0]}." + "+".join(module.rsplit(".", 1)[-1] for module in modules)


def _stacked(stage: Stage, nodes: Sequence[ir.Node], start: int, name: str) -> list[ir.Value | None]:
    """Return the inputs of nodes from place `start` on, those of all nodes one below the other."""
    inputs: list[ir.Value | None] = []
    done: dict[int, tuple[ir.Value, ...]] = {}
    for position in range(start, len(nodes[0].inputs)):
        columns = [node.inputs[position] for node in nodes]
        if columns[0] is None:
            inputs.append(None)
            continue
        producers = [stage.producers[c.name] for c in columns if c is not None and c.name is not None]
        if id(producers[0]) not in done:
            suffixes = [spec.name.rsplit(".", 1)[-1] for spec in producers[0].specs]
            stacked = StackedProducer(producers, [f"{name}.{suffix}" for suffix in suffixes])
            done[id(producers[0])] = stage.add_producer(stacked)
        index = next(i for i, spec in enumerate(producers[0].specs) if spec.name == columns[0].name)
        inputs.append(done[id(producers[0])][index])
    return inputs


def _put(
    stage: Stage,
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    rows: Sequence[int],
) -> None:
    """Put one linear over stacked rows, and a Split of its result, in the place of several."""
    name = _merged_name(nodes)
    linear = make_node(EW, nodes[0].op_type, inputs, attributes, name=f"{name}/{nodes[0].op_type}")
    sizes = int64_constant(stage, rows, "split_" + "_".join(map(str, rows)))
    split = make_node("", "Split", [linear.outputs[0], sizes], {"axis": -1}, outputs=len(nodes), name=f"{name}/Split")
    stage.graph.insert_before(nodes[0], [linear, split])
    for node, output in zip(nodes, split.outputs, strict=True):
        ir.convenience.replace_all_uses_with(node.outputs[0], output)
        stage.graph.remove(node, safe=True)
