"""`MixedAttention`: attention without order, among keys that are given as a prefix's and keys that are given as rows.

q `[batch, seq, heads * head_dim]`. The keys and values are those of a prefix, `prefix_key` and `prefix_value`
`[batch, kv_heads, prefix, head_dim]`, then k and v `[batch, rows, kv_heads * head_dim]`; either pair may be missing.
With `keys_transposed` prefix_key is `[batch, kv_heads, head_dim, prefix]`. scores = scale * q k^T, then softmax
over the keys that `mask`, of int64 0 and 1, lets a row see: `[batch, keys]`, or `[batch, seq, keys]` with `by_row`;
without a mask every row sees every key. Query head h reads key head h * kv_heads // heads. The query heads of one key
head stand as rows of one product. Returns y `[batch, seq, heads * head_dim]`.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import HIDDEN_SCORE, Call, Op, ints, scalar


def mixed_attention(
    g: GraphBuilder,
    q: ir.Value,
    k: ir.Value | None,
    v: ir.Value | None,
    prefix_key: ir.Value | None,
    prefix_value: ir.Value | None,
    mask: ir.Value | None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    keys_transposed: bool = False,
    by_row: bool = False,
) -> ir.Value:
    """Append a `MixedAttention` node; returns q's shape."""
    assert (k is None) == (v is None)
    assert (prefix_key is None) == (prefix_value is None)
    assert k is not None or prefix_key is not None
    result: ir.Value = g.ew(
        "MixedAttention",
        q,
        k,
        v,
        prefix_key,
        prefix_value,
        mask,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale,
        keys_transposed=int(keys_transposed),
        by_row=int(by_row),
    )
    return result


def _body(call: Call) -> str:
    heads, kv_heads, head_dim = call["heads"], call["kv_heads"], call["head_dim"]
    own, prefix, masked = (*call.given, False, False, False, False)[1:6:2]
    group = heads // kv_heads
    text = ints("q_parts", 0, 0, kv_heads, group, head_dim) + ints("rows", 0, 0, -1, head_dim)
    text += ints("flat", 0, 0, heads * head_dim) + ints("same", 0, 0)
    text += ints("group", group) + ints("width", head_dim) + "seq = Shape<start = 1, end = 2>(q)\n"
    text += _keys(own, prefix, kv_heads, head_dim, transposed=bool(call["keys_transposed"]))
    # The rows of all query heads of a key head, one below the other.
    text += "q5 = Reshape(q, q_parts)\nqt = Transpose<perm = [0, 2, 1, 3, 4]>(q5)\nqr = Reshape(qt, rows)\n"
    text += "raw = MatMul(qr, keys)\n" + scalar("scale", call["scale"]) + "scaled = Mul(raw, scale)\n"
    if masked:
        text += ints("rest", -1) + "count = Shape<start = 2, end = 3>(values)\n"
        text += "apart = Concat<axis = 0>(same, seq, group, rest)\ns5 = Reshape(scaled, apart)\n"
        text += ints("axes", *((1, 3) if call["by_row"] else (1, 2, 3)))
        text += "bits = Cast<to = 9>(mask)\nseen = Unsqueeze(bits, axes)\n"
        text += scalar("hidden", HIDDEN_SCORE) + "bare = Where(seen, s5, hidden)\nw5 = Softmax<axis = -1>(bare)\n"
        text += "together = Concat<axis = 0>(same, rest, count)\nweights = Reshape(w5, together)\n"
    else:
        text += "weights = Softmax<axis = -1>(scaled)\n"
    text += "mixed = MatMul(weights, values)\nby_head = Concat<axis = 0>(same, seq, group, width)\n"
    return text + "m5 = Reshape(mixed, by_head)\nmt = Transpose<perm = [0, 2, 1, 3, 4]>(m5)\ny = Reshape(mt, flat)\n"


def _keys(own: bool, prefix: bool, kv_heads: int, head_dim: int, *, transposed: bool) -> str:
    """Statements that define `keys` `[batch, kv_heads, head_dim, keys]` and `values`."""
    text = ""
    if own:
        text += ints("kv_parts", 0, 0, kv_heads, head_dim) + "k4 = Reshape(k, kv_parts)\nv4 = Reshape(v, kv_parts)\n"
        text += "own_key = Transpose<perm = [0, 2, 3, 1]>(k4)\nown_value = Transpose<perm = [0, 2, 1, 3]>(v4)\n"
    if prefix:
        turned = "Identity" if transposed else "Transpose<perm = [0, 1, 3, 2]>"
        text += f"given_key = {turned}(prefix_key)\n"
    if own and prefix:
        text += "keys = Concat<axis = 3>(given_key, own_key)\nvalues = Concat<axis = 2>(prefix_value, own_value)\n"
    elif own:
        text += "keys = Identity(own_key)\nvalues = Identity(own_value)\n"
    else:
        text += "keys = Identity(given_key)\nvalues = Identity(prefix_value)\n"
    return text


MIXED_ATTENTION = Op(
    "MixedAttention",
    ("q", "k", "v", "prefix_key", "prefix_value", "mask"),
    ("y",),
    _body,
)
