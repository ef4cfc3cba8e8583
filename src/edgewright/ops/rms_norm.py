"""`RMSNorm`: y = x / sqrt(mean(x^2) + epsilon) * weight over the last axis, or over groups of it (per-head norms).

The weight may be missing; with `group` it is `[group]`, or `[groups, group]` for weights of their own.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints, scalar


def rms_norm(
    g: GraphBuilder, x: ir.Value, weight: ir.Value | None, *, epsilon: float, group: int | None = None
) -> ir.Value:
    """Append an `RMSNorm` node; with `group` each run of `group` elements of the last axis is normalised alone."""
    result: ir.Value = g.ew("RMSNorm", x, weight, epsilon=epsilon, group=group)
    return result


def _body(call: Call) -> str:
    group = call.attributes.get("group")
    return "".join(
        [
            scalar("eps", call["epsilon"]),
            ints("last", -1),
            (ints("grouped", 0, 0, -1, group) + "v = Reshape(x, grouped)\n") if group else "v = Identity(x)\n",
            "square = Mul(v, v)\n",
            "mean = ReduceMean<keepdims = 1>(square, last)\n",
            "shifted = Add(mean, eps)\n",
            "root = Sqrt(shifted)\n",
            "unit = Div(v, root)\n",
            "scaled = Mul(unit, weight)\n" if call.given[1:] == (True,) else "scaled = Identity(unit)\n",
            (ints("flat", 0, 0, -1) + "y = Reshape(scaled, flat)\n") if group else "y = Identity(scaled)\n",
        ]
    )


RMS_NORM = Op("RMSNorm", ("x", "weight"), ("y",), _body)
