"""The small blocks: linear, embedding, RMS norm, gated MLP."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.module import Module, Parameter


class Linear(Module):
    """`weight` `[out, in]` and, with `bias`, `bias` `[out]`; `weight` may be another module's (tied head)."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, weight: Parameter | None = None) -> None:
        self.weight = weight or Parameter(outputs, inputs)
        self.bias = Parameter(outputs) if bias else None

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        return ops.linear(g, x, self.weight.value(g), self.bias.value(g) if self.bias else None)


class Embedding(Module):
    """A table `[vocab, width]`; with `scale` the rows are multiplied by it after the look-up."""

    def __init__(self, vocab: int, width: int, *, scale: float | None = None) -> None:
        self.weight = Parameter(vocab, width)
        self._scale = scale

    def forward(self, g: GraphBuilder, ids: ir.Value) -> ir.Value:
        rows = ops.embedding(g, ids, self.weight.value(g))
        if self._scale is None:
            return rows
        result: ir.Value = g.op("Mul", rows, g.constant(self._scale, np.float32))
        return result


class RMSNorm(Module):
    """Root-mean-square norm over the last axis, or over runs of `group` elements; `plus` is added to the weight."""

    def __init__(self, width: int, epsilon: float, *, plus: float = 0.0, per_head: bool = False) -> None:
        self.weight = Parameter(width, plus=plus)
        self._epsilon = epsilon
        self._group = width if per_head else None

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        return ops.rms_norm(g, x, self.weight.value(g), epsilon=self._epsilon, group=self._group)


class GatedMLP(Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int, activation: str, *, bias: bool = False) -> None:
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self._activation = ops.ACTIVATIONS[activation]

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        inner = ops.gated_activation(g, self.gate_proj(g, x), self.up_proj(g, x), activation=self._activation)
        result: ir.Value = self.down_proj(g, inner)
        return result
