"""An RMS norm with a gate, as recurrent mixers have it behind the recurrence."""

from __future__ import annotations

import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.module import Module, Parameter


class GatedRMSNorm(Module):
    """norm(y * silu(gate)) * weight, or norm(y) * weight * silu(gate) with `norm_first`; by runs of `group` elements.

    The weight is `[width]`, or `[group]` with `shared`.
    """

    def __init__(
        self, width: int, epsilon: float, *, group: int, shared: bool = False, norm_first: bool = False
    ) -> None:
        self.weight = Parameter(group if shared else width)
        self._epsilon, self._norm_first = epsilon, norm_first
        self._group = None if group == width else group
        self._shared = shared or group == width

    def forward(self, g: GraphBuilder, y: ir.Value, gate: ir.Value) -> ir.Value:
        if self._norm_first:
            return gated(g, self._norm(g, y), gate)
        return self._norm(g, gated(g, y, gate))

    def _norm(self, g: GraphBuilder, y: ir.Value) -> ir.Value:
        weight = self.weight.value(g)
        normed = ops.rms_norm(g, y, weight if self._shared else None, epsilon=self._epsilon, group=self._group)
        result: ir.Value = normed if self._shared else g.op("Mul", normed, weight)
        return result


def gated(g: GraphBuilder, y: ir.Value, gate: ir.Value) -> ir.Value:
    """Return y * silu(gate)."""
    return ops.gated_activation(g, gate, y, activation="silu")
