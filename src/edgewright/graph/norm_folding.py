"""The pass that multiplies norms' weights into the linears that read them: (n * g + b) W^T + c, with n the unit x."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgewright.errors import CheckpointError
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.graph.stage import Stage
from edgewright.graph.weights import ComputedWeight, FloatProducer, Weight

Floats = npt.NDArray[np.float32]


class ScaledColumns(Weight):
    """A matrix whose columns are multiplied by a vector's elements."""

    def __init__(self, source: Weight, factors: Weight) -> None:
        self.name, self.shape = source.name, source.shape
        self._source, self._factors = source, factors

    def rows(self, start: int, stop: int) -> Floats:
        return _finite(self._source.rows(start, stop) * self._factors.rows(0, self._factors.shape[0]), self.name)


class ShiftedBias(Weight):
    """A bias, or nothing, and a matrix times a vector, summed up in float64."""

    summed = True

    def __init__(self, name: str, bias: Weight | None, matrix: Weight, shift: Weight) -> None:
        self.name, self.shape = name, (matrix.shape[0],)
        self._bias, self._matrix, self._shift = bias, matrix, shift

    def rows(self, start: int, stop: int) -> Floats:
        shift = self._shift.rows(0, self._shift.shape[0]).astype(np.float64)
        y = np.zeros(stop - start) if self._bias is None else self._bias.rows(start, stop).astype(np.float64)
        step = max(1, (1 << 20) // len(shift))
        for first in range(start, stop, step):
            last = min(stop, first + step)
            y[first - start : last - start] += self._matrix.rows(first, last).astype(np.float64) @ shift
        return _finite(y.astype(np.float32), self.name)


def _finite(values: Floats, name: str) -> Floats:
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{name} has values that are not finite once the norm before it is folded in: repair it, or build without "
            "norm-folding."
        )
    return values


def fold_norms(stage: Stage) -> tuple[int, int]:
    """Fold every norm over the whole width whose only readers are linears, in place; before quantization.

    The norm stays with a weight of ones, which its kernels want. A norm stays as it is where something else reads it,
    or where a linear shares its weight or has one that another tool quantized. Returns how many were folded, and how
    many with a weight were not.
    """
    folded = left = 0
    norms = set[str]()
    for node in list(stage.graph):
        if node.domain != EW or node.op_type not in ("RMSNorm", "LayerNorm") or len(node.inputs) < 2:
            continue
        readers = [use.node for use in node.outputs[0].uses() if use.idx == 0]
        whole = "group" not in node.attributes and not node.outputs[0].is_graph_output()
        alone = len(readers) == len(list(node.outputs[0].uses()))
        known = all(value is None or value.name in stage.weights for value in node.inputs[1:])
        if not (whole and alone and known and readers and all(_takes(stage, reader) for reader in readers)):
            left += 1
            continue
        norms |= {str(value.name) for value in node.inputs[1:] if value is not None}
        _fold(stage, node, readers)
        folded += 1
    stage.drop_unused()
    for name in norms - set(stage.graph.initializers):
        del stage.weights[name]
    return folded, left


def _takes(stage: Stage, node: ir.Node) -> bool:
    """Tell whether a node is a linear with float parameters of its own."""
    if node.domain != EW or node.op_type != "Linear":
        return False
    parameters = [value for value in node.inputs[1:] if value is not None]
    if any(value.name not in stage.weights or len(list(value.uses())) != 1 for value in parameters):
        return False
    stored = stage.weights[str(parameters[0].name)].stored()
    return all(getattr(stored, name, None) is None for name in ("encoding", "decoded", "format"))


def _fold(stage: Stage, norm: ir.Node, readers: list[ir.Node]) -> None:
    scale, shift = (None if v is None else stage.weights.get(str(v.name)) for v in (*norm.inputs, None)[1:3])
    for linear in readers:
        matrix = stage.weights[str(linear.inputs[1].name)]  # type: ignore[union-attr]
        if shift is not None:
            _shift_bias(stage, linear, matrix, shift)
        if scale is not None:
            _register(stage, ScaledColumns(matrix, scale))
    if scale is not None:
        width = scale.shape[0]
        ones = ComputedWeight(f"ones_{width}", (width,), lambda a, b: np.ones(b - a, np.float32))
        norm.replace_input_with(1, stage.float_value(ones))
    if shift is not None:
        norm.resize_inputs(2)


def _shift_bias(stage: Stage, linear: ir.Node, matrix: Weight, shift: Weight) -> None:
    bias = (*linear.inputs, None)[2]
    if bias is not None:
        _register(stage, ShiftedBias(str(bias.name), stage.weights[str(bias.name)], matrix, shift))
        return
    made = stage.float_value(ShiftedBias(f"{module_of(linear)}.bias", None, matrix, shift))
    linear.resize_inputs(3)
    linear.replace_input_with(2, made)


def _register(stage: Stage, weight: Weight) -> None:
    """Put a weight in the place of the one of its name."""
    stage.weights[weight.name] = weight
    stage.producers[weight.name] = FloatProducer(weight, "float32")
