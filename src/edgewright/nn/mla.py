"""Multi-head latent attention (DeepSeek): keys and values made of a narrow latent, and one rotary key for all heads.

A head's query and key are [rotary | plain]. What a call keeps are the keys and values of all heads, not the latent.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.cache import Cache, KVShape
from edgewright.nn.layers import Linear, RMSNorm, split
from edgewright.nn.module import Module
from edgewright.nn.rope import RopeTable, apply_rope

#: Epsilon of the norms of the latents; no config says it.
_EPSILON = 1e-6


class LatentAttention(Module):
    """With `q_rank` the queries come from a latent too.

    `kv_a_proj_with_mqa` gives [latent | rotary key], `k_b_proj` and `v_b_proj` make the plain part of the keys and the
    values of it. `bias` is that of the projections of the input and of the output.
    """

    kv_from: int | None = None

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        q_rank: int | None,
        kv_rank: int,
        plain_dim: int,
        value_dim: int,
        rope: RopeTable,
        scale: float,
        bias: bool = False,
        interleaved: bool = True,
    ) -> None:
        rotary = rope.rotary_dim
        head_dim = rotary + plain_dim
        if q_rank is None:
            self.q_proj = Linear(width, heads * head_dim)
        else:
            self.q_a_proj = Linear(width, q_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(q_rank, _EPSILON)
            self.q_b_proj = Linear(q_rank, heads * head_dim)
        self.kv_a_proj_with_mqa = Linear(width, kv_rank + rotary, bias=bias)
        self.kv_a_layernorm = RMSNorm(kv_rank, _EPSILON)
        self.k_b_proj = Linear(kv_rank, heads * plain_dim)
        self.v_b_proj = Linear(kv_rank, heads * value_dim)
        self.o_proj = Linear(heads * value_dim, width, bias=bias)
        self._direct = q_rank is None
        self._heads, self._kv_rank, self._plain = heads, kv_rank, plain_dim
        self._rope, self._interleaved, self._scale = rope, interleaved, scale
        self.kv = KVShape(heads, head_dim, value_dim)
        self.states: dict[str, tuple[int, ...]] = {}
        self.dual_rope = rope.switch

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value:
        """Return the mixed values `[batch, seq, heads * value_dim]`; the caches go to `cache.present`."""
        q = self.q_proj(g, x) if self._direct else self.q_b_proj(g, self.q_a_layernorm(g, self.q_a_proj(g, x)))
        k, v = self._key_value(g, x, cache)
        y, key, value = ops.attention(
            g,
            self._turned(g, q, cache, self.kv.head_dim),
            k,
            v,
            cache.past["key"],
            cache.past["value"],
            cache.lengths,
            heads=self._heads,
            kv_heads=self._heads,
            head_dim=self.kv.head_dim,
            value_dim=self.kv.value_dim,
            scale=self._scale,
        )
        cache.present.update(key=key, value=value)
        return y

    def project(self, g: GraphBuilder, mixed: ir.Value) -> ir.Value:
        """Apply the output projection."""
        result: ir.Value = self.o_proj(g, mixed)
        return result

    def _key_value(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> tuple[ir.Value, ir.Value]:
        rotary = self._rope.rotary_dim
        latent, turning = split(g, self.kv_a_proj_with_mqa(g, x), [self._kv_rank, rotary])
        latent = self.kv_a_layernorm(g, latent)
        plain = g.op("Reshape", self.k_b_proj(g, latent), g.constant([0, 0, self._heads, self._plain], np.int64))
        one = g.op("Unsqueeze", self._turned(g, turning, cache, rotary), g.constant([2], np.int64))
        every = g.op("Expand", one, g.constant([1, 1, self._heads, rotary], np.int64))
        k = g.op("Reshape", g.op("Concat", every, plain, axis=-1), g.constant([0, 0, -1], np.int64))
        return k, self.v_b_proj(g, latent)

    def _turned(self, g: GraphBuilder, x: ir.Value, cache: Cache, head_dim: int) -> ir.Value:
        return apply_rope(g, self._rope, x, cache, head_dim=head_dim, interleaved=self._interleaved)
