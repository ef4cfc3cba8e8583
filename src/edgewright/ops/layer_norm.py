"""`LayerNorm`: y = (x - mean) / sqrt(var + epsilon) * weight + bias over the last axis, or over groups of it.

Weight and bias may be missing. With `group` each run of `group` elements is normalised alone; the weight is then
`[group]`, or `[groups, group]` for weights of their own.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints, scalar


def layer_norm(
    g: GraphBuilder,
    x: ir.Value,
    weight: ir.Value | None = None,
    bias: ir.Value | None = None,
    *,
    epsilon: float,
    group: int | None = None,
) -> ir.Value:
    """Append a `LayerNorm` node; returns x's shape."""
    result: ir.Value = g.ew("LayerNorm", x, weight, bias, epsilon=epsilon, group=group)
    return result


def _body(call: Call) -> str:
    group = call.attributes.get("group")
    given = (*call.given, False, False)
    text = scalar("eps", call["epsilon"]) + ints("last", -1)
    text += (ints("grouped", 0, 0, -1, group) + "v = Reshape(x, grouped)\n") if group else "v = Identity(x)\n"
    text += "mean = ReduceMean<keepdims = 1>(v, last)\ncentred = Sub(v, mean)\nsquare = Mul(centred, centred)\n"
    text += "var = ReduceMean<keepdims = 1>(square, last)\nshifted = Add(var, eps)\nroot = Sqrt(shifted)\n"
    text += "unit = Div(centred, root)\n"
    text += "scaled = Mul(unit, weight)\n" if given[1] else "scaled = Identity(unit)\n"
    text += "moved = Add(scaled, bias)\n" if given[2] else "moved = Identity(scaled)\n"
    return text + (ints("flat", 0, 0, -1) + "y = Reshape(moved, flat)\n" if group else "y = Identity(moved)\n")


LAYER_NORM = Op("LayerNorm", ("x", "weight", "bias"), ("y",), _body)
