"""`CacheRound` and `CacheRead`: keys or values as the codes of a quantized cache, and what the codes stand for.

x float32 and codes int8 or FP8 E4M3, both `[batch, kv_heads, ...]`, scale float32 `[1]`, or `[kv_heads]` for one a
head. A code is the one nearest to x / scale, ties to the even code, what is too large the largest one; read back it is
code * scale. The attribute `cache` names the dtype. The rounding is that of `CacheWrite`, the reading that of
`Attention`: here a whole cache is made at once, by one stage, and read by another.
"""

from __future__ import annotations

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.ops._body import Call, Op, ints

#: The dtypes of quantized caches, with ONNX's numbers for them.
CACHE_DTYPES = {"int8": int(ir.DataType.INT8), "float8_e4m3fn": int(ir.DataType.FLOAT8E4M3FN)}


def quantize_by_head(cache: str) -> str:
    """Spell the op that rounds to a cache's codes, its scales along the axis of the heads."""
    return f"QuantizeLinear<axis = 1, output_dtype = {CACHE_DTYPES[cache]}>"


def dequantize_by_head() -> str:
    """Spell the op that reads a cache's codes, its scales along the axis of the heads."""
    return "DequantizeLinear<axis = 1>"


def cache_round(g: GraphBuilder, x: ir.Value, scale: ir.Value, *, kv_heads: int, cache: str) -> ir.Value:
    """Append a `CacheRound` node; returns the codes, of x's shape."""
    result: ir.Value = g.ew("CacheRound", x, scale, kv_heads=kv_heads, cache=cache)
    return result


def cache_read(g: GraphBuilder, codes: ir.Value, scale: ir.Value, *, kv_heads: int) -> ir.Value:
    """Append a `CacheRead` node; returns float32 of the codes' shape."""
    result: ir.Value = g.ew("CacheRead", codes, scale, kv_heads=kv_heads)
    return result


def _scales(call: Call) -> str:
    return ints("n_heads", call["kv_heads"]) + "scales = Expand(scale, n_heads)\n"


def _round_body(call: Call) -> str:
    return _scales(call) + f"codes = {quantize_by_head(call['cache'])}(x, scales)\n"


def _read_body(call: Call) -> str:
    return _scales(call) + f"y = {dequantize_by_head()}(codes, scales)\n"


CACHE_ROUND = Op("CacheRound", ("x", "scale"), ("codes",), _round_body)
CACHE_READ = Op("CacheRead", ("codes", "scale"), ("y",), _read_body)
