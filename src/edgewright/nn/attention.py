"""Grouped-query self-attention with a cache, as decoder families use it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.cache import Cache, KVShape
from edgewright.nn.layers import Linear, RMSNorm
from edgewright.nn.module import Module, Parameter
from edgewright.nn.rope import RopeTable, apply_rope


class Attention(Module):
    """q, k, v projections, optional norms of q and k, optional rope, cached causal attention.

    `norms` are (name, module) of the norms of q and of k, applied to the whole projections before the rope or, with
    `norm_after_rope`, behind it. `clip` bounds q, k and v, behind a norm in front of the rope. `sinks` adds a learned
    score per head, `bias_table` is a function that gives the graph a table `[heads, slots]` added to the scores
    (ALiBi). `gated` multiplies the mixed values by the sigmoid of one more projection, `q_gate`. `kv_from` is the index
    of an earlier layer whose cache is read instead of an own one: there are then no k and v projections. The output
    projection, named `out`, is applied by the decoder layer, which may need it for fewer positions.
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
        norms: tuple[tuple[str, Module], tuple[str, Module]] | None = None,
        norm_after_rope: bool = False,
        interleaved: bool = False,
        clip: float | None = None,
        sinks: bool = False,
        bias_table: Callable[[GraphBuilder], ir.Value] | None = None,
        gated: bool = False,
        kv_from: int | None = None,
        out: str = "o_proj",
    ) -> None:
        self.q_proj = Linear(width, heads * head_dim, bias=qkv_bias)
        if kv_from is None:
            self.k_proj = Linear(width, kv_heads * head_dim, bias=qkv_bias)
            self.v_proj = Linear(width, kv_heads * head_dim, bias=qkv_bias)
        if gated:
            self.q_gate = Linear(width, heads * head_dim, bias=qkv_bias)
        setattr(self, out, Linear(heads * head_dim, width, bias=out_bias))
        self._out = out
        if qk_norm_epsilon is not None:
            norms = (
                ("q_norm", RMSNorm(heads * head_dim, qk_norm_epsilon, plus=qk_norm_plus, group=head_dim)),
                ("k_norm", RMSNorm(kv_heads * head_dim, qk_norm_epsilon, plus=qk_norm_plus, group=head_dim)),
            )
        self._norms = ("", "")
        if norms is not None:
            self._norms = (norms[0][0], norms[1][0])
            for name, norm in norms[: 1 if kv_from is not None else 2]:
                setattr(self, name, norm)
        self.sinks = Parameter(heads) if sinks else None
        self._rope, self._interleaved, self._norm_after_rope = rope, interleaved, norm_after_rope
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._window, self._softcap, self._clip = window, softcap, clip
        self._scale = head_dim**-0.5 if scale is None else scale
        self._bias_table, self._gated = bias_table, gated
        self.kv_from = kv_from
        self.kv = KVShape(kv_heads, head_dim, head_dim, window) if kv_from is None else None
        self.states: dict[str, tuple[int, ...]] = {}
        self.dual_rope = rope.switch if rope is not None else None

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value:
        """Return the mixed values `[batch, seq, heads * head_dim]`; the caches go to `cache.present`."""
        q = self._query(g, x, cache)
        k = v = None
        if self.kv_from is None:
            k, v = self._key_value(g, x, cache)
        y, key, value = ops.attention(
            g,
            q,
            k,
            v,
            cache.past["key"],
            cache.past["value"],
            cache.lengths,
            heads=self._heads,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            scale=self._scale,
            window=self._window,
            softcap=self._softcap,
            sinks=self.sinks.value(g) if self.sinks else None,
            bias=self._bias_table(g) if self._bias_table else None,
        )
        if self.kv_from is None:
            cache.present.update(key=key, value=value)
        if self._gated:
            gate = g.op("Sigmoid", self.q_gate(g, x))
            y = g.op("Mul", y, gate)
        return y

    def project(self, g: GraphBuilder, mixed: ir.Value) -> ir.Value:
        """Apply the output projection."""
        result: ir.Value = getattr(self, self._out)(g, mixed)
        return result

    def _query(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value:
        return self._place(g, self.q_proj(g, x), self._norms[0], cache)

    def _key_value(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> tuple[ir.Value, ir.Value]:
        k = self._place(g, self.k_proj(g, x), self._norms[1], cache)
        return k, self._clipped(g, self.v_proj(g, x))

    def _clipped(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        if self._clip is None:
            return x
        result: ir.Value = g.op("Clip", x, g.constant(-self._clip, np.float32), g.constant(self._clip, np.float32))
        return result

    def _place(self, g: GraphBuilder, x: ir.Value, norm: str, cache: Cache) -> ir.Value:
        """Apply norm and rope in the family's order."""
        if norm and not self._norm_after_rope:
            x = getattr(self, norm)(g, x)
        x = self._clipped(g, x)
        if self._rope is not None:
            x = apply_rope(g, self._rope, x, cache, head_dim=self._head_dim, interleaved=self._interleaved)
        if norm and self._norm_after_rope:
            x = getattr(self, norm)(g, x)
        return x
