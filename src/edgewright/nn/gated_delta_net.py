"""Gated DeltaNet: linear attention over a state that fades and is corrected towards each new value."""

from __future__ import annotations

import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.cache import Cache
from edgewright.nn.gated_norm import GatedRMSNorm
from edgewright.nn.layers import Linear, scaled, split
from edgewright.nn.module import Module, Parameter
from edgewright.nn.moe import FloatLinear
from edgewright.nn.short_conv import CausalConv

#: Added to the squared length of queries and keys before they are made unit vectors.
_TINY = 1e-6


class GatedDeltaNet(Module):
    """`key_heads` of queries and keys for `heads` of values; the result is normed by head, then times silu(z)."""

    kv = kv_from = dual_rope = None

    def __init__(
        self,
        width: int,
        *,
        key_heads: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        kernel: int,
        epsilon: float,
    ) -> None:
        keys, values = key_heads * key_dim, heads * value_dim
        self.in_proj_qkv = Linear(width, 2 * keys + values)
        self.in_proj_z = Linear(width, values)
        self.in_proj_b = FloatLinear(width, heads)
        self.in_proj_a = FloatLinear(width, heads)
        self.conv1d = CausalConv(2 * keys + values, kernel, activation="silu")
        self.A_log = Parameter(heads)
        self.dt_bias = Parameter(heads)
        self.norm = GatedRMSNorm(values, epsilon, group=value_dim, shared=True, norm_first=True)
        self.out_proj = Linear(values, width)
        self.states = {"conv": self.conv1d.state, "delta": (heads, key_dim, value_dim)}
        self._sizes = {"key_heads": key_heads, "heads": heads, "key_dim": key_dim, "value_dim": value_dim}
        self._parts, self._key_dim = [keys, keys, values], key_dim

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value:
        """Return the gated result of the recurrence `[batch, seq, heads * value_dim]`."""
        q, k, v = split(g, self.conv1d(g, self.in_proj_qkv(g, x), cache), self._parts)
        step = g.op("Softplus", g.op("Add", self.in_proj_a(g, x), self.dt_bias.value(g)))
        decay = g.op("Mul", step, g.op("Neg", g.op("Exp", self.A_log.value(g))))
        beta = g.op("Sigmoid", self.in_proj_b(g, x))
        q, k = self._unit(g, q, self._key_dim**-0.5), self._unit(g, k, 1.0)
        y, cache.present["delta"] = ops.gated_delta(g, q, k, v, decay, beta, cache.past["delta"], **self._sizes)
        result: ir.Value = self.norm(g, y, self.in_proj_z(g, x))
        return result

    def project(self, g: GraphBuilder, mixed: ir.Value) -> ir.Value:
        """Apply the output projection."""
        result: ir.Value = self.out_proj(g, mixed)
        return result

    def _unit(self, g: GraphBuilder, x: ir.Value, length: float) -> ir.Value:
        """Give each head's vector `length`: an RMS norm gives it the square root of its width."""
        normed = ops.rms_norm(g, x, None, epsilon=_TINY / self._key_dim, group=self._key_dim)
        return scaled(g, normed, length * self._key_dim**-0.5)
