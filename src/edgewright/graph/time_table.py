"""The pass that computes what depends on a fixed number of times alone: it becomes a table, looked up by time.

What is computed is found by the flow of data, not by names: all that the time's embedding reaches through ops that work
on each row alone, together with weights and constants. A table has a row for each time and the columns of everything
that the rest of the graph reads of it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgewright.contract import TensorContract
from edgewright.errors import CheckpointError, ModelError
from edgewright.graph.builder import EW, make_node
from edgewright.graph.flow import input_named
from edgewright.graph.rewrite import int64_constant, module_of
from edgewright.graph.stage import IR_DTYPES, Stage
from edgewright.graph.weights import ComputedWeight, Weight

Floats64 = npt.NDArray[np.float64]

TIME_EMBEDDING, TIME_INDEX, TIME_TABLE = "time_embedding", "time_index", "time_table"


@dataclass(frozen=True)
class Tabled:
    """What went into a table: the modules whose linears did, the bytes of their weights as float32, and the table's."""

    modules: tuple[str, ...]
    weight_bytes: int
    table_bytes: int


def tabulate_time(stage: Stage, embeddings: npt.NDArray[np.float32]) -> Tabled:
    """Make the input `time_index` int64 `[batch, times]` of `time_embedding`, in place; before quantization.

    `embeddings` `[rows, width]` are those of the times that the indices stand for. The values are computed in float64
    from the float weights, a block of rows of a weight at a time, when the table is written, and rounded to float32;
    weights that nothing else reads leave the stage. Raises ModelError where the stage has no such input.
    """
    if not any(value.name == TIME_EMBEDDING for value in stage.graph.inputs):
        raise ModelError(f"The stage {stage.name} takes no {TIME_EMBEDDING}, so there is nothing for a time table.")
    time = input_named(stage.graph, TIME_EMBEDDING)
    program = _Program(stage, time)
    table = program.table(embeddings)
    before = set(stage.graph.initializers)
    _look_up(stage, time, program.frontier, program.widths, table)
    gone = [stage.weights.pop(name) for name in before - set(stage.graph.initializers) if name in stage.weights]
    weight_bytes = sum(4 * int(np.prod(weight.shape)) for weight in gone)
    return Tabled(tuple(program.modules), weight_bytes, 4 * int(np.prod(table.shape)))


def _look_up(
    stage: Stage, time: ir.Value, frontier: Sequence[ir.Value], widths: Sequence[int], table: ComputedWeight
) -> None:
    """Put rows of the table in the place of `frontier`, and the index in that of the embedding."""
    contract = TensorContract(TIME_INDEX, "int64", ("batch", "times"))
    index = ir.Value(name=TIME_INDEX, shape=ir.Shape(contract.shape), type=ir.TensorType(IR_DTYPES["int64"]))
    stage.graph.inputs[list(stage.graph.inputs).index(time)] = index
    rows = make_node("", "Gather", [stage.float_value(table), index], {"axis": 0}, name=f"{TIME_TABLE}/Gather")
    new = [rows]
    if len(frontier) > 1:
        sizes = int64_constant(stage, widths, f"{TIME_TABLE}.widths")
        name = f"{TIME_TABLE}/Split"
        new.append(make_node("", "Split", [rows.outputs[0], sizes], {"axis": -1}, outputs=len(frontier), name=name))
    stage.graph.insert_before(next(iter(stage.graph)), new)
    for old, value in zip(frontier, new[-1].outputs, strict=True):
        ir.convenience.replace_all_uses_with(old, value)
    stage.drop_unused()
    inputs = tuple(contract if tensor.name == TIME_EMBEDDING else tensor for tensor in stage.contract.inputs)
    stage.contract = dataclasses.replace(stage.contract, inputs=inputs)


#: A value of the program by its place, or a weight, or numbers.
_Operand = int | Weight | npt.NDArray[Any]


@dataclass(frozen=True)
class _Step:
    """One op of the program: what it reads, and the places of what it makes."""

    run: Callable[..., tuple[Floats64, ...]]
    operands: tuple[_Operand, ...]
    results: tuple[int, ...]


class _Program:
    """The ops that the time alone goes through, in order, apart from the graph they stood in."""

    def __init__(self, stage: Stage, time: ir.Value) -> None:
        self._stage = stage
        self._places: dict[ir.Value, int] = {time: 0}
        self._steps: list[_Step] = []
        self.modules: dict[str, None] = {}
        taken = [node for node in stage.graph if self._take(node)]
        outside = {value for value in self._places if any(use.node not in taken for use in value.uses())}
        self.frontier = [value for value in self._places if value in outside or value.is_graph_output()]
        self.widths = [self._width(value) for value in self.frontier]

    def _take(self, node: ir.Node) -> bool:
        """Add a node to the program; returns whether it could be."""
        rule = _RULES.get((node.domain, node.op_type))
        if rule is None or not any(value in self._places for value in node.inputs):
            return False
        operands = [self._operand(value) for value in node.inputs if value is not None]
        found = [operand for operand in operands if operand is not None]
        run = rule(node) if len(found) == len(operands) and len(found) == len(node.inputs) else None
        if run is None:
            return False
        first = len(self._places)
        self._places.update({value: first + place for place, value in enumerate(node.outputs)})
        self._steps.append(_Step(run, tuple(found), tuple(range(first, first + len(node.outputs)))))
        if node.op_type == "Linear":
            self.modules[module_of(node)] = None
        return True

    def _operand(self, value: ir.Value) -> _Operand | None:
        """Return what the program reads for a value, None for what isn't known when building or isn't row by row."""
        if value in self._places:
            return self._places[value]
        name = str(value.name)
        if name in self._stage.weights and value.is_initializer():
            return self._stage.weights[name]
        if not value.is_initializer() or name in self._stage.producers or value.const_value is None:
            return None
        return value.const_value.numpy() if value.const_value.size < 1 << 16 else None

    def table(self, embeddings: npt.NDArray[np.float32]) -> ComputedWeight:
        """Return the table of the frontier's columns, computed when the first of its rows is asked for."""
        rows = len(embeddings)
        lock, kept = threading.Lock(), list[npt.NDArray[np.float32]]()
        steps, wanted = self._steps, [self._places[value] for value in self.frontier]

        def make(start: int, stop: int) -> npt.NDArray[np.float32]:
            with lock:
                if not kept:
                    kept.append(_computed(steps, wanted, embeddings))
            return kept[0][start:stop]

        table = ComputedWeight(TIME_TABLE, (rows, sum(self.widths)), make)
        table.summed = True
        return table

    def _width(self, value: ir.Value) -> int:
        """Return the number of columns of a value, of the shapes of weights alone."""
        place, known = self._places[value], {0: _last(next(iter(self._places)))}
        for step in self._steps:
            known |= dict(zip(step.results, _widths(step, known), strict=True))
        return known[place]


def _last(value: ir.Value) -> int:
    assert value.shape is not None
    return int(value.shape[-1])  # type: ignore[arg-type]


def _widths(step: _Step, known: dict[int, int]) -> list[int]:
    if step.run is _linear:
        weight = step.operands[1]
        assert isinstance(weight, Weight)
        return [weight.shape[0]]
    if step.run is _split:
        return [int(size) for size in step.operands[1]]  # type: ignore[union-attr]
    return [max(known[operand] for operand in step.operands if isinstance(operand, int))]


def _computed(
    steps: Sequence[_Step], wanted: Sequence[int], embeddings: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Run the program; what nothing reads any more is let go."""
    values: dict[int, Floats64] = {0: embeddings.astype(np.float64)}
    last = {operand: at for at, step in enumerate(steps) for operand in step.operands if isinstance(operand, int)}
    for at, step in enumerate(steps):
        results = step.run(*(values[o] if isinstance(o, int) else o for o in step.operands))
        values.update(zip(step.results, results, strict=True))
        for place in [place for place in values if last.get(place, -1) <= at and place not in wanted]:
            del values[place]
    table = np.concatenate([values[place] for place in wanted], axis=-1).astype(np.float32)
    if not np.isfinite(table).all():
        raise CheckpointError(
            "The time table holds values that are not finite, because weights it is made of do: repair the checkpoint."
        )
    return table


def _linear(x: Floats64, weight: Weight, bias: Weight | None = None) -> tuple[Floats64, ...]:
    y = np.empty((len(x), weight.shape[0]), np.float64)
    for start, stop in weight.blocks():
        y[:, start:stop] = x @ weight.rows(start, stop).astype(np.float64).T
    return (y if bias is None else y + _numbers(bias),)


def _silu(x: Floats64) -> tuple[Floats64, ...]:
    return (x / (1.0 + np.exp(-x)),)


def _split(x: Floats64, sizes: npt.NDArray[np.int64]) -> tuple[Floats64, ...]:
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=-1))


def _numbers(operand: Weight | npt.NDArray[Any]) -> npt.NDArray[Any]:
    if isinstance(operand, Weight):
        return operand.rows(0, operand.shape[0]).astype(np.float64)
    return operand.astype(np.float64)


def _elementwise(function: np.ufunc) -> Callable[..., tuple[Floats64, ...]]:
    return lambda a, b: (function(_numbers(a), _numbers(b)),)


_ADD, _MULTIPLY, _SUBTRACT = (_elementwise(function) for function in (np.add, np.multiply, np.subtract))


def _row_by_row(node: ir.Node) -> bool:
    """Tell whether all that a node reads besides rows of its own is the same for every row."""
    return all(
        not value.is_initializer() or (value.shape is not None and len(value.shape) <= 1)
        for value in node.inputs
        if value is not None
    )


_Rule = Callable[[ir.Node], Callable[..., tuple[Floats64, ...]] | None]

#: How a node is computed, or None where it can't be.
_RULES: dict[tuple[str, str], _Rule] = {
    (EW, "Linear"): lambda node: _linear,
    (EW, "Activation"): lambda node: _silu if node.attributes["activation"].value == "silu" else None,
    ("", "Split"): lambda node: _split if node.attributes["axis"].value == -1 else None,
    ("", "Add"): lambda node: _ADD if _row_by_row(node) else None,
    ("", "Mul"): lambda node: _MULTIPLY if _row_by_row(node) else None,
    ("", "Sub"): lambda node: _SUBTRACT if _row_by_row(node) else None,
}
