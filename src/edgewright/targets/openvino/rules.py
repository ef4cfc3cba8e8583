"""OpenVINO's own nodes for the ops that the openvino dialect keeps: what its reader calls for each of them.

Attention is `ScaledDotProductAttention` over states that grow by the call's new keys and values, products of quantized
weights are MatMul over a constant of the stored codes with the arithmetic that OpenVINO knows as its compression.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.frontend import NodeContext
from openvino.frontend.onnx import ConversionExtension

from edgewright.graph.builder import EW
from edgewright.targets.openvino.compressed import Compressed
from edgewright.targets.openvino.nodes import (
    FP8_LARGEST,
    Out,
    attention_in_steps,
    ints,
    masked,
    number,
    per_head,
    rounded_to_fp8,
    scalar,
    shared,
    split,
    turned_halves,
    turned_pairs,
)
from edgewright.targets.openvino.rounded import Rounded


@dataclass(frozen=True)
class Cache:
    """A cache of keys or of values: its state's name, all of its rows, and those of the call."""

    name: str
    rows: Out
    new: Out


@dataclass
class Rules:
    """The rules for one graph; what they collect belongs to the model that is read with them."""

    caches: list[Cache] = field(default_factory=list)
    sinks: list[ov.Node] = field(default_factory=list)
    #: Stands for the input that a state's rows are picked by: a rule can't add inputs.
    beams: ov.Node | None = None
    compressed: Compressed = field(default_factory=Compressed)
    rounded: Rounded = field(init=False)
    _heads: dict[str, Out] = field(default_factory=dict)
    _angles: dict[tuple[str, str, bool], Out] = field(default_factory=dict)
    _seen: dict[int, tuple[Out, Out]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rounded = Rounded(self.compressed)

    def extensions(self) -> list[ConversionExtension]:
        """Return what a reader is told, one extension an op."""
        rules: dict[str, Callable[[NodeContext], list[Out]]] = {
            "Attention": self._attention,
            "CacheWrite": self._cache_write,
            "Dequantize": self._dequantize,
            "Decode": self.rounded.decode,
            "Linear": self._linear,
            "QuantEmbedding": self._quant_embedding,
            "QuantLinear": self._quant_linear,
            "RMSNorm": _rms_norm,
            "RoundInput": self.rounded.round_input,
            "Rope": self._rope,
        }
        return [ConversionExtension(name, EW, rule) for name, rule in rules.items()]

    def cache_of(self, value: Out) -> Cache | None:
        """Return the cache all of whose rows a value is."""
        name = value.get_node().get_name()
        return next((cache for cache in self.caches if cache.rows.get_node().get_name() == name), None)

    def _rope(self, context: NodeContext) -> list[Out]:
        x, positions, cos, sin = (context.get_input(i) for i in range(4))
        dim, rotary = context.get_attribute("head_dim"), context.get_attribute("rotary_dim")
        rows = ops.transpose(ops.reshape(x, ints(0, 0, -1, dim), True), ints(0, 2, 1, 3))
        parts = [rows] if rotary == dim else split(rows, rotary, dim - rotary)
        pairs = bool(context.get_attribute("interleaved"))
        angles = [self._angle(positions, table, twice=not pairs) for table in (cos, sin)]
        turn: Callable[..., Out] = turned_pairs if pairs else turned_halves
        parts[0] = turn(parts[0], *angles, rotary // 2)
        whole = parts[0] if len(parts) == 1 else ops.concat(parts, -1)
        flat = ops.reshape(ops.transpose(whole, ints(0, 2, 1, 3)), ints(0, 0, -1), True)
        self._heads[flat.get_name()] = whole.output(0)
        return [flat.output(0)]

    def _angle(self, positions: Out, table: Out, *, twice: bool) -> Out:
        """Return the rows of a rope table that positions need, `[batch, 1, seq, half]`; the same for all layers.

        With `twice` they stand there twice, side by side.
        """
        key = positions.get_node().get_name(), table.get_node().get_name(), twice
        if key not in self._angles:
            rows = ops.unsqueeze(ops.gather(table, positions, number(0)), number(1))
            self._angles[key] = ops.concat([rows, rows], -1) if twice else rows
        return self._angles[key]

    def _by_head(self, value: Out, heads: int, width: int) -> Out:
        """Return `[batch, heads, seq, width]` of `[batch, seq, heads * width]`."""
        known = self._heads.get(value.get_node().get_name())
        if known is not None:
            return known
        return ops.transpose(ops.reshape(value, ints(0, 0, heads, width), True), ints(0, 2, 1, 3)).output(0)

    def _append(self, past: Out, new: Out, heads: int, width: int) -> Out:
        """Return all rows of a cache: those of the state named as its input is, and `new` ones, kept there as well."""
        if self.beams is None:
            self.beams = ops.constant(np.zeros(1, np.int32))
        name, kind = past.get_node().get_friendly_name(), past.get_element_type()
        empty = ops.constant(np.zeros((1, heads, 0, width), np.float32))
        empty = empty if kind == ov.Type.f32 else ops.convert(empty, kind.to_string())
        state = ops.read_value(empty, name, kind, ov.PartialShape([-1, heads, -1, width]))
        rows = ops.concat([ops.gather(state, self.beams, number(0)), new], 2)
        self.sinks.append(ops.assign(rows, name))
        self.caches.append(Cache(name, rows.output(0), new))
        return rows.output(0)

    def _which(self, q: Out, lengths: Out, window: int) -> tuple[Out, Out]:
        """Return which slots each row sees, bool `[1, 1, seq, slots]`, and what hides the others when it is added.

        Both are made once for every window; 0 is none. OpenVINO's attention is much slower with the bool.
        """
        if window not in self._seen:
            past = ops.gather(lengths, number(0), number(0))
            total = ops.add(past, ops.gather(ops.shape_of(q), number(1), number(0)))
            rows = ops.unsqueeze(ops.range(past, total, number(1), "i64"), ints(1))
            slots = ops.range(number(0), total, number(1), "i64")
            seen = ops.less_equal(slots, rows)
            if window:
                seen = ops.logical_and(seen, ops.greater(slots, ops.subtract(rows, number(window))))
            seen = ops.unsqueeze(seen, ints(0, 1))
            self._seen[window] = seen, masked(seen, None)
        return self._seen[window]

    def _cache_write(self, context: NodeContext) -> list[Out]:
        heads = context.get_attribute("kv_heads")
        outputs = []
        for place, width in enumerate((context.get_attribute("head_dim"), context.get_attribute("value_dim"))):
            new, past, scale = (context.get_input(place + offset) for offset in (0, 2, 5))
            steps = ops.divide(self._by_head(new, heads, width), per_head(scale, heads))
            if context.get_attribute("cache") == "int8":
                whole = ops.clamp(ops.round(steps, "half_to_even"), -128.0, 127.0)
            else:
                whole = rounded_to_fp8(ops.clamp(steps, -FP8_LARGEST, FP8_LARGEST))
            codes = ops.convert(whole, past.get_element_type().to_string())
            outputs.append(self._append(past, codes.output(0), heads, width))
        return outputs

    def _attention(self, context: NodeContext) -> list[Out]:
        q, k, v, keys, values, lengths, sinks, bias, k_scale, v_scale = (_given(context, i) for i in range(10))
        heads, groups = context.get_attribute("heads"), context.get_attribute("kv_heads")
        dim, value_dim = context.get_attribute("head_dim"), context.get_attribute("value_dim")
        if k is not None:
            keys = self._append(keys, self._by_head(k, groups, dim), groups, dim)
            values = self._append(values, self._by_head(v, groups, value_dim), groups, value_dim)
        cached = [keys, values]
        if k_scale is not None:
            keys = ops.multiply(ops.convert(keys, "f32"), per_head(k_scale, groups)).output(0)
            values = ops.multiply(ops.convert(values, "f32"), per_head(v_scale, groups)).output(0)
        seen, mask = self._which(q, lengths, context.get_attribute("window", 0))
        query = self._by_head(q, heads, dim)
        scale, cap = context.get_attribute("scale"), context.get_attribute("softcap", 0.0)
        if bias is not None:
            slots = ops.gather(ops.shape_of(keys), ints(2), number(0))
            near = ops.slice(bias, ints(0), slots, ints(1), ints(1))
            mask = masked(seen, ops.reshape(near, ints(1, heads, 1, -1), False))
        if cap or sinks is not None:
            y = attention_in_steps(query, keys, values, mask, groups=groups, scale=scale, cap=cap, sinks=sinks)
        else:
            keys, values = shared(keys, groups, heads), shared(values, groups, heads)
            y = ops.scaled_dot_product_attention(query, keys, values, mask, scalar(scale))
        flat = ops.reshape(ops.transpose(y, ints(0, 2, 1, 3)), ints(0, 0, heads * value_dim), True)
        return [flat.output(0), *cached]

    def _quant_linear(self, context: NodeContext) -> list[Out]:
        x, codes, scales, zero_points, offsets, bias = (_given(context, i) for i in range(6))
        rounded = self.rounded.leaves(x)
        y = self.compressed.product(context, x, codes, scales, zero_points, offsets, rounded=rounded)
        return _plus(y, bias)

    def _linear(self, context: NodeContext) -> list[Out]:
        x, weight, bias = (_given(context, i) for i in range(3))
        self.rounded.multiplied(x, weight)
        return _plus(ops.matmul(x, weight, False, True), bias)

    def _dequantize(self, context: NodeContext) -> list[Out]:
        codes, scales, zero_points, offsets = (_given(context, i) for i in range(4))
        return [self.compressed.whole(context, codes, scales, zero_points, offsets).output(0)]

    def _quant_embedding(self, context: NodeContext) -> list[Out]:
        ids, codes, scales, zero_points, offsets = (_given(context, i) for i in range(5))
        return [self.compressed.rows(context, ids, codes, scales, zero_points, offsets).output(0)]


def _given(context: NodeContext, place: int) -> Out | None:
    """Return an input, or None for one that is left out."""
    if place >= context.get_input_size():
        return None
    value = context.get_input(place)
    return None if value.get_node().get_type_name() == "NullNode" else value


def _plus(product: ov.Node, bias: Out | None) -> list[Out]:
    return [(product if bias is None else ops.add(product, bias)).output(0)]


def _rms_norm(context: NodeContext) -> list[Out]:
    x, weight = _given(context, 0), _given(context, 1)
    group = context.get_attribute("group", 0)
    rows = ops.reshape(x, ints(0, 0, -1, group), True) if group else x
    mean = ops.reduce_mean(ops.power(rows, scalar(2.0)), ints(-1), True)
    root = ops.sqrt(ops.add(mean, scalar(context.get_attribute("epsilon"))))
    y = ops.multiply(rows, ops.divide(scalar(1.0), root))
    y = y if weight is None else ops.multiply(y, weight)
    return [(ops.reshape(y, ints(0, 0, -1), True) if group else y).output(0)]
