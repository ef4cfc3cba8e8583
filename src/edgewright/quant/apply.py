"""The pass that gives every linear, embedding table and weight of experts the format its recipe says."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from edgewright.graph import Stage, Weight
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import module_of
from edgewright.graph.rewrite import replace as replace_node
from edgewright.graph.weights import FloatProducer, Producer
from edgewright.ops.experts import EXPERT_WEIGHTS
from edgewright.quant.formats import Format, IntFormat, StoredFormat
from edgewright.quant.producers import ExactProducer, RoundingProducer, held_exactly, stored_format
from edgewright.quant.recipe import Recipe


@dataclass(frozen=True)
class Applied:
    """What was done to one module: its format, and whether the checkpoint's codes were taken over unchanged."""

    module: str
    kind: str
    format: Format
    exact: bool
    stored: str


def quantize_stage(stage: Stage, recipe: Recipe) -> list[Applied]:
    """Apply `recipe` to every `Linear`, `Embedding` and `Experts` in place; returns what was done, in graph order.

    A head and a table that are tied and get the same format share one set of codes. Raises RecipeError.
    """
    nodes = [node for node in stage.graph if node.domain == EW and node.op_type in _PLACES]
    uses = [(node, place) for node in nodes for place in _PLACES[node.op_type] if node.inputs[place] is not None]
    modules = [(_module(node, place), _kind(node)) for node, place in uses]
    formats = recipe.resolve(modules)
    applied = []
    shared: dict[tuple[str, Format], tuple[ir.Value, ...]] = {}
    for (node, place), (module, kind) in zip(uses, modules, strict=True):
        table = node.inputs[place]
        assert table is not None
        assert table.name is not None
        weight = stage.weights[table.name]
        tensor = weight.stored()
        wanted = formats[module]
        fmt = stored_format(tensor) if isinstance(wanted, StoredFormat) else wanted
        exact = isinstance(fmt, IntFormat) and held_exactly(tensor, fmt) is not None
        if exact and isinstance(fmt, IntFormat):
            fmt = replace(fmt, zero_point=False)  # codes that are taken over need none
        stored = tensor.dtype if tensor is not None else "transformed"
        applied.append(Applied(module, kind, fmt, exact or stored == fmt.label, stored))
        key = (weight.name, replace(fmt, int8_activations=True) if isinstance(fmt, IntFormat) else fmt)
        if key not in shared:
            shared[key] = _produce(stage, weight, fmt, module)
        elif isinstance(fmt, IntFormat):
            stage.notes.append(f"{module} shares the codes of {weight.name}")
        if node.op_type == "Experts":
            _feed(stage, node, place, shared[key], fmt, weight, module)
        else:
            _replace(stage, node, shared[key], fmt, weight)
    stage.drop_unused()
    return applied


#: Where the ops have weights among their inputs.
_PLACES = {"Linear": (1,), "Embedding": (1,), "Experts": EXPERT_WEIGHTS}


def _module(node: ir.Node, place: int) -> str:
    """Return the module a weight belongs to; an `Experts` node has several, named after their parameters."""
    value = node.inputs[place]
    if node.op_type != "Experts":
        return module_of(node)
    assert value is not None
    return (value.name or "").removesuffix(".weight")


def _kind(node: ir.Node) -> str:
    if node.op_type == "Embedding":
        return "embedding"
    return "lm_head" if module_of(node) == "lm_head" else "body"


def _produce(stage: Stage, weight: Weight, fmt: Format, module: str) -> tuple[ir.Value, ...]:
    if isinstance(fmt, IntFormat):
        blocks = held_exactly(weight.stored(), fmt)
        if blocks is not None:
            producer: Producer = ExactProducer(blocks, weight, fmt, module)
        else:
            producer = RoundingProducer(weight, fmt, module)
        return stage.add_producer(producer)
    value = stage.graph.initializers[weight.name]
    if fmt.dtype == "float32":
        return (value,)
    half = FloatProducer(weight, fmt.dtype)
    half.specs = (type(half.specs[0])(f"{module}.{fmt.dtype}", fmt.dtype, weight.shape),)
    return stage.add_producer(half)


def _replace(stage: Stage, node: ir.Node, values: tuple[ir.Value, ...], fmt: Format, weight: Weight) -> None:
    """Put the node of the right kind in `node`'s place."""
    x, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    new: list[ir.Node] = []
    if isinstance(fmt, IntFormat):
        inputs = [x, *_parts(values), bias]
        new.append(make_node(EW, f"Quant{node.op_type}", inputs, _attributes(fmt, weight), name=node.name or ""))
    elif fmt.dtype == "float32":
        return
    elif node.op_type == "Embedding":
        gather = make_node(EW, "Embedding", [x, values[0]], {}, name=f"{node.name}_half")
        new += [gather, _cast(gather.outputs[0], node.name or "")]
    else:
        cast = _cast(values[0], f"{node.name}_weight")
        new += [cast, make_node(EW, "Linear", [x, cast.outputs[0], bias], {}, name=node.name or "")]
    replace_node(stage, node, new, new[-1].outputs)


def _feed(
    stage: Stage, node: ir.Node, place: int, values: tuple[ir.Value, ...], fmt: Format, weight: Weight, module: str
) -> None:
    """Give an `Experts` node one of its weights as a float made of the stored tensors."""
    if isinstance(fmt, IntFormat):
        new = make_node(EW, "Dequantize", _parts(values), _attributes(fmt, weight), name=f"{module}/Dequantize")
    elif fmt.dtype == "float32":
        return
    else:
        new = _cast(values[0], f"{module}/weight")
    stage.graph.insert_before(node, [new])
    node.replace_input_with(place, new.outputs[0])


def _parts(values: tuple[ir.Value, ...]) -> list[ir.Value | None]:
    by_kind = {(value.name or "").rsplit(".", 1)[-1]: value for value in values}
    return [by_kind.get(kind) for kind in ("codes", "scales", "zero_points", "offsets")]


def _attributes(fmt: IntFormat, weight: Weight) -> dict[str, int]:
    rows, width = weight.shape
    return {
        "bits": fmt.bits,
        "group": fmt.group,
        "in_features": width,
        "out_features": rows,
        "int8_activations": int(fmt.int8_activations),
    }


def _cast(value: ir.Value, name: str) -> ir.Node:
    return make_node("", "Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=f"{name}/Cast")
