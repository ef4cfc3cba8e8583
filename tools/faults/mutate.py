"""Changes of graphs and weight files that faults are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.builder import make_node
from edgewright.graph.weights import ComputedWeight

STAGE = "stages/llm"
Array = np.ndarray
Change = Callable[[Stage], None]
Edit = Callable[[Path], None]


def node(stage: Stage, name: str) -> ir.Node:
    """Return a node by its name."""
    return next(n for n in stage.graph if n.name == name)


def value(stage: Stage, name: str) -> ir.Value:
    """Return a value of any kind by its name."""
    for found in (*stage.graph.inputs, *stage.graph.initializers.values()):
        if found.name == name:
            return found
    return next(v for n in stage.graph for v in n.outputs if v.name == name)


def attribute(name: str, **values: Any) -> Change:
    """Set attributes of a node; None removes one."""

    def change(stage: Stage) -> None:
        attributes = node(stage, name).attributes
        for key, new in values.items():
            attributes.pop(key, None)
            if new is not None:
                attributes[key] = ir.convenience.convert_attributes({key: new})[0]

    return change


def together(*changes: Change) -> Change:
    """Do one after the other."""

    def change(stage: Stage) -> None:
        for one in changes:
            one(stage)

    return change


def no_input(name: str, place: int) -> Change:
    """Take an optional input away."""

    def change(stage: Stage) -> None:
        found = node(stage, name)
        found.replace_input_with(place, None)
        if place == len(found.inputs) - 1:
            found.resize_inputs(place)
        stage.drop_unused()

    return change


def rewire(name: str, place: int, source: str) -> Change:
    """Let a node read another value."""
    return lambda stage: node(stage, name).replace_input_with(place, value(stage, source))


def constant(name: str, place: int, new: Any, dtype: Any = np.float32) -> Change:
    """Let a node read a constant of its own."""

    def change(stage: Stage) -> None:
        array = np.asarray(new, dtype=dtype)
        label = f"{name}/planted"
        tensor = ir.tensor(array, name=label)
        made = ir.Value(name=label, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        stage.graph.register_initializer(made)
        node(stage, name).replace_input_with(place, made)

    return change


def passed(name: str, place: int = 0) -> Change:
    """Leave a node out: what reads it reads its input instead."""

    def change(stage: Stage) -> None:
        found = node(stage, name)
        source = found.inputs[place]
        assert source is not None
        if found.outputs[0].is_graph_output():
            identity = make_node("", "Identity", [source], {}, outputs=[f"{found.outputs[0].name}"], name=name)
            ir.convenience.replace_nodes_and_values(
                stage.graph, found, [found], [identity], [found.outputs[0]], [identity.outputs[0]]
            )
            return
        ir.convenience.replace_all_uses_with(found.outputs[0], source)
        stage.drop_unused()

    return change


def shifted(name: str, place: int, by: int) -> Change:
    """Add a number to an int64 input of a node, and keep it from getting negative."""

    def change(stage: Stage) -> None:
        found = node(stage, name)
        source = found.inputs[place]
        assert source is not None
        constants = []
        for label, number in (("by", by), ("zero", 0)):
            tensor = ir.tensor(np.asarray(number, dtype=np.int64), name=f"{name}/{label}")
            made = ir.Value(name=f"{name}/{label}", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
            made.const_value = tensor
            stage.graph.register_initializer(made)
            constants.append(made)
        add = make_node("", "Add", [source, constants[0]], {}, name=f"{name}/shift")
        limit = make_node("", "Max", [add.outputs[0], constants[1]], {}, name=f"{name}/limit")
        stage.graph.insert_before(found, [add, limit])
        found.replace_input_with(place, limit.outputs[0])

    return change


def renamed_type(name: str, new: str, domain: str | None = None) -> Change:
    """Give a node another op type."""

    def change(stage: Stage) -> None:
        found = node(stage, name)
        found.op_type = new
        if domain is not None:
            found.domain = domain

    return change


def stale(name: str, output: int, place: int) -> Change:
    """Give an input of a node out as its cache, so that nothing is ever written to it."""

    def change(stage: Stage) -> None:
        found = node(stage, name)
        result, source = found.outputs[output], found.inputs[place]
        assert source is not None
        label = str(result.name)
        result.name = f"{label}/unused"
        identity = make_node("", "Identity", [source], {}, outputs=[label], name=f"{name}/stale")
        new = identity.outputs[0]
        new.type, new.shape = result.type, result.shape
        stage.graph.insert_after(found, [identity])
        outputs = stage.graph.outputs
        outputs[list(outputs).index(result)] = new

    return change


def swap_outputs(name: str, a: int = 0, b: int = 1) -> Change:
    """Exchange two outputs of a node."""

    def change(stage: Stage) -> None:
        first, second = node(stage, name).outputs[a], node(stage, name).outputs[b]
        uses = [(use.node, use.idx) for use in first.uses()], [(use.node, use.idx) for use in second.uses()]
        for reader, place in uses[0]:
            reader.replace_input_with(place, second)
        for reader, place in uses[1]:
            reader.replace_input_with(place, first)

    return change


def in_body(op: str, old: str, new: str, output: str | None = None) -> Change:
    """Change the type of the first node of a type in the reference body of an op (its first overload)."""

    def change(stage: Stage) -> None:
        function = next(f for f in stage.functions.values() if f.name == op)
        found = next(n for n in function if n.op_type == old and output in (None, n.outputs[0].name))
        found.op_type = new
        for key in list(found.attributes):
            if new == "Identity":
                found.attributes.pop(key)
        if new == "Identity":
            found.resize_inputs(1)

    return change


def weight(name: str, edit: Callable[[Array], Array]) -> Change:
    """Change the values of a weight before it is quantized and merged, as a wrong rule of a family would."""

    def change(stage: Stage) -> None:
        old = stage.weights[name]
        whole = np.concatenate([old.rows(a, b) for a, b in old.blocks()]).reshape(old.shape)
        new = np.ascontiguousarray(edit(whole.copy()), dtype=np.float32)
        assert new.shape == whole.shape
        assert not np.array_equal(new, whole), "the fault changes nothing"
        stage.add_weight(ComputedWeight(name, old.shape, lambda a, b: new[a:b]))

    return change


# -- finished folders --------------------------------------------------------------------------------------------------


def tensor(names: Sequence[str], edit: Callable[[Array], Array]) -> Edit:
    """Change the values of the first of these tensors that the weight file has."""

    def change(folder: Path) -> None:
        model = onnx.load(folder / STAGE / "model.onnx", load_external_data=False)
        held = {t.name: t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
        found = next(held[name] for name in names if name in held)
        entries = {entry.key: entry.value for entry in found.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(found.data_type)
        place = {"offset": int(entries.get("offset", 0)), "shape": tuple(found.dims)}
        mapped = np.memmap(folder / STAGE / "weights.bin", dtype, mode="r+", **place)
        new = edit(np.array(mapped))
        assert not np.array_equal(new, mapped), "the fault changes nothing"
        mapped[...] = new
        mapped.flush()

    return change


def engine(edit: Callable[[onnx.ModelProto], None]) -> Edit:
    """Change the compiled engine only."""

    def change(folder: Path) -> None:
        path = folder / STAGE / "engine.onnx"
        model = onnx.load(path, load_external_data=False)
        edit(model)
        path.write_bytes(model.SerializeToString())

    return change


def engine_attribute(name: str, key: str, new: Any) -> Edit:
    """Set an attribute of a node of the engine."""

    def edit(model: onnx.ModelProto) -> None:
        found = next(n for n in model.graph.node if n.name == name)
        for old in [a for a in found.attribute if a.name == key]:
            found.attribute.remove(old)
        found.attribute.append(onnx.helper.make_attribute(key, new))

    return engine(edit)
