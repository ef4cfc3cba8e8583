"""The Mamba-2 mixer: a short convolution, then a state per head that fades by a learned, input-dependent step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.graph.weights import ComputedWeight
from edgewright.nn.cache import Cache
from edgewright.nn.gated_norm import GatedRMSNorm, gated
from edgewright.nn.layers import Linear, scaled, split
from edgewright.nn.module import Module, Parameter
from edgewright.nn.short_conv import CausalConv


class Mamba2(Module):
    """`heads` states of `head_dim` by `state_size`; heads of one of `groups` share the state's input and output.

    `step_limit` bounds the step after its softplus. The result is multiplied by silu(gate), and normed by groups with
    `epsilon` unless that is None, before the gate with `norm_first`. `in_scale` multiplies the input, `part_scales` the
    parts gate, x, B, C and step of the projected input.
    """

    kv = kv_from = dual_rope = None

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int,
        state_size: int,
        groups: int,
        kernel: int,
        epsilon: float | None,
        norm_first: bool = False,
        bias: bool = False,
        out_bias: bool = False,
        conv_bias: bool = True,
        step_limit: tuple[float, float] = (0.0, math.inf),
        in_scale: float = 1.0,
        part_scales: Sequence[float] | None = None,
    ) -> None:
        inner, shared = heads * head_dim, groups * state_size
        self.in_proj = Linear(width, 2 * inner + 2 * shared + heads, bias=bias)
        self.conv1d = CausalConv(inner + 2 * shared, kernel, bias=conv_bias, activation="silu")
        self.A_log = Parameter(heads)
        self.D = Parameter(heads)
        self.dt_bias = Parameter(heads)
        if epsilon is not None:
            self.norm = GatedRMSNorm(inner, epsilon, group=inner // groups, norm_first=norm_first)
        self.out_proj = Linear(inner, width, bias=out_bias)
        self.states = {"conv": self.conv1d.state, "ssm": (heads, head_dim, state_size)}
        self._sizes = {"heads": heads, "head_dim": head_dim, "groups": groups, "state_size": state_size}
        self._inner, self._shared, self._heads = inner, shared, heads
        self._step_limit, self._in_scale, self._part_scales = step_limit, in_scale, part_scales
        self._normed = epsilon is not None

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value:
        """Return the gated result of the recurrence `[batch, seq, heads * head_dim]`."""
        inner, shared = self._inner, self._shared
        projected = self.in_proj(g, scaled(g, x, self._in_scale))
        if self._part_scales is not None:
            factors = np.repeat(self._part_scales, [inner, inner, shared, shared, self._heads])
            table = ComputedWeight(f"{self.path}.part_scales", factors.shape, lambda a, b: factors[a:b])
            projected = g.op("Mul", projected, g.weight(table))
        gate, mixed, step = split(g, projected, [inner, inner + 2 * shared, self._heads])
        values, b, c = split(g, self.conv1d(g, mixed, cache), [inner, shared, shared])
        step = self._limited(g, g.op("Softplus", g.op("Add", step, self.dt_bias.value(g))))
        rates = g.op("Neg", g.op("Exp", self.A_log.value(g)))
        y, cache.present["ssm"] = ops.state_space(
            g, values, step, rates, b, c, self.D.value(g), cache.past["ssm"], **self._sizes
        )
        result: ir.Value = self.norm(g, y, gate) if self._normed else gated(g, y, gate)
        return result

    def project(self, g: GraphBuilder, mixed: ir.Value) -> ir.Value:
        """Apply the output projection."""
        result: ir.Value = self.out_proj(g, mixed)
        return result

    def _limited(self, g: GraphBuilder, step: ir.Value) -> ir.Value:
        low, high = self._step_limit
        if low <= 0 and high == math.inf:
            return step
        result: ir.Value = g.op("Clip", step, g.constant(low, np.float32), g.constant(high, np.float32))
        return result
