"""`CausalConv`: a depthwise convolution over the sequence that sees only the past, and carries its last inputs.

x `[batch, seq, channels]`, weight `[channels, 1, kernel]`, bias `[channels]` or none, past `[batch, channels,
kernel - 1]` with the oldest input first, zeros before the first token. y[t] = act(bias + sum_j weight[j] *
x[t - kernel + 1 + j]), act being SiLU or nothing. Returns y `[batch, seq, channels]` and the new past.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints


def causal_conv(
    g: GraphBuilder,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    past: ir.Value,
    *,
    activation: str | None,
) -> tuple[ir.Value, ir.Value]:
    """Append a `CausalConv` node; `activation` is "silu" or None. Returns y and the new past."""
    assert activation in ("silu", None)
    assert weight.shape is not None
    kernel = weight.shape[2]
    assert isinstance(kernel, int)
    result: tuple[ir.Value, ir.Value] = g.ew(
        "CausalConv", x, weight, bias, past, outputs=2, kernel=kernel, activation=activation
    )
    return result


def _body(call: Call) -> str:
    kernel = call["kernel"]
    taps = [f"w{j}" for j in range(kernel)]
    # Tap by tap, in one order: every row is computed the same way wherever the sequence is cut.
    text = "past_rows = Transpose<perm = [0, 2, 1]>(past)\nrows = Concat<axis = 1>(past_rows, x)\n"
    text += "weight_rows = Transpose<perm = [2, 1, 0]>(weight)\n" + ints("ones", *[1] * kernel)
    text += f"{', '.join(taps)} = Split<axis = 0>(weight_rows, ones)\n"
    text += ints("axis1", 1) + "seq = Shape<start = 1, end = 2>(x)\n"
    for j, tap in enumerate(taps):
        text += ints(f"from{j}", j) + f"to{j} = Add(seq, from{j})\n"
        text += f"x{j} = Slice(rows, from{j}, to{j}, axis1)\np{j} = Mul(x{j}, {tap})\n"
        text += f"s{j} = Add(s{j - 1}, p{j})\n" if j else "s0 = Identity(p0)\n"
    text += f"sum = {'Add' if call.given[2] else 'Identity'}(s{kernel - 1}{', bias' if call.given[2] else ''})\n"
    text += "gate = Sigmoid(sum)\ny = Mul(sum, gate)\n" if call.attributes.get("activation") else "y = Identity(sum)\n"
    text += "total = Shape<start = 1, end = 2>(rows)\nlast = Slice(rows, seq, total, axis1)\n"
    return text + "present = Transpose<perm = [0, 2, 1]>(last)\n"


CAUSAL_CONV = Op("CausalConv", ("x", "weight", "bias", "past"), ("y", "present"), _body)
