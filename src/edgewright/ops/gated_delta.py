"""`GatedDelta`: linear attention whose state fades and is corrected by the delta rule (gated DeltaNet).

q and k `[batch, seq, key_heads * key_dim]` (k of unit length, q scaled), v `[batch, seq, heads * value_dim]`, decay
(a logarithm, at most 0) and beta `[batch, seq, heads]`, past `[batch, heads, key_dim, value_dim]`; head h uses the
key head h // (heads / key_heads). S = exp(decay[t]) S; S += k[t] (beta[t] (v[t] - S^T k[t]))^T; y[t] = S^T q[t].
Returns y, shaped like v, and the last S.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints


def gated_delta(
    g: GraphBuilder,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    decay: ir.Value,
    beta: ir.Value,
    past: ir.Value,
    *,
    key_heads: int,
    heads: int,
    key_dim: int,
    value_dim: int,
) -> tuple[ir.Value, ir.Value]:
    """Append a `GatedDelta` node; returns y `[batch, seq, heads * value_dim]` and the new past."""
    result: tuple[ir.Value, ir.Value] = g.ew(
        "GatedDelta",
        *(q, k, v, decay, beta, past),
        outputs=2,
        key_heads=key_heads,
        heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )
    return result


def _body(call: Call) -> str:
    key_heads, heads, key_dim, value_dim = call["key_heads"], call["heads"], call["key_dim"], call["value_dim"]
    share = heads // key_heads
    # Rows come first, as Scan takes them; heads are split into [key_heads, share], so that queries and keys broadcast.
    text = ints("states", 0, key_heads, share, key_dim, value_dim) + "s0 = Reshape(past, states)\nfade = Exp(decay)\n"
    shapes = {
        "q": (key_heads, 1, 1, key_dim),
        "k": (key_heads, 1, 1, key_dim),
        "v": (key_heads, share, 1, value_dim),
        "fade": (key_heads, share, 1, 1),
        "beta": (key_heads, share, 1, 1),
    }
    for name, shape in shapes.items():
        text += f"{name}_first = Transpose<perm = [1, 0, 2]>({name})\n" + ints(f"{name}_shape", 0, 0, *shape)
        text += f"{name}s = Reshape({name}_first, {name}_shape)\n"
    text += ints("column", 0, 0, key_heads, 1, key_dim, 1) + "k_cols = Reshape(k_first, column)\n"
    # Token by token: the closed form inverts a triangular matrix of the sequence's length.
    text += (
        "s, ys = Scan<num_scan_inputs = 6, "
        "body = token (float[] s_in, float[] q_t, float[] k_t, float[] k_col, float[] v_t, float[] fade_t, "
        "float[] beta_t) => (float[] s_out, float[] y_t) {\n"
        "faded = Mul(s_in, fade_t)\nheld = MatMul(k_t, faded)\nmissing = Sub(v_t, held)\n"
        "delta = Mul(missing, beta_t)\nadded = Mul(k_col, delta)\ns_out = Add(faded, added)\n"
        "y_t = MatMul(q_t, s_out)\n}>(s0, qs, ks, k_cols, vs, fades, betas)\n"
    )
    text += "y_rows = Transpose<perm = [1, 0, 2, 3, 4, 5]>(ys)\n" + ints("flat", 0, 0, heads * value_dim)
    text += ints("past_shape", 0, heads, key_dim, value_dim)
    return text + "y = Reshape(y_rows, flat)\npresent = Reshape(s, past_shape)\n"


GATED_DELTA = Op("GatedDelta", ("q", "k", "v", "decay", "beta", "past"), ("y", "present"), _body)
