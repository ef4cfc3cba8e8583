"""`Experts`: y = sum over the experts e of routing_e * down_e(act(gate_e x) * up_e x), or of down_e(act(up_e x)).

x `[batch, seq, hidden]`, routing `[batch, seq, experts]`: the weight of every expert, none negative, and zero but for
at most `top_k` a token. The experts' matrices stand one after the other in two dimensions, so that they are quantized
like any matrix: gate and up `[experts * inner, hidden]`, down `[experts * hidden, inner]`; biases are flat. Without a
gate the activation is that of up. `activation` is a value of ACTIVATIONS, or `swiglu_clamped`: gate is cut to at most
`limit` and up to +-limit, then it is gate * sigmoid(alpha * gate) * (up + 1).
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints, scalar
from edgewright.ops.activation import activation_text

#: Places of the three weights among the inputs, and of their biases.
EXPERT_WEIGHTS, EXPERT_BIASES = (2, 3, 4), (5, 6, 7)


def experts(
    g: GraphBuilder,
    x: ir.Value,
    routing: ir.Value,
    gate: ir.Value | None,
    up: ir.Value,
    down: ir.Value,
    *,
    experts: int,
    top_k: int,
    activation: str,
    gate_bias: ir.Value | None = None,
    up_bias: ir.Value | None = None,
    down_bias: ir.Value | None = None,
    limit: float | None = None,
    alpha: float | None = None,
) -> ir.Value:
    """Append an `Experts` node; `limit` and `alpha` belong to `swiglu_clamped`. Returns x's shape."""
    assert (activation == "swiglu_clamped") == (limit is not None) == (alpha is not None), (activation, limit, alpha)
    assert gate is not None or activation != "swiglu_clamped"
    result: ir.Value = g.ew(
        "Experts",
        x,
        routing,
        gate,
        up,
        down,
        gate_bias,
        up_bias,
        down_bias,
        experts=experts,
        top_k=top_k,
        activation=activation,
        limit=limit,
        alpha=alpha,
    )
    return result


def clamped_text(limit: float, alpha: float) -> str:
    """Statements that define `mixed` from `g` and `u` for `swiglu_clamped`."""
    text = scalar("high", limit) + scalar("low", -limit) + scalar("alpha", alpha) + scalar("unit", 1.0)
    text += "gc = Min(g, high)\nuc = Clip(u, low, high)\ngs = Mul(gc, alpha)\nsg = Sigmoid(gs)\n"
    return text + "glu = Mul(gc, sg)\nu1 = Add(uc, unit)\nmixed = Mul(glu, u1)\n"


def _body(call: Call) -> str:
    given = (*call.given, *[False] * len(EXPERT_BIASES))
    experts = call["experts"]

    def product(name: str, place: int, result: str) -> str:
        text = f"{name}_t = Transpose<perm = [1, 0]>({name})\n"
        if not given[place + 3]:
            return text + f"{result} = MatMul(x, {name}_t)\n"
        return text + f"{result}_p = MatMul(x, {name}_t)\n{result} = Add({result}_p, {name}_bias)\n"

    text = product("up", 3, "u")
    if given[2]:
        text += product("gate", 2, "g")
        if call["activation"] == "swiglu_clamped":
            text += clamped_text(call["limit"], call["alpha"])
        else:
            text += activation_text(call["activation"], "g", "act") + "mixed = Mul(act, u)\n"
    else:
        text += activation_text(call["activation"], "u", "mixed")
    # [batch, seq, experts * inner] -> [batch, experts, seq, inner], times the routing
    text += ints("n", experts) + ints("same", 0, 0) + ints("rest", -1) + ints("last", -1)
    text += "inner = Shape<start = 1, end = 2>(down)\nhidden = Shape<start = 2, end = 3>(x)\n"
    text += "by_expert = Concat<axis = 0>(same, n, inner)\nm4 = Reshape(mixed, by_expert)\n"
    text += "r4 = Unsqueeze(routing, last)\nweighted = Mul(m4, r4)\nwt = Transpose<perm = [0, 2, 1, 3]>(weighted)\n"
    text += "stacked = Concat<axis = 0>(n, hidden, inner)\nd3 = Reshape(down, stacked)\n"
    text += "dt = Transpose<perm = [0, 2, 1]>(d3)\nparts = MatMul(wt, dt)\n" + ints("axis1", 1)
    if not given[7]:
        return text + "y = ReduceSum<keepdims = 0>(parts, axis1)\n"
    text += "total = ReduceSum<keepdims = 0>(parts, axis1)\nflat = Concat<axis = 0>(n, hidden)\n"
    text += "b2 = Reshape(down_bias, flat)\nshare = MatMul(routing, b2)\n"
    return text + "y = Add(total, share)\n"


EXPERTS = Op("Experts", ("x", "routing", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"), ("y",), _body)
