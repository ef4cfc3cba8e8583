"""`CacheWrite`: new keys and values rounded to the codes of a quantized cache, and written into it.

k `[batch, seq, kv_heads * head_dim]`, v `[batch, seq, kv_heads * value_dim]`, caches int8 or FP8 E4M3
`[batch, kv_heads, capacity, head_dim]` and `[..., value_dim]`, past_lengths int64 `[batch]`, float32 scales `[1]`, or
`[kv_heads]` for one a head. Row i of sequence b goes to slot past_lengths[b] + i as the code nearest to value / scale,
ties to the even code, what is too large to the largest one. The attribute `cache` names the dtype. Returns both caches;
`Attention` reads them, so that a token sees the rounded keys and values of its own call, too.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints
from edgewright.ops.cache_codes import dequantize_by_head, quantize_by_head


def cache_write(
    g: GraphBuilder,
    k: ir.Value,
    v: ir.Value,
    past_key: ir.Value,
    past_value: ir.Value,
    past_lengths: ir.Value,
    k_scale: ir.Value,
    v_scale: ir.Value,
    *,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    cache: str,
) -> tuple[ir.Value, ir.Value]:
    """Append a `CacheWrite` node; returns present_key, present_value."""
    result: tuple[ir.Value, ir.Value] = g.ew(
        "CacheWrite",
        k,
        v,
        past_key,
        past_value,
        past_lengths,
        k_scale,
        v_scale,
        outputs=2,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        cache=cache,
    )
    return result


def _body(call: Call) -> str:
    cache = call["cache"]
    text = ints("n_heads", call["kv_heads"])
    for name, width in (("key", call["head_dim"]), ("value", call["value_dim"])):
        text += ints(f"{name}_heads", 0, 0, call["kv_heads"], width)
        text += f"{name}_4 = Reshape({name[0]}, {name}_heads)\n{name}_t = Transpose<perm = [0, 2, 1, 3]>({name}_4)\n"
        text += f"{name}_s = Expand({name[0]}_scale, n_heads)\n"
        rounded, read = quantize_by_head(cache), dequantize_by_head()
        text += f"{name}_q = {rounded}({name}_t, {name}_s)\n"
        if cache == "int8":
            text += f"present_{name} = TensorScatter<axis = 2>(past_{name}, {name}_q, past_lengths)\n"
            continue
        # ONNX Runtime moves no FP8: floats are scattered. Rounding them again gives every code that was there before.
        text += f"{name}_new = {read}({name}_q, {name}_s)\n"
        text += f"{name}_old = {read}(past_{name}, {name}_s)\n"
        text += f"{name}_all = TensorScatter<axis = 2>({name}_old, {name}_new, past_lengths)\n"
        text += f"present_{name} = {rounded}({name}_all, {name}_s)\n"
    return text


CACHE_WRITE = Op(
    "CacheWrite",
    ("k", "v", "past_key", "past_value", "past_lengths", "k_scale", "v_scale"),
    ("present_key", "present_value"),
    _body,
)
