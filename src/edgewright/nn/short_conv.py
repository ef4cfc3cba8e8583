"""Convolutions over the last few positions: the depthwise one recurrent mixers begin with, and LFM2's gated one."""

from __future__ import annotations

import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.cache import Cache
from edgewright.nn.layers import Linear, split
from edgewright.nn.module import Module, Parameter


class CausalConv(Module):
    """A depthwise convolution that sees only the past; its state is named `conv`."""

    def __init__(self, channels: int, kernel: int, *, bias: bool = False, activation: str | None = None) -> None:
        self.weight = Parameter(channels, 1, kernel)
        self.bias = Parameter(channels) if bias else None
        self.state = (channels, kernel - 1)
        self._activation = activation

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value:
        bias = self.bias.value(g) if self.bias else None
        y, cache.present["conv"] = ops.causal_conv(
            g, x, self.weight.value(g), bias, cache.past["conv"], activation=self._activation
        )
        return y


class ShortConv(Module):
    """out(c * conv(b * x)) of the three parts b, c and x of one projection."""

    kv = kv_from = dual_rope = None

    def __init__(self, width: int, kernel: int, *, bias: bool = False) -> None:
        self.in_proj = Linear(width, 3 * width, bias=bias)
        self.conv = CausalConv(width, kernel, bias=bias)
        self.out_proj = Linear(width, width, bias=bias)
        self.states = {"conv": self.conv.state}
        self._width = width

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value:
        """Return the gated result of the convolution `[batch, seq, width]`."""
        b, c, inner = split(g, self.in_proj(g, x), [self._width] * 3)
        result: ir.Value = g.op("Mul", c, self.conv(g, g.op("Mul", b, inner), cache))
        return result

    def project(self, g: GraphBuilder, mixed: ir.Value) -> ir.Value:
        """Apply the output projection."""
        result: ir.Value = self.out_proj(g, mixed)
        return result
