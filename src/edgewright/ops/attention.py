"""`Attention`: causal grouped-query attention that writes its keys and values into a cache first.

q `[batch, seq, heads * head_dim]`, k `[batch, seq, kv_heads * head_dim]`, v `[batch, seq, kv_heads * value_dim]`,
caches `[batch, kv_heads, capacity, head_dim]` and `[..., value_dim]`, past_lengths int64 `[batch]`. Row i of sequence b
is written to slot past_lengths[b] + i and sees the slots up to its own, at most `window` of them. scores = scale *
q k^T, then `softcap * tanh(scores / softcap)` where a cap is given, plus `bias[head, slot]` where a table
`[heads, slots]` is given, then softmax over the slots and, where `sinks` `[heads]` are given, one more score that takes
its share and has no value. Without k and v nothing is written: the caches are those of a layer that wrote already, or,
with float32 `k_scale` and `v_scale` `[1]` or `[kv_heads]`, the codes that a `CacheWrite` wrote: key = code * scale.
Returns y `[batch, seq, heads * value_dim]` and both caches; a node that writes nothing may leave them out.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import HIDDEN_SCORE, Call, Op, ints, scalar
from edgewright.ops.cache_codes import dequantize_by_head


def attention(
    g: GraphBuilder,
    q: ir.Value,
    k: ir.Value | None,
    v: ir.Value | None,
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
    value_dim: int | None = None,
    sinks: ir.Value | None = None,
    bias: ir.Value | None = None,
    k_scale: ir.Value | None = None,
    v_scale: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Append an `Attention` node; returns y, present_key, present_value."""
    result: tuple[ir.Value, ir.Value, ir.Value] = g.ew(
        "Attention",
        q,
        k,
        v,
        past_key,
        past_value,
        past_lengths,
        sinks,
        bias,
        k_scale,
        v_scale,
        outputs=3,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale,
        window=window,
        softcap=softcap,
        value_dim=head_dim if value_dim is None else value_dim,
    )
    return result


def _body(call: Call) -> str:
    heads, kv_heads, head_dim = call["heads"], call["kv_heads"], call["head_dim"]
    window, softcap, value_dim = call.attributes.get("window"), call.attributes.get("softcap"), call["value_dim"]
    given = (*call.given, False, False, False, False)
    text = ints("q_heads", 0, 0, heads, head_dim) + ints("k_heads", 0, 0, kv_heads, head_dim)
    text += ints("grouped", 0, kv_heads, -1, head_dim) + ints("flat", 0, 0, heads * value_dim)
    text += ints("zero", 0) + ints("one", 1) + ints("two", 2) + ints("index1", 1)
    text += "i0 = Constant<value = int64 {0}>()\ni1 = Constant<value = int64 {1}>()\n"
    # cache
    if given[1]:
        text += ints("v_heads", 0, 0, kv_heads, value_dim)
        text += "k4 = Reshape(k, k_heads)\nkt = Transpose<perm = [0, 2, 1, 3]>(k4)\n"
        text += "v4 = Reshape(v, v_heads)\nvt = Transpose<perm = [0, 2, 1, 3]>(v4)\n"
        text += "present_key = TensorScatter<axis = 2>(past_key, kt, past_lengths)\n"
        text += "present_value = TensorScatter<axis = 2>(past_value, vt, past_lengths)\n"
    else:
        text += "present_key = Identity(past_key)\npresent_value = Identity(past_value)\n"
    keys, values = "present_key", "present_value"
    if given[8]:
        keys, values = "keys", "values"
        text += ints("scales", kv_heads) + "k_s = Expand(k_scale, scales)\nv_s = Expand(v_scale, scales)\n"
        text += f"keys = {dequantize_by_head()}(present_key, k_s)\n"
        text += f"values = {dequantize_by_head()}(present_value, v_s)\n"
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
    text += f"ktt = Transpose<perm = [0, 1, 3, 2]>({keys})\nraw = MatMul(qg, ktt)\n"
    text += scalar("scale", call["scale"]) + "scaled_g = Mul(raw, scale)\n"
    text += "batch = Shape<start = 0, end = 1>(q)\n" + ints("n_heads", heads)
    text += "by_head = Concat<axis = 0>(batch, n_heads, seq_v, cap_v)\nscaled = Reshape(scaled_g, by_head)\n"
    if softcap:
        text += scalar("limit", softcap)
        text += "part = Div(scaled, limit)\nbent = Tanh(part)\ncapped = Mul(bent, limit)\n"
    else:
        text += "capped = Identity(scaled)\n"
    if given[7]:
        text += ints("bias_axis", 1) + "near_bias = Slice(bias, zero, cap_v, bias_axis)\n"
        text += ints("bias_shape", 1, heads, 1, -1) + "bias4 = Reshape(near_bias, bias_shape)\n"
        text += "biased = Add(capped, bias4)\n"
    else:
        text += "biased = Identity(capped)\n"
    text += scalar("hidden", HIDDEN_SCORE) + "masked = Where(seen, biased, hidden)\n"
    if given[6]:
        text += ints("sink_shape", 1, heads, 1, 1) + ints("one_wide", 1) + ints("last", -1) + ints("start", 0)
        text += "sink4 = Reshape(sinks, sink_shape)\nby_row = Concat<axis = 0>(batch, n_heads, seq_v, one_wide)\n"
        text += "sink_col = Expand(sink4, by_row)\nwith_sink = Concat<axis = -1>(masked, sink_col)\n"
        text += "shares = Softmax<axis = -1>(with_sink)\nweights = Slice(shares, start, cap_v, last)\n"
    else:
        text += "weights = Softmax<axis = -1>(masked)\n"
    text += ints("n_groups", kv_heads) + ints("rest", -1)
    text += "by_group = Concat<axis = 0>(batch, n_groups, rest, cap_v)\nwg = Reshape(weights, by_group)\n"
    text += f"mixed = MatMul(wg, {values})\n" + ints("width_v", value_dim)
    text += "out_heads = Concat<axis = 0>(batch, n_heads, seq_v, width_v)\nm4 = Reshape(mixed, out_heads)\n"
    return text + "mt = Transpose<perm = [0, 2, 1, 3]>(m4)\ny = Reshape(mt, flat)\n"


ATTENTION = Op(
    "Attention",
    ("q", "k", "v", "past_key", "past_value", "past_lengths", "sinks", "bias", "k_scale", "v_scale"),
    ("y", "present_key", "present_value"),
    _body,
)
