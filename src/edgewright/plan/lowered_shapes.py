"""The shapes of the results of ONNX Runtime's own ops, and of standard ones that only lowered graphs have."""

from __future__ import annotations

import math

import numpy as np

from edgewright.plan.shapes import STANDARD, Fact, Rule, View, broadcast

_MICROSOFT = "com.microsoft"


def _same(view: View) -> list[Fact]:
    return [Fact(view.shape(0)) for _ in view.node.outputs]


def _bits(view: View) -> list[Fact]:
    return [Fact((*view.shape(0)[:-1], view.attribute("N")))]


def _fused(view: View) -> list[Fact]:
    a, b = view.shape(0), view.shape(1)
    if view.attribute("transA", 0):
        a = (*a[:-2], a[-1], a[-2])
    if view.attribute("transB", 0):
        b = (*b[:-2], b[-1], b[-2])
    return [Fact((*broadcast(a[:-2], b[:-2]), a[-2], b[-1]))]


def _rows(view: View) -> list[Fact]:
    data, ids = view.shape(0), view.shape(1)
    codes = view.node.inputs[0]
    packed = (
        8 // view.attribute("bits", 4)
        if codes is not None and codes.dtype is not None and codes.dtype.name == "UINT8"
        else 1
    )
    return [Fact((*ids, *data[1:-1], data[-1] * packed))]


def _grouped(view: View) -> list[Fact]:
    batch, seq, _ = view.shape(0)
    past = [Fact(view.shape(3)), Fact(view.shape(4))]
    return [Fact((batch, seq, view.attribute("num_heads") * view.shape(3)[3])), *past]


def _skip(view: View) -> list[Fact]:
    return [Fact(view.shape(0))] * 4


def _attention(view: View) -> list[Fact]:
    q, v = view.shape(0), view.shape(2)
    if len(q) == 4:
        return [Fact((*q[:3], v[3]))]
    return [Fact((*q[:2], view.attribute("q_num_heads") * v[2] // view.attribute("kv_num_heads")))]


def _linear_attention(view: View) -> list[Fact]:
    return [Fact(view.shape(2)), Fact(view.shape(3))]


def _flatten(view: View) -> list[Fact]:
    shape, axis = view.shape(0), view.attribute("axis", 1)
    return [Fact((math.prod(shape[:axis]), math.prod(shape[axis:])))]


def _tile(view: View) -> list[Fact]:
    return [Fact(tuple(d * n for d, n in zip(view.shape(0), view.ints(1), strict=True)))]


def _pad(view: View) -> list[Fact]:
    shape, pads = view.shape(0), view.ints(1)
    axes = view.ints(3) if view.given(3) else list(range(len(shape)))
    result = list(shape)
    for place, axis in enumerate(axes):
        result[axis] += pads[place] + pads[place + len(axes)]
    return [Fact(tuple(result))]


def _size(view: View) -> list[Fact]:
    return [Fact((), np.array(math.prod(view.shape(0)), np.int64))]


def _mod(view: View) -> list[Fact]:
    a, b = view.fact(0), view.fact(1)
    known = a.ints is not None and b.ints is not None
    return [Fact(broadcast(a.shape, b.shape), np.mod(a.ints, b.ints) if known else None)]  # type: ignore[arg-type]


#: Rules by domain and op.
LOWERED: dict[tuple[str, str], Rule] = {
    **{
        (_MICROSOFT, name): _same
        for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization")
    },
    **{
        ("", name): _same
        for name in ("DequantizeLinear", "QuantizeLinear", "SimplifiedLayerNormalization", "Trilu")
    },
    (_MICROSOFT, "FusedMatMul"): _fused,
    (_MICROSOFT, "GatherBlockQuantized"): _rows,
    (_MICROSOFT, "GroupQueryAttention"): _grouped,
    (_MICROSOFT, "LinearAttention"): _linear_attention,
    (_MICROSOFT, "MatMulIntegerToFloat"): STANDARD["MatMul"],
    (_MICROSOFT, "MatMulNBits"): _bits,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip,
    ("", "Attention"): _attention,
    ("", "BitwiseAnd"): STANDARD["And"],
    ("", "BitwiseXor"): STANDARD["And"],
    ("", "Flatten"): _flatten,
    ("", "MatMulInteger"): STANDARD["MatMul"],
    ("", "Mod"): _mod,
    ("", "Pad"): _pad,
    ("", "ReduceMin"): STANDARD["ReduceMax"],
    ("", "Size"): _size,
    ("", "Tile"): _tile,
}  # fmt: skip
