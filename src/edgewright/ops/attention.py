"""`Attention`: causal grouped-query attention that writes its keys and values into a cache first.

q `[batch, seq, heads * head_dim]`, k and v `[batch, seq, kv_heads * head_dim]`, caches
`[batch, kv_heads, capacity, head_dim]`, past_lengths int64 `[batch]`. Row i of sequence b is written to slot
past_lengths[b] + i and sees the slots up to its own, at most `window` of them. scores = scale * q k^T, then
`softcap * tanh(scores / softcap)` where a cap is given, then softmax. Returns y and both caches.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import HIDDEN_SCORE, Call, Op, ints, scalar


def attention(
    g: GraphBuilder,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    past_key: ir.Value,
    past_value: ir.Value,
    past_lengths: ir.Value,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Append an `Attention` node; returns y `[batch, seq, heads * head_dim]`, present_key, present_value."""
    result: tuple[ir.Value, ir.Value, ir.Value] = g.ew(
        "Attention",
        q,
        k,
        v,
        past_key,
        past_value,
        past_lengths,
        outputs=3,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale,
        window=window,
        softcap=softcap,
    )
    return result


def _body(call: Call) -> str:
    heads, kv_heads, head_dim = call["heads"], call["kv_heads"], call["head_dim"]
    window, softcap = call.attributes.get("window"), call.attributes.get("softcap")
    text = ints("q_heads", 0, 0, heads, head_dim) + ints("k_heads", 0, 0, kv_heads, head_dim)
    text += ints("grouped", 0, kv_heads, -1, head_dim) + ints("flat", 0, 0, heads * head_dim)
    text += ints("zero", 0) + ints("one", 1) + ints("two", 2) + ints("index1", 1)
    text += "i0 = Constant<value = int64 {0}>()\ni1 = Constant<value = int64 {1}>()\n"
    # cache
    text += "k4 = Reshape(k, k_heads)\nkt = Transpose<perm = [0, 2, 1, 3]>(k4)\n"
    text += "v4 = Reshape(v, k_heads)\nvt = Transpose<perm = [0, 2, 1, 3]>(v4)\n"
    text += "present_key = TensorScatter<axis = 2>(past_key, kt, past_lengths)\n"
    text += "present_value = TensorScatter<axis = 2>(past_value, vt, past_lengths)\n"
    # which slots a row sees
    text += "seq_v = Shape<start = 1, end = 2>(q)\nseq = Squeeze(seq_v, zero)\n"
    text += "cap_v = Shape<start = 2, end = 3>(past_key)\ncap = Squeeze(cap_v, zero)\n"
    text += "steps = Range(i0, seq, i1)\nslots = Range(i0, cap, i1)\n"
    text += "base = Unsqueeze(past_lengths, one)\nrow = Add(base, steps)\nrow3 = Unsqueeze(row, two)\n"
    text += "old = LessOrEqual(slots, row3)\n"
    if window:
        text += f"width = Constant<value = int64 {{{window}}}>()\n"
        text += "edge = Sub(row3, width)\nnear = Greater(slots, edge)\nseen3 = And(old, near)\n"
    else:
        text += "seen3 = Identity(old)\n"
    text += "seen = Unsqueeze(seen3, one)\n"
    # scores of every head, the heads of a group sharing their keys
    text += "q4 = Reshape(q, q_heads)\nqt = Transpose<perm = [0, 2, 1, 3]>(q4)\nqg = Reshape(qt, grouped)\n"
    text += "ktt = Transpose<perm = [0, 1, 3, 2]>(present_key)\nraw = MatMul(qg, ktt)\n"
    text += scalar("scale", call["scale"]) + "scaled_g = Mul(raw, scale)\n"
    text += "batch = Shape<start = 0, end = 1>(q)\n" + ints("n_heads", heads)
    text += "by_head = Concat<axis = 0>(batch, n_heads, seq_v, cap_v)\nscaled = Reshape(scaled_g, by_head)\n"
    if softcap:
        text += scalar("limit", softcap)
        text += "part = Div(scaled, limit)\nbent = Tanh(part)\ncapped = Mul(bent, limit)\n"
    else:
        text += "capped = Identity(scaled)\n"
    text += scalar("hidden", HIDDEN_SCORE) + "masked = Where(seen, capped, hidden)\n"
    text += "weights = Softmax<axis = -1>(masked)\n"
    text += ints("n_groups", kv_heads) + ints("rest", -1)
    text += "by_group = Concat<axis = 0>(batch, n_groups, rest, cap_v)\nwg = Reshape(weights, by_group)\n"
    text += "mixed = MatMul(wg, present_value)\n" + ints("width_v", head_dim)
    text += "out_heads = Concat<axis = 0>(batch, n_heads, seq_v, width_v)\nm4 = Reshape(mixed, out_heads)\n"
    return text + "mt = Transpose<perm = [0, 2, 1, 3]>(m4)\ny = Reshape(mt, flat)\n"


ATTENTION = Op(
    "Attention",
    ("q", "k", "v", "past_key", "past_value", "past_lengths"),
    ("y", "present_key", "present_value"),
    _body,
)
