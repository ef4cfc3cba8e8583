"""Products of int8 inputs and int8 weights in ONNX Runtime: sums of whole numbers, scaled once.

Kernel choice, measured on ONNX Runtime 1.32, one thread of a CPU with AVX2 and no VNNI, 576 x 1536: unsigned codes on
both sides take 43 us for one row and 2.7 ms for 64, where float32 takes 88 us and 5.1 ms. Unsigned inputs with signed
weights are the fastest and wrong there: pairs of products saturate at 16 bits. Signed inputs take 6.9 ms for one row.
Hence both sides are moved up by 128, which changes their bytes in the top bit only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import int64_constant, made_by, number_of, replace, scalar_constant
from edgewright.ops.round_input import TINY

MICROSOFT = "com.microsoft"


class _Codes(NamedTuple):
    """An input as uint8 codes, their scale (a scalar, or one a token in `[..., 1]`) and their zero point."""

    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value
    by_token: bool


def lower_int8(stage: Stage) -> None:
    """Put integer products in the place of linears with int8 inputs and weights that have a scale a channel or one."""
    rounded: dict[ir.Node, _Codes] = {}
    for node in list(stage.graph):
        if node.domain != EW or node.op_type != "Linear":
            continue
        source, weight = made_by(node.inputs[0], "RoundInput"), made_by(node.inputs[1], "Decode")
        if source is None or weight is None or not _fits(stage, source, weight):
            continue
        if source not in rounded:
            nodes = _Nodes(stage, source.name or "")
            rounded[source] = _round(nodes, source)
            stage.graph.insert_after(source, nodes.made)
        _product(stage, node, rounded[source], weight)


def _fits(stage: Stage, source: ir.Node, weight: ir.Node) -> bool:
    codes = weight.inputs[0]
    int8 = source.attributes["format"].value == weight.attributes["format"].value == "int8"
    if not int8 or weight.attributes["scope"].value not in ("tensor", "channel"):
        return False
    scale, zero_point = (*source.inputs[1:], None, None)[:2]
    if zero_point is not None and number_of(stage, zero_point) is None:
        return False
    given = [value for value in (codes, weight.inputs[1], scale) if value is not None]
    return all(value.name in stage.producers for value in given)


class _Nodes:
    """Nodes in the making, named after a path."""

    def __init__(self, stage: Stage, path: str) -> None:
        self.stage, self._path = stage, path
        self.made: list[ir.Node] = []

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: Any) -> ir.Value:
        """Append a node; returns its output."""
        name = f"{self._path}/{op_type}_{len(self.made)}"
        self.made.append(make_node(domain, op_type, inputs, attributes, name=name))
        return self.made[-1].outputs[0]

    def number(self, value: Any, dtype: Any, name: str) -> ir.Value:
        """Return a scalar constant, shared by name."""
        return scalar_constant(self.stage, value, dtype, name)

    def raised(self, value: ir.Value, *shape: int) -> ir.Value:
        """Return int8 numbers of the weight file plus 128, as uint8."""
        unsigned = self.stage.alias(value, lambda _: shape, ir.DataType.UINT8)
        return self.add("BitwiseXor", [unsigned, self.middle])

    @property
    def middle(self) -> ir.Value:
        """128 as uint8."""
        return self.number(128, np.uint8, "uint8_128")


def _round(nodes: _Nodes, node: ir.Node) -> _Codes:
    """Add the nodes that round a `RoundInput`'s x to codes."""
    x, scale, zero_point = (*node.inputs, None, None)[:3]
    if node.attributes["static"].value:
        assert scale is not None
        step = nodes.stage.alias(scale, lambda _: ())
        shift = 0 if zero_point is None else number_of(nodes.stage, zero_point)
        middle = 128 + int(shift or 0)
        zero = nodes.number(middle, np.uint8, f"uint8_{middle}")
        return _Codes(nodes.add("QuantizeLinear", [x, step, zero]), step, zero, by_token=False)
    by_token = node.attributes["scope"].value == "token"
    axes = [int64_constant(nodes.stage, [-1], "last_axis")] if by_token else []
    # The largest size without an array of sizes.
    low = nodes.add("Neg", [nodes.add("ReduceMin", [x, *axes], keepdims=int(by_token))])
    top = nodes.add("ReduceMax", [x, *axes], keepdims=int(by_token))
    high = nodes.add("Max", [top, low, nodes.number(TINY, np.float32, "float_tiny")])
    step = nodes.add("Div", [high, nodes.number(127, np.float32, "float_127")])
    if by_token:
        return _Codes(_round_tokens(nodes, x, step), step, nodes.middle, by_token)
    return _Codes(nodes.add("QuantizeLinear", [x, step, nodes.middle]), step, nodes.middle, by_token)


def _round_tokens(nodes: _Nodes, x: ir.Value | None, step: ir.Value) -> ir.Value:
    """Return x's codes where each token has its own step.

    The kernel wants steps along one axis, so the tokens are put into one: it is 2 to 3 times as fast as division,
    rounding and conversion one after the other (1,024 numbers for each of 828 tokens: 0.7 ms instead of 1.8).
    """
    steps = nodes.add("Reshape", [step, int64_constant(nodes.stage, [-1], "last_axis")])
    middle = ir.tensor(np.array([128], np.uint8))
    middles = nodes.add("ConstantOfShape", [nodes.add("Shape", [steps])], value=middle)
    codes = nodes.add("QuantizeLinear", [nodes.add("Flatten", [x], axis=-1), steps, middles], axis=0)
    # There may be no token at all: nothing is fed behind the last layer of a chunk whose logits nobody wants.
    return nodes.add("Reshape", [codes, nodes.add("Shape", [x])], allowzero=1)


def _product(stage: Stage, node: ir.Node, x: _Codes, weight: ir.Node) -> None:
    """Put the product of codes in a linear's place."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    codes, scales = weight.inputs[:2]
    assert codes is not None
    assert scales is not None
    rows, width = (int(weight.attributes[name].value) for name in ("out_features", "in_features"))
    nodes = _Nodes(stage, node.name or "")
    matrix = nodes.add("Transpose", [nodes.raised(codes, rows, width)], perm=[1, 0])
    shape = (rows,) if weight.attributes["scope"].value == "channel" else ()
    steps = stage.alias(scales, lambda _: shape)
    # The kernel multiplies by one scale of the inputs; where each token has its own, that comes behind it.
    scale = nodes.number(1, np.float32, "float_1") if x.by_token else x.scale
    inputs = [x.codes, matrix, scale, steps, x.zero_point, nodes.middle, None if x.by_token else bias]
    y = nodes.add("MatMulIntegerToFloat", inputs, MICROSOFT)
    if x.by_token:
        y = nodes.add("Mul", [y, x.scale])
        y = y if bias is None else nodes.add("Add", [y, bias])
    replace(stage, node, nodes.made, [y])
