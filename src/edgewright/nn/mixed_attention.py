"""Attention without a cache: a prefix's keys and values, own ones, and a mask that says who sees whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.layers import Linear
from edgewright.nn.module import Module
from edgewright.nn.rope import RopeTable


@dataclass(frozen=True)
class Prefix:
    """Keys and values of one layer, `[batch, kv_heads, prefix, head_dim]`; `transposed`: those of keys swapped."""

    key: ir.Value
    value: ir.Value
    transposed: bool = False


@dataclass(frozen=True)
class Mask:
    """int64 0 and 1, `[batch, keys]`, or `[batch, seq, keys]` with `by_row`; 1 is seen."""

    value: ir.Value
    by_row: bool = False


class MixedAttention(Module):
    """q, k, v projections, optional rope, attention among given and own keys, output projection.

    With `from_prefix` k and v are projections of the prefix's keys and values and not of x, as in cross-attention.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rope: RopeTable | None = None,
        bias: bool = False,
        out: str = "o_proj",
        from_prefix: bool = False,
    ) -> None:
        source = kv_heads * head_dim if from_prefix else width
        self.q_proj = Linear(width, heads * head_dim, bias=bias)
        self.k_proj = Linear(source, kv_heads * head_dim, bias=bias)
        self.v_proj = Linear(source, kv_heads * head_dim, bias=bias)
        setattr(self, out, Linear(heads * head_dim, width, bias=bias))
        self._out, self._rope = out, rope
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self.from_prefix = from_prefix

    def forward(
        self,
        g: GraphBuilder,
        x: ir.Value,
        *,
        positions: ir.Value | None = None,
        prefix: Prefix | None = None,
        mask: Mask | None = None,
        own: bool = True,
        projected: bool = False,
    ) -> ir.Value:
        """Return what x's rows gather, projected.

        Without `own` the prefix's keys are all there are; with `projected` they are what `as_projected` made.
        """
        q = self._turned(g, self.q_proj(g, x), positions)
        k = v = None
        if self.from_prefix and not projected:
            assert prefix is not None
            k, v = self.projected(g, prefix)
            prefix = None
        elif own and not self.from_prefix:
            k, v = self.keys_values(g, x, positions)
        y = ops.mixed_attention(
            g,
            q,
            k,
            v,
            prefix.key if prefix else None,
            prefix.value if prefix else None,
            mask.value if mask else None,
            heads=self._heads,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            scale=self._head_dim**-0.5,
            keys_transposed=prefix is not None and prefix.transposed,
            by_row=mask is not None and mask.by_row,
        )
        result: ir.Value = getattr(self, self._out)(g, y)
        return result

    def keys_values(self, g: GraphBuilder, x: ir.Value, positions: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Return the keys, turned by the rope, and the values of x's rows, `[batch, seq, kv_heads * head_dim]`."""
        with g.scope(self.path):
            return self._turned(g, self.k_proj(g, x), positions), self.v_proj(g, x)

    def as_prefix(self, g: GraphBuilder, x: ir.Value, positions: ir.Value | None, *, transposed: bool) -> Prefix:
        """Return x's keys and values as others are to read them."""
        k, v = self.keys_values(g, x, positions)
        with g.scope(self.path):
            return self._by_head(g, k, v, transposed=transposed)

    def as_projected(self, g: GraphBuilder, prefix: Prefix) -> Prefix:
        """Return what a layer with `from_prefix` makes of a prefix, laid out as that prefix is."""
        k, v = self.projected(g, prefix)
        with g.scope(self.path):
            return self._by_head(g, k, v, transposed=prefix.transposed)

    def projected(self, g: GraphBuilder, prefix: Prefix) -> tuple[ir.Value, ir.Value]:
        """Return the projections of a prefix's keys and values as rows `[batch, prefix, kv_heads * head_dim]`."""
        with g.scope(self.path):
            flat = g.constant([0, 0, self._kv_heads * self._head_dim], np.int64)
            order = [0, 3, 1, 2] if prefix.transposed else [0, 2, 1, 3]
            keys = g.op("Reshape", g.op("Transpose", prefix.key, perm=order), flat)
            values = g.op("Reshape", g.op("Transpose", prefix.value, perm=[0, 2, 1, 3]), flat)
        return self.k_proj(g, keys), self.v_proj(g, values)

    def _by_head(self, g: GraphBuilder, k: ir.Value, v: ir.Value, *, transposed: bool) -> Prefix:
        heads = g.constant([0, 0, self._kv_heads, self._head_dim], np.int64)
        key = g.op("Transpose", g.op("Reshape", k, heads), perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])
        value = g.op("Transpose", g.op("Reshape", v, heads), perm=[0, 2, 1, 3])
        return Prefix(key, value, transposed)

    def _turned(self, g: GraphBuilder, x: ir.Value, positions: ir.Value | None) -> ir.Value:
        if self._rope is None:
            return x
        assert positions is not None
        cos, sin = self._rope.values(g)
        dim = self._head_dim
        return ops.rope(g, x, positions, cos, sin, head_dim=dim, rotary_dim=self._rope.rotary_dim)
