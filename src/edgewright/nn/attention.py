"""Grouped-query self-attention with a cache, as decoder families use it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.layers import Linear, RMSNorm
from edgewright.nn.module import Module
from edgewright.nn.rope import RopeTable, apply_rope


@dataclass(frozen=True)
class Cache:
    """The graph values a layer's attention reads: its past keys and values, and how long each sequence is."""

    key: ir.Value
    value: ir.Value
    lengths: ir.Value
    positions: ir.Value


class Attention(Module):
    """q, k, v projections, optional per-head norms, optional rope, cached causal attention.

    The output projection is applied by the decoder layer, which may need it for fewer positions.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rope: RopeTable | None,
        qkv_bias: bool = False,
        out_bias: bool = False,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        qk_norm_epsilon: float | None = None,
        qk_norm_plus: float = 0.0,
    ) -> None:
        self.q_proj = Linear(width, heads * head_dim, bias=qkv_bias)
        self.k_proj = Linear(width, kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = Linear(width, kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = Linear(heads * head_dim, width, bias=out_bias)
        if qk_norm_epsilon is not None:
            self.q_norm = RMSNorm(head_dim, qk_norm_epsilon, plus=qk_norm_plus, per_head=True)
            self.k_norm = RMSNorm(head_dim, qk_norm_epsilon, plus=qk_norm_plus, per_head=True)
        self._normed = qk_norm_epsilon is not None
        self._rope = rope
        self.heads, self.kv_heads, self.head_dim, self.window = heads, kv_heads, head_dim, window
        self._scale = head_dim**-0.5 if scale is None else scale
        self._softcap = softcap

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the mixed values `[batch, seq, heads * head_dim]` and the present keys and values."""
        q, k, v = self.q_proj(g, x), self.k_proj(g, x), self.v_proj(g, x)
        if self._normed:
            q, k = self.q_norm(g, q), self.k_norm(g, k)
        if self._rope is not None:
            q = apply_rope(g, self._rope, q, cache.positions, head_dim=self.head_dim)
            k = apply_rope(g, self._rope, k, cache.positions, head_dim=self.head_dim)
        return ops.attention(
            g,
            q,
            k,
            v,
            cache.key,
            cache.value,
            cache.lengths,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self._scale,
            window=self.window,
            softcap=self._softcap,
        )
