"""The small blocks: linear, embedding, norms, feed-forward networks."""

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
        return scaled(g, ops.embedding(g, ids, self.weight.value(g)), self._scale)


class RMSNorm(Module):
    """Root-mean-square norm over the last axis, or over runs of `group` elements; `plus` is added to the weight.

    The weight is `[width]`, or `[width / group, group]` with `own_weights`, or absent with `weight` False.
    """

    def __init__(
        self,
        width: int,
        epsilon: float,
        *,
        plus: float = 0.0,
        group: int | None = None,
        own_weights: bool = False,
        weight: bool = True,
    ) -> None:
        self.weight = Parameter(*_norm_shape(width, group, own_weights), plus=plus) if weight else None
        self._epsilon = epsilon
        self._group = group

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        weight = self.weight.value(g) if self.weight else None
        return ops.rms_norm(g, x, weight, epsilon=self._epsilon, group=self._group)


class LayerNorm(Module):
    """Norm by mean and variance, with optional weight and bias; `group` and `own_weights` as in RMSNorm."""

    def __init__(
        self,
        width: int,
        epsilon: float,
        *,
        plus: float = 0.0,
        group: int | None = None,
        own_weights: bool = False,
        weight: bool = True,
        bias: bool = True,
    ) -> None:
        shape = _norm_shape(width, group, own_weights)
        self.weight = Parameter(*shape, plus=plus) if weight else None
        self.bias = Parameter(*shape) if bias else None
        self._epsilon = epsilon
        self._group = group

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        weight = self.weight.value(g) if self.weight else None
        bias = self.bias.value(g) if self.bias else None
        return ops.layer_norm(g, x, weight, bias, epsilon=self._epsilon, group=self._group)


class GatedMLP(Module):
    """down(act(gate(x)) * up(x)); `names` are those of gate, up and down."""

    def __init__(
        self,
        width: int,
        inner: int,
        activation: str,
        *,
        bias: bool = False,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        self._names = names
        for name, sizes in zip(names, ((width, inner), (width, inner), (inner, width)), strict=True):
            setattr(self, name, Linear(*sizes, bias=bias))
        self._activation = ops.ACTIVATIONS[activation]

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        gate, up, down = (getattr(self, name) for name in self._names)
        result: ir.Value = down(g, ops.gated_activation(g, gate(g, x), up(g, x), activation=self._activation))
        return result


class MLP(Module):
    """down(act(up(x))); `names` are those of up and down."""

    def __init__(
        self,
        width: int,
        inner: int,
        activation: str,
        *,
        bias: bool = False,
        names: tuple[str, str] = ("up_proj", "down_proj"),
    ) -> None:
        self._names = names
        for name, sizes in zip(names, ((width, inner), (inner, width)), strict=True):
            setattr(self, name, Linear(*sizes, bias=bias))
        self._activation = ops.ACTIVATIONS[activation]

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        up, down = (getattr(self, name) for name in self._names)
        result: ir.Value = down(g, ops.activation(g, up(g, x), activation=self._activation))
        return result


def scaled(g: GraphBuilder, x: ir.Value, factor: float | None) -> ir.Value:
    """Return x, multiplied by `factor` where one is given."""
    if factor is None or factor == 1.0:
        return x
    result: ir.Value = g.op("Mul", x, g.constant(factor, np.float32))
    return result


def split(g: GraphBuilder, x: ir.Value, widths: list[int]) -> tuple[ir.Value, ...]:
    """Cut the last axis into parts of the given widths."""
    result: tuple[ir.Value, ...] = g.op("Split", x, g.constant(widths, np.int64), outputs=len(widths), axis=-1)
    return result


def _norm_shape(width: int, group: int | None, own_weights: bool) -> tuple[int, ...]:
    if group is None:
        return (width,)
    return (width // group, group) if own_weights else (group,)
