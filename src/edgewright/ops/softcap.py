"""`Softcap`: y = cap * tanh(x / cap)."""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, scalar


def softcap(g: GraphBuilder, x: ir.Value, *, cap: float) -> ir.Value:
    """Append a `Softcap` node."""
    result: ir.Value = g.ew("Softcap", x, cap=cap)
    return result


def _body(call: Call) -> str:
    return scalar("limit", call["cap"]) + "part = Div(x, limit)\nbent = Tanh(part)\ny = Mul(bent, limit)\n"


SOFTCAP = Op("Softcap", ("x",), ("y",), _body)
