"""The shapes of every value of a stage's graph for sizes of its symbolic dimensions, without running anything.

Small whole numbers (shapes, axes, lengths) are computed on the way, because shapes depend on them; all else has a shape
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.errors import ModelError

Shape = tuple[int, ...]
#: Values longer than this are no shapes.
_MOST_INTS = 4096


@dataclass(frozen=True)
class Fact:
    """What is known of a value: its shape and, of small whole numbers, the numbers."""

    shape: Shape
    ints: np.ndarray | None = None


Facts = dict[ir.Value, Fact]


class View:
    """One node as a rule sees it: the facts of its inputs and its attributes."""

    def __init__(self, node: ir.Node, facts: Facts) -> None:
        self.node, self._facts = node, facts

    def fact(self, place: int) -> Fact:
        """Return what is known of an input that must be there."""
        value = self.node.inputs[place]
        assert value is not None, (self.node.name, place)
        return self._facts[value]

    def shape(self, place: int) -> Shape:
        """Return the shape of an input."""
        return self.fact(place).shape

    def given(self, place: int) -> bool:
        """Tell whether an input is there."""
        return place < len(self.node.inputs) and self.node.inputs[place] is not None

    def ints(self, place: int) -> list[int]:
        """Return the numbers of an input, flat; raises ModelError where they depend on data."""
        found = self.fact(place).ints
        if found is None:
            raise ModelError(
                f"{self.node.name} ({self.node.op_type}) has a shape that depends on data, so that it can't be "
                "planned: please report it."
            )
        return [int(x) for x in found.reshape(-1)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        found = self.node.attributes.get(name)
        return default if found is None else found.value


Rule = Callable[[View], list[Fact]]


def shapes_of(graph: ir.Graph, sizes: Mapping[str, int], rules: Mapping[tuple[str, str], Rule]) -> Facts:
    """Return the facts of every value of a graph in the order of its nodes; `rules` are those beyond standard ops.

    Raises ModelError for an op without a rule and for a shape that depends on data.
    """
    facts: Facts = {}
    for value in graph.inputs:
        facts[value] = input_fact(value, sizes)
    for value in graph.initializers.values():
        facts[value] = initializer_fact(value)
    for node in graph:
        rule = rules.get((node.domain, node.op_type)) or (STANDARD.get(node.op_type) if not node.domain else None)
        if rule is None:
            raise ModelError(
                f"{node.name} is {node.domain or 'onnx'}::{node.op_type}, which the planner has no rule for: please "
                "report it."
            )
        for value, fact in zip(node.outputs, rule(View(node, facts)), strict=False):
            facts[value] = fact
    return facts


def _dims(value: ir.Value) -> list[int | str]:
    assert value.shape is not None, value.name
    return [d if isinstance(d, int) else str(d.value) for d in value.shape]


def input_fact(value: ir.Value, sizes: Mapping[str, int]) -> Fact:
    """Return what is known of an input: its shape for sizes of the symbolic dimensions."""
    dims = _dims(value)
    if unknown := [d for d in dims if isinstance(d, str) and d not in sizes]:
        raise ModelError(
            f"The input {value.name} depends on {', '.join(map(str, unknown))}, which the planner doesn't know: plan "
            "the checkpoint that the bundle was made of."
        )
    return Fact(tuple(d if isinstance(d, int) else sizes[d] for d in dims))


def initializer_fact(value: ir.Value) -> Fact:
    """Return what is known of an initializer; nothing is read of those whose data are in another file."""
    shape = tuple(int(d) for d in _dims(value))
    known, ints = value.const_value, None
    small = value.dtype in (ir.DataType.INT64, ir.DataType.INT32) and math.prod(shape) <= _MOST_INTS
    if known is not None and small and not isinstance(known, ir.ExternalTensor):
        ints = known.numpy()
    return Fact(shape, ints)


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that shapes have together."""
    return tuple(int(d) for d in np.broadcast_shapes(*shapes))


def _elementwise(compute: Callable[..., Any] | None = None) -> Rule:
    def rule(view: View) -> list[Fact]:
        inputs = [view.fact(i) for i in range(len(view.node.inputs)) if view.given(i)]
        shape = broadcast(*(fact.shape for fact in inputs))
        known = compute is not None and all(fact.ints is not None for fact in inputs)
        return [Fact(shape, compute(*(fact.ints for fact in inputs)) if known and compute is not None else None)]

    return rule


def _same(view: View) -> list[Fact]:
    fact = view.fact(0)
    return [Fact(fact.shape) for _ in view.node.outputs]


def _cast(view: View) -> list[Fact]:
    whole = view.attribute("to") in (int(ir.DataType.INT64), int(ir.DataType.INT32))
    return [view.fact(0) if whole else Fact(view.shape(0))]


def _identity(view: View) -> list[Fact]:
    return [view.fact(0)]


def _constant(view: View) -> list[Fact]:
    value = view.attribute("value")
    if value is None:
        numbers = view.attribute("value_ints", view.attribute("value_int"))
        array = np.asarray(0.0 if numbers is None else numbers)
    else:
        array = value.numpy()
    whole = array.dtype.kind == "i" and array.size <= _MOST_INTS
    return [Fact(tuple(array.shape), array.astype(np.int64) if whole else None)]


def _shape(view: View) -> list[Fact]:
    dims = view.shape(0)[view.attribute("start", 0) : view.attribute("end")]
    return [Fact((len(dims),), np.array(dims, np.int64))]


def _squeeze(view: View) -> list[Fact]:
    fact = view.fact(0)
    rank = len(fact.shape)
    axes = [a % rank for a in view.ints(1)] if view.given(1) else [i for i, d in enumerate(fact.shape) if d == 1]
    shape = tuple(d for i, d in enumerate(fact.shape) if i not in axes)
    return [Fact(shape, None if fact.ints is None else fact.ints.reshape(shape))]


def _unsqueeze(view: View) -> list[Fact]:
    fact = view.fact(0)
    axes = view.ints(1)
    rank = len(fact.shape) + len(axes)
    rest = iter(fact.shape)
    places = {a % rank for a in axes}
    shape = tuple(1 if i in places else next(rest) for i in range(rank))
    return [Fact(shape, None if fact.ints is None else fact.ints.reshape(shape))]


def _range(view: View) -> list[Fact]:
    start, stop, step = (view.ints(i)[0] for i in range(3))
    count = max(0, -(-(stop - start) // step))
    return [Fact((count,), np.arange(start, stop, step) if count <= _MOST_INTS else None)]


def _concat(view: View) -> list[Fact]:
    facts = [view.fact(i) for i in range(len(view.node.inputs))]
    axis = view.attribute("axis") % len(facts[0].shape)
    shape = list(facts[0].shape)
    shape[axis] = sum(fact.shape[axis] for fact in facts)
    known = [fact.ints for fact in facts if fact.ints is not None]
    return [Fact(tuple(shape), np.concatenate(known, axis) if len(known) == len(facts) else None)]


def _gather(view: View) -> list[Fact]:
    data, index = view.fact(0), view.fact(1)
    axis = view.attribute("axis", 0) % len(data.shape)
    shape = (*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])
    known = data.ints is not None and index.ints is not None
    return [Fact(shape, np.take(data.ints, index.ints, axis) if known else None)]  # type: ignore[arg-type]


def _slice(view: View) -> list[Fact]:
    fact = view.fact(0)
    starts, stops = view.ints(1), view.ints(2)
    axes = view.ints(3) if view.given(3) else list(range(len(starts)))
    steps = view.ints(4) if view.given(4) else [1] * len(starts)
    cut = [slice(None)] * len(fact.shape)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        cut[axis] = slice(start, None if step < 0 and stop < -(1 << 60) else stop, step)
    shape = tuple(len(range(*c.indices(d))) for c, d in zip(cut, fact.shape, strict=True))
    return [Fact(shape, None if fact.ints is None else fact.ints[tuple(cut)])]


def _reshape(view: View) -> list[Fact]:
    fact, wanted = view.fact(0), view.ints(1)
    keep = not view.attribute("allowzero", 0)
    shape = [fact.shape[i] if d == 0 and keep else d for i, d in enumerate(wanted)]
    if -1 in shape:
        rest = math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = math.prod(fact.shape) // rest if rest else 0
    return [Fact(tuple(shape), None if fact.ints is None else fact.ints.reshape(shape))]


def _transpose(view: View) -> list[Fact]:
    shape = view.shape(0)
    order = view.attribute("perm") or range(len(shape) - 1, -1, -1)
    return [Fact(tuple(shape[i] for i in order))]


def _expand(view: View) -> list[Fact]:
    fact = view.fact(0)
    shape = broadcast(fact.shape, tuple(view.ints(1)))
    small = fact.ints is not None and math.prod(shape) <= _MOST_INTS
    return [Fact(shape, np.broadcast_to(fact.ints, shape) if small and fact.ints is not None else None)]


def _constant_of_shape(view: View) -> list[Fact]:
    return [Fact(tuple(view.ints(0)))]


def _matmul(view: View) -> list[Fact]:
    a, b = view.shape(0), view.shape(1)
    return [Fact((*broadcast(a[:-2], b[:-2]), a[-2], b[-1]))]


def _split(view: View) -> list[Fact]:
    shape, axis = view.shape(0), view.attribute("axis", 0)
    axis %= len(shape)
    count = len(view.node.outputs)
    sizes = view.ints(1) if view.given(1) else [-(-shape[axis] // count)] * (count - 1)
    sizes += [shape[axis] - sum(sizes)] if len(sizes) < count else []
    return [Fact((*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]


def _top_k(view: View) -> list[Fact]:
    shape, axis = list(view.shape(0)), view.attribute("axis", -1)
    shape[axis] = view.ints(1)[0]
    return [Fact(tuple(shape)), Fact(tuple(shape))]


def _reduce(view: View) -> list[Fact]:
    shape = view.shape(0)
    axes = view.ints(1) if view.given(1) else view.attribute("axes") or range(len(shape))
    places = {a % len(shape) for a in axes}
    keep = view.attribute("keepdims", 1)
    return [Fact(tuple(1 if i in places else d for i, d in enumerate(shape) if keep or i not in places))]


def _at_index(view: View) -> list[Fact]:
    return [Fact(view.shape(1))]


#: Rules of standard ops.
STANDARD: dict[str, Rule] = {
    **dict.fromkeys(
        ("Abs", "Ceil", "Clip", "Cos", "CumSum", "Erf", "Exp", "Floor", "Gelu", "IsNaN", "LayerNormalization", "Log",
         "Not", "Reciprocal", "Relu", "Round", "ScatterElements", "Sigmoid", "Sign", "Sin", "Softmax",
         "Softplus", "Sqrt", "Swish", "Tanh", "TensorScatter"),
        _same,
    ),
    **dict.fromkeys(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Pow", "Where"),
                    _elementwise()),
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _elementwise(lambda a, b: a // b),
    "Max": _elementwise(np.maximum),
    "Min": _elementwise(np.minimum),
    "Neg": _elementwise(np.negative),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _at_index,
    "Identity": _identity,
    "MatMul": _matmul,
    "Range": _range,
    "ReduceMax": _reduce,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}  # fmt: skip
