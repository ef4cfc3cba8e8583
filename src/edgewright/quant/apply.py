"""The pass that gives every linear, embedding table and weight of experts the format its recipe says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from edgewright.errors import RecipeError
from edgewright.formats import ActivationFormat, BlockFormat, FloatFormat, Format, IntFormat, LinearInput, StoredFormat
from edgewright.graph import Stage, Weight
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import int64_constant, module_of
from edgewright.graph.rewrite import replace as replace_node
from edgewright.graph.weights import ComputedWeight, FloatProducer, Producer, Rows
from edgewright.ops.experts import EXPERT_WEIGHTS
from edgewright.quant.producers import EncodedProducer, ExactProducer, RoundingProducer, held_exactly, stored_format
from edgewright.quant.recipe import Choice, Recipe


@dataclass(frozen=True)
class Applied:
    """What was done to one module: its format, and whether the checkpoint's codes were taken over unchanged.

    `inputs` is what its activations are rounded to, or None.
    """

    module: str
    kind: str
    format: Format
    exact: bool
    stored: str
    inputs: ActivationFormat | None = None


def quantize_stage(stage: Stage, recipe: Recipe | Mapping[str, Choice], *, requantize: bool = False) -> list[Applied]:
    """Apply `recipe` to every `Linear`, `Embedding` and `Experts` in place; returns what was done, in graph order.

    Instead of a recipe what it says of every module may be given, where one recipe holds for several stages.

    A head and a table that are tied and get the same format share one set of codes. A weight that another tool
    quantized is taken over as it is; another format is a second rounding, which `requantize` allows. Raises
    RecipeError.
    """
    uses = quantizable(stage)
    choices = recipe.choices([(use.module, use.kind) for use in uses]) if isinstance(recipe, Recipe) else recipe
    inputs = _Inputs(stage)
    applied = []
    shared: dict[tuple[str, Format], tuple[ir.Value, ...]] = {}
    for use in uses:
        weight, choice = use.weight, choices[use.module]
        tensor = weight.stored()
        fmt = _format(use, choice, tensor, requantize=requantize)
        gives = getattr(tensor, "input", None) or LinearInput()
        activation = _activation(use, choice, gives)
        if isinstance(fmt, IntFormat) and activation is not None:
            fmt = replace(fmt, int8_activations=False)  # one rounding of the inputs is enough
        if use.node.op_type == "Experts":
            activation = inputs.of_experts(use, replace(gives, activation=activation))
        else:
            inputs.insert(use.node, replace(gives, activation=activation), use.module)
        exact = _taken_over(tensor, fmt)
        stored = tensor.dtype if tensor is not None else "transformed"
        applied.append(Applied(use.module, use.kind, fmt, exact or stored == fmt.label, stored, activation))
        key = (weight.name, replace(fmt, int8_activations=True) if isinstance(fmt, IntFormat) else fmt)
        if key not in shared:
            shared[key] = _produce(stage, weight, fmt, use.module)
        elif isinstance(fmt, BlockFormat):
            stage.notes.append(f"{use.module} shares the codes of {weight.name}")
        if use.node.op_type == "Experts":
            _feed(stage, use, shared[key], fmt)
        else:
            _replace(stage, use, shared[key], fmt)
    stage.notes += _held(applied)
    stage.drop_unused()
    return applied


def _held(applied: list[Applied]) -> list[str]:
    """Return which of our formats hold the codes of another format, unchanged."""
    found = Counter((a.stored, a.format.label) for a in applied if a.exact and a.stored != a.format.label)
    return [
        f"{count} weights stored as {stored} are held as {label}, codes unchanged"
        for (stored, label), count in found.items()
    ]


#: Where the ops have weights among their inputs.
_PLACES = {"Linear": (1,), "Embedding": (1,), "Experts": EXPERT_WEIGHTS}


@dataclass(frozen=True)
class Use:
    """One use of a weight that can be quantized: the node, the place among its inputs, and the module it belongs to."""

    node: ir.Node
    place: int
    module: str
    kind: str
    weight: Weight


def quantizable(stage: Stage) -> list[Use]:
    """Return every use of a weight of a linear, an embedding or experts, in graph order."""
    uses = []
    for node in stage.graph:
        for place in _PLACES.get(node.op_type, ()) if node.domain == EW else ():
            value = node.inputs[place]
            if value is not None:
                assert value.name is not None
                weight = stage.weights[value.name]
                uses.append(Use(node, place, _module(node, value), _kind(node), weight))
    return uses


def _module(node: ir.Node, value: ir.Value) -> str:
    """Return the module a weight belongs to; an `Experts` node has several, named after their parameters."""
    return (value.name or "").removesuffix(".weight") if node.op_type == "Experts" else module_of(node)


#: A policy's linears between its own numbers (pixels, state, actions, time) and its towers, by their whole names.
_PROJECTIONS = frozenset(
    {"state_proj", "action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out"}
    | {"action_time_mlp_in.actions", "action_time_mlp_in.time", "action_time_mlp_in", "action_time_mlp_out"}
)
#: The ends of the names of those that stand inside the towers: norms that the time modulates have a `dense`.
_INNER_PROJECTIONS = (".patch_embedding", ".multi_modal_projector.linear", "norm.dense")


def _kind(node: ir.Node) -> str:
    if node.op_type != "Linear":
        return node.op_type.lower()
    module = module_of(node)
    if module in _PROJECTIONS or module.endswith(_INNER_PROJECTIONS):
        return "projection"
    return "lm_head" if module == "lm_head" else "body"


def format_of(use: Use, choice: Choice, *, requantize: bool = False) -> Format:
    """Return the format that a choice gives a weight; raises RecipeError for a second rounding that isn't allowed."""
    return _format(use, choice, use.weight.stored(), requantize=requantize)


def _format(use: Use, choice: Choice, tensor: Rows | None, *, requantize: bool) -> Format:
    """Return the format a weight gets: the wished one, or the one it is stored in where that is the wish."""
    wanted = choice.weight
    encoding: BlockFormat | None = getattr(tensor, "encoding", None)
    if isinstance(wanted, StoredFormat):
        return encoding or stored_format(tensor)
    before = encoding or getattr(tensor, "decoded", None)
    if before is not None and isinstance(wanted, BlockFormat):
        if encoding is not None and _alike(wanted, encoding):
            if isinstance(encoding, IntFormat) and isinstance(wanted, IntFormat):
                return replace(encoding, int8_activations=wanted.int8_activations)
            return encoding
        if not requantize:
            raise RecipeError(
                f"{choice.where['weight']}: {use.module} is stored as {before.label}, and {wanted.label} would round "
                "it a second time: take it over with the recipe 'stored', or ask for the rounding with --requantize."
            )
    if isinstance(wanted, IntFormat) and held_exactly(tensor, wanted) is not None:
        return replace(wanted, zero_point=False, scales="float32")  # codes that are taken over need none
    return wanted


def _alike(wanted: BlockFormat, encoding: BlockFormat) -> bool:
    if isinstance(wanted, IntFormat) and isinstance(encoding, IntFormat):
        return (wanted.bits, wanted.group) == (encoding.bits, encoding.group)
    return wanted == encoding


def _taken_over(tensor: Rows | None, fmt: Format) -> bool:
    if isinstance(fmt, BlockFormat) and (encoding := getattr(tensor, "encoding", None)) is not None:
        return _alike(fmt, encoding)
    return isinstance(fmt, IntFormat) and held_exactly(tensor, fmt) is not None


def _activation(use: Use, choice: Choice, gives: LinearInput) -> ActivationFormat | None:
    """Return what a linear's input is rounded to; static scales come with the checkpoint alone."""
    if use.kind == "embedding":
        return None
    wished = choice.inputs.format
    if isinstance(choice.weight, StoredFormat) or wished == gives.activation:
        return gives.activation
    if wished is not None and wished.static:
        raise RecipeError(
            f"{choice.where['inputs']}: {use.module} has no scale for static activations yet: make the quantized "
            "checkpoint first, with edgewright quantize and this recipe."
        )
    return wished


class _Inputs:
    """Puts before a node what its input goes through; nodes that read the same share it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._made: dict[tuple[object, ...], ir.Value] = {}
        self._experts: dict[int, LinearInput] = {}

    def of_experts(self, use: Use, steps: LinearInput) -> ActivationFormat | None:
        """Let gate and up of an `Experts` node read their one input as `steps` say; returns what it is rounded to.

        What down reads is inside of the node and stays as it is. Raises RecipeError on steps there is no place for.
        """
        inner, known = use.place == EXPERT_WEIGHTS[-1], self._experts.get(id(use.node))
        if inner and steps.permutation is None and steps.multiply is None:
            return None
        if inner or (known is not None and _key(known) != _key(steps)):
            raise RecipeError(
                f"The input of {use.module} is to be changed in a way that the other projections of these experts are "
                "not: give all of them the same activations, or none."
            )
        if known is None:
            self._experts[id(use.node)] = steps
            self.insert(use.node, steps, use.module)
        return steps.activation

    def insert(self, node: ir.Node, steps: LinearInput, module: str) -> None:
        """Make `node` read its first input permuted, multiplied and rounded as `steps` say."""
        x = node.inputs[0]
        assert x is not None
        if steps.permutation is not None:
            order = steps.permutation
            index = int64_constant(self._stage, order.tolist(), f"{module}.permutation")
            x = self._node(node, x, ("Gather", order.tobytes()), "", [index], {"axis": -1}, module)
        if steps.multiply is not None:
            factors = self._weight(f"{module}.multiply", steps.multiply)
            x = self._node(node, x, ("Mul", steps.multiply.tobytes()), "", [factors], {}, module)
        if steps.activation is not None:
            scale = [] if steps.scale is None else [self._weight(f"{module}.input_scale", steps.scale)]
            if steps.zero_point is not None:
                scale.append(self._zero_point(f"{module}.input_zero_point", steps.zero_point))
            fmt = steps.activation
            attributes = {"format": fmt.name, "static": int(steps.scale is not None), "scope": fmt.scope}
            parts = tuple(None if v is None else v.tobytes() for v in (steps.scale, steps.zero_point))
            x = self._node(node, x, ("RoundInput", fmt, *parts), EW, scale, attributes, module)
        node.replace_input_with(0, x)

    def _node(
        self,
        before: ir.Node,
        x: ir.Value,
        what: tuple[object, ...],
        domain: str,
        more: list[ir.Value],
        attributes: dict[str, object],
        module: str,
    ) -> ir.Value:
        key = (id(x), *what)
        if key not in self._made:
            kind = str(what[0])
            new = make_node(domain, kind, [x, *more], attributes, name=f"{module}/{kind}")
            self._stage.graph.insert_before(before, [new])
            self._made[key] = new.outputs[0]
        return self._made[key]

    def _weight(self, name: str, values: np.ndarray) -> ir.Value:
        return self._stage.float_value(ComputedWeight(name, values.shape, lambda a, b: values[a:b]))

    def _zero_point(self, name: str, values: np.ndarray) -> ir.Value:
        tensor = ir.tensor(values.astype(np.int8), name=name)
        value = ir.Value(name=name, shape=ir.Shape(values.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._stage.graph.register_initializer(value)
        return value


def _key(steps: LinearInput) -> tuple[object, ...]:
    arrays = (steps.permutation, steps.multiply, steps.scale, steps.zero_point)
    return (steps.activation, *(None if array is None else array.tobytes() for array in arrays))


def _produce(stage: Stage, weight: Weight, fmt: Format, module: str) -> tuple[ir.Value, ...]:
    if isinstance(fmt, BlockFormat):
        tensor = weight.stored()
        if getattr(tensor, "encoding", None) is not None and _taken_over(tensor, fmt):
            return stage.add_producer(EncodedProducer(tensor, weight, fmt, module))  # type: ignore[arg-type]
        blocks = held_exactly(tensor, fmt) if isinstance(fmt, IntFormat) else None
        producer: Producer = RoundingProducer(weight, fmt, module)
        if blocks is not None and isinstance(fmt, IntFormat):
            producer = ExactProducer(blocks, weight, fmt, module)
        return stage.add_producer(producer)
    value = stage.graph.initializers[weight.name]
    assert isinstance(fmt, FloatFormat)
    if fmt.dtype == "float32":
        return (value,)
    half = FloatProducer(weight, fmt.dtype)
    half.specs = (type(half.specs[0])(f"{module}.{fmt.dtype}", fmt.dtype, weight.shape),)
    return stage.add_producer(half)


def _replace(stage: Stage, use: Use, values: tuple[ir.Value, ...], fmt: Format) -> None:
    """Put the node of the right kind in the place of a linear or an embedding."""
    node, name = use.node, use.node.name or ""
    x, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    attributes = _attributes(fmt, use.weight)
    if isinstance(fmt, IntFormat):
        new = [make_node(EW, f"Quant{node.op_type}", [x, *_int_parts(values), bias], attributes, name=name)]
    elif isinstance(fmt, FloatFormat) and fmt.dtype == "float32":
        return
    elif node.op_type == "Embedding":
        if isinstance(fmt, BlockFormat):
            new = [make_node(EW, "DecodeRows", [x, *values], attributes, name=name)]
        else:
            gather = make_node(EW, "Embedding", [x, values[0]], {}, name=f"{name}_half")
            new = [gather, _cast(gather.outputs[0], name)]
    else:
        widened = _widened(use, values, fmt, f"{name}_weight")
        new = [widened, make_node(EW, "Linear", [x, widened.outputs[0], bias], {}, name=name)]
    replace_node(stage, node, new, new[-1].outputs)


def _feed(stage: Stage, use: Use, values: tuple[ir.Value, ...], fmt: Format) -> None:
    """Give an `Experts` node one of its weights as a float made of the stored tensors."""
    if isinstance(fmt, FloatFormat) and fmt.dtype == "float32":
        return
    if isinstance(fmt, IntFormat):
        attributes = _attributes(fmt, use.weight)
        new = make_node(EW, "Dequantize", _int_parts(values), attributes, name=f"{use.module}/Dequantize")
    else:
        new = _widened(use, values, fmt, f"{use.module}/weight")
    stage.graph.insert_before(use.node, [new])
    use.node.replace_input_with(use.place, new.outputs[0])


def _widened(use: Use, values: tuple[ir.Value, ...], fmt: Format, name: str) -> ir.Node:
    """Return the node that makes a float weight of stored tensors."""
    if isinstance(fmt, FloatFormat):
        return _cast(values[0], name)
    return make_node(EW, "Decode", values, _attributes(fmt, use.weight), name=f"{name}/Decode")


def _int_parts(values: tuple[ir.Value, ...]) -> list[ir.Value | None]:
    by_kind = {(value.name or "").rsplit(".", 1)[-1]: value for value in values}
    return [by_kind.get(kind) for kind in ("codes", "scales", "zero_points", "offsets")]


def _attributes(fmt: Format, weight: Weight) -> dict[str, int | str | None]:
    if not isinstance(fmt, BlockFormat):
        return {}
    rows, width = weight.shape
    sizes: dict[str, int | str | None] = {"in_features": width, "out_features": rows}
    if isinstance(fmt, IntFormat):
        scales = None if fmt.scales == "float32" else fmt.scales
        kind = {"bits": fmt.bits, "group": fmt.group}
        return {**kind, **sizes, "int8_activations": int(fmt.int8_activations), "scales": scales}
    described = fmt.to_json()
    return {"format": described["element"], "scope": described.get("scope"), **sizes}


def _cast(value: ir.Value, name: str) -> ir.Node:
    return make_node("", "Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=f"{name}/Cast")
