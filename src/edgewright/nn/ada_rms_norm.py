"""The norm whose scale, shift and gate a condition makes, and the residual that the gate holds back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.layers import Linear, split
from edgewright.nn.module import Module


class AdaRMSNorm(Module):
    """y = unit(x) * (1 + scale) + shift, where a product of the condition gives scale, shift and a gate, in that order.

    x `[batch, seq, width]`; the condition is `[batch, 1, condition]`, the same for every row, or
    `[batch, seq, condition]`.
    """

    def __init__(self, width: int, condition: int, epsilon: float) -> None:
        self.dense = Linear(condition, 3 * width, bias=True)
        self._width, self._epsilon = width, epsilon

    def forward(self, g: GraphBuilder, x: ir.Value, condition: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return y and the gate."""
        offset, shift, gate = split(g, self.dense(g, condition), [self._width] * 3)
        scale = g.op("Add", offset, g.constant(1.0, np.float32))
        return ops.ada_rms_norm(g, x, scale, shift, epsilon=self._epsilon), gate


def normed(g: GraphBuilder, norm: Module, x: ir.Value, condition: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
    """Return norm(x) and its gate, which a norm without condition doesn't have."""
    if isinstance(norm, AdaRMSNorm):
        assert condition is not None
        y, gate = norm(g, x, condition)
        return y, gate
    return norm(g, x), None


def gated_residual(g: GraphBuilder, x: ir.Value, y: ir.Value, gate: ir.Value | None) -> ir.Value:
    """Return x + y * gate, or x + y without a gate."""
    result: ir.Value = g.op("Add", x, y if gate is None else g.op("Mul", y, gate))
    return result
