"""`Rope`: rotary position embedding of x `[batch, seq, heads * head_dim]` by rows of cos/sin tables.

Tables are `[positions, rotary_dim / 2]`. The first `rotary_dim` elements of a head are rotated, as two halves or,
with `interleaved`, as neighbouring pairs; the rest passes through.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints


def rope(
    g: GraphBuilder,
    x: ir.Value,
    positions: ir.Value,
    cos: ir.Value,
    sin: ir.Value,
    *,
    head_dim: int,
    rotary_dim: int,
    interleaved: bool = False,
) -> ir.Value:
    """Append a `Rope` node; `positions` is int64 `[batch, seq]`; returns x's shape."""
    result: ir.Value = g.ew(
        "Rope", x, positions, cos, sin, head_dim=head_dim, rotary_dim=rotary_dim, interleaved=int(interleaved)
    )
    return result


def _body(call: Call) -> str:
    head_dim, rotary = call["head_dim"], call["rotary_dim"]
    half = rotary // 2
    text = ints("heads", 0, 0, -1, head_dim) + ints("flat", 0, 0, -1) + ints("two", 2)
    text += "v = Reshape(x, heads)\n"
    text += "c3 = Gather<axis = 0>(cos, positions)\nc = Unsqueeze(c3, two)\n"
    text += "s3 = Gather<axis = 0>(sin, positions)\ns = Unsqueeze(s3, two)\n"
    if head_dim > rotary:
        text += ints("parts", rotary, head_dim - rotary) + "r, rest = Split<axis = -1>(v, parts)\n"
    else:
        text += "r = Identity(v)\n"
    if call["interleaved"]:
        text += ints("pairs", 0, 0, -1, half, 2) + ints("one", 1) + ints("last", -1)
        text += "p = Reshape(r, pairs)\na5, b5 = Split<axis = -1, num_outputs = 2>(p)\n"
        text += "a = Squeeze(a5, last)\nb = Squeeze(b5, last)\n"
    else:
        text += "a, b = Split<axis = -1, num_outputs = 2>(r)\n"
    text += "ac = Mul(a, c)\nbs = Mul(b, s)\nfirst = Sub(ac, bs)\n"
    text += "bc = Mul(b, c)\nas = Mul(a, s)\nsecond = Add(bc, as)\n"
    if call["interleaved"]:
        text += ints("whole", 0, 0, -1, rotary)
        text += "f5 = Unsqueeze(first, last)\ns5 = Unsqueeze(second, last)\n"
        text += "j = Concat<axis = -1>(f5, s5)\nturned = Reshape(j, whole)\n"
    else:
        text += "turned = Concat<axis = -1>(first, second)\n"
    text += "all = Concat<axis = -1>(turned, rest)\n" if head_dim > rotary else "all = Identity(turned)\n"
    return text + "y = Reshape(all, flat)\n"


ROPE = Op("Rope", ("x", "positions", "cos", "sin"), ("y",), _body)
