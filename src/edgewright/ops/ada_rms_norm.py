"""`AdaRMSNorm`: y = x / sqrt(mean(x^2) + epsilon) * scale + shift over the last axis, both made by the graph.

x `[batch, seq, width]`, scale and shift `[batch, 1, width]` or `[batch, seq, width]`. What modulates by an offset from
one adds that one to scale outside, where it depends on the condition alone and not on x.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints, scalar


def ada_rms_norm(g: GraphBuilder, x: ir.Value, scale: ir.Value, shift: ir.Value, *, epsilon: float) -> ir.Value:
    """Append an `AdaRMSNorm` node; returns x's shape."""
    result: ir.Value = g.ew("AdaRMSNorm", x, scale, shift, epsilon=epsilon)
    return result


def _body(call: Call) -> str:
    text = scalar("eps", call["epsilon"]) + ints("last", -1)
    text += "square = Mul(x, x)\nmean = ReduceMean<keepdims = 1>(square, last)\nshifted = Add(mean, eps)\n"
    return text + "root = Sqrt(shifted)\nunit = Div(x, root)\nscaled = Mul(unit, scale)\ny = Add(scaled, shift)\n"


ADA_RMS_NORM = Op("AdaRMSNorm", ("x", "scale", "shift"), ("y",), _body)
