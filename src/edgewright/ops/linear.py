"""`Linear`: y = x W^T + b, with x `[..., in]`, W `[out, in]`, b `[out]`."""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op


def linear(g: GraphBuilder, x: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    """Append a `Linear` node; returns y `[..., out]`."""
    result: ir.Value = g.ew("Linear", x, weight, bias)
    return result


def _body(call: Call) -> str:
    return "wt = Transpose<perm = [1, 0]>(weight)\n" + (
        "xw = MatMul(x, wt)\ny = Add(xw, bias)\n" if call.given[2:] == (True,) else "y = MatMul(x, wt)\n"
    )


LINEAR = Op("Linear", ("x", "weight", "bias"), ("y",), _body)
