"""What the policies have in common: masks and positions of prefix and suffix, reading the prefix, timed actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn import Embedding, JointLayer, Linear, Mask, Module, Prefix
from edgewright.nn.stored_part import StoredPart


class Group(Module):
    """Modules under the names that the checkpoint has for them."""

    def __init__(self, **children: Module) -> None:
        vars(self).update(children)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Tower(Module):
    """Layers and a last norm."""

    def __init__(self, layers: Sequence[JointLayer], norm: Module) -> None:
        self.layers = list(layers)
        self.norm = norm


class Reader(Tower):
    """The tower that reads the prefix, with the table of its text."""

    def __init__(self, embed_tokens: Embedding, layers: Sequence[JointLayer], norm: Module) -> None:
        super().__init__(layers, norm)
        self.embed_tokens = embed_tokens


class TimedActions(Module):
    """The first product over actions and time side by side, as two products: the time's does not depend on the actions.

    The stored weight is `[width, 2 * width]`, the columns of the actions first.
    """

    def __init__(self, width: int) -> None:
        stored = (width, 2 * width)
        first, second = slice(0, width), slice(width, 2 * width)
        actions = StoredPart(width, width, stored_shape=stored, columns=first, part="actions")
        time = StoredPart(width, width, stored_shape=stored, columns=second, part="time")
        self.actions = Linear(width, width, weight=actions)
        self.time = Linear(width, width, weight=time)
        self.time.bias = StoredPart(width, stored_shape=(width,), part="time")

    def forward(self, g: GraphBuilder, actions: ir.Value, time: ir.Value) -> ir.Value:
        """Return `[batch, horizon, width]` of actions `[batch, horizon, width]` and time `[batch, times, width]`."""
        result: ir.Value = g.op("Add", self.actions(g, actions), self.time(g, time))
        return result


def silu(g: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return x * sigmoid(x)."""
    return ops.activation(g, x, activation="silu")


def length(g: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return the length of axis 1 as a scalar."""
    result: ir.Value = g.op("Squeeze", g.op("Shape", x, start=1, end=2), g.constant([0], np.int64))
    return result


def prefix_positions(g: GraphBuilder, mask: ir.Value) -> ir.Value:
    """Return int64 `[batch, prefix]`: how many valid tokens stand before each one."""
    with g.scope("prefix.positions"):
        counted = g.op("CumSum", mask, g.constant(1, np.int64))
        before = g.op("Sub", counted, g.constant(1, np.int64))
        # Masked tokens in front of all others have none; their rows of the rope play no part.
        result: ir.Value = g.op("Max", before, g.constant(0, np.int64))
    return result


def suffix_positions(g: GraphBuilder, prefix_mask: ir.Value, rows: ir.Value) -> ir.Value:
    """Return int64 `[batch, rows]`: the rows follow the prefix's valid tokens."""
    with g.scope("suffix.positions"):
        valid = g.op("ReduceSum", prefix_mask, g.constant([1], np.int64), keepdims=1)
        result: ir.Value = g.op("Add", valid, _steps(g, rows))
    return result


def first_positions(g: GraphBuilder, prefix_mask: ir.Value, rows: ir.Value) -> ir.Value:
    """Return int64 `[batch, rows]`: the rows begin at zero."""
    with g.scope("suffix.first_positions"):
        none = g.op("Mul", g.op("Slice", prefix_mask, *(g.constant([n], np.int64) for n in (0, 1, 1))), _zero(g))
        result: ir.Value = g.op("Add", none, _steps(g, rows))
    return result


def _zero(g: GraphBuilder) -> ir.Value:
    return g.constant(0, np.int64)


def _steps(g: GraphBuilder, rows: ir.Value) -> ir.Value:
    result: ir.Value = g.op("Range", _zero(g), rows, g.constant(1, np.int64))
    return result


def in_turn(g: GraphBuilder, blocks: ir.Value) -> ir.Value:
    """Return int64 `[rows, rows]`: rows see their own block and those before, by `blocks` `[rows]`."""
    query = g.op("Unsqueeze", blocks, g.constant([1], np.int64))
    key = g.op("Unsqueeze", blocks, g.constant([0], np.int64))
    seen = g.op("GreaterOrEqual", query, key)
    result: ir.Value = g.op("Cast", seen, to=int(ir.DataType.INT64))
    return result


def open_suffix(g: GraphBuilder, prefix_mask: ir.Value, x: ir.Value) -> Mask:
    """Return the mask of rows that see the prefix's valid tokens and all of each other."""
    with g.scope("suffix.mask"):
        own = g.op("Expand", g.constant(1, np.int64), g.op("Shape", x, start=0, end=2))
        return Mask(g.op("Concat", prefix_mask, own, axis=1))


def suffix_in_turn(g: GraphBuilder, prefix_mask: ir.Value, rows: ir.Value, *, blocks: int | None) -> Mask:
    """Return the mask of rows that see the prefix's valid tokens, and each other from block to block.

    Every row is a block of its own; with `blocks` the rows from the last block's first one on are one block.
    """
    with g.scope("suffix.mask"):
        steps = _steps(g, rows)
        own = in_turn(g, steps if blocks is None else g.op("Min", steps, g.constant(blocks - 1, np.int64)))
        one = g.constant([1], np.int64)
        batch, count = g.op("Shape", prefix_mask, start=0, end=1), g.op("Unsqueeze", rows, g.constant([0], np.int64))
        width = g.op("Shape", prefix_mask, start=1, end=2)
        before = g.op("Expand", g.op("Unsqueeze", prefix_mask, one), g.op("Concat", batch, count, width, axis=0))
        each = g.op("Expand", own, g.op("Concat", batch, count, count, axis=0))
        return Mask(g.op("Concat", before, each, axis=2), by_row=True)


def read_prefix(
    g: GraphBuilder,
    layers: Sequence[JointLayer],
    x: ir.Value,
    mask: Mask,
    positions: ir.Value,
    *,
    transposed: bool,
    kv_only: bool,
) -> tuple[ir.Value, list[Prefix]]:
    """Return the hidden states behind `layers` and each one's keys and values.

    With `kv_only` the last layer makes keys and values alone, and the hidden states are those in front of it.
    """
    read: list[Prefix] = []
    for index, layer in enumerate(layers):
        last = kv_only and index == len(layers) - 1
        x, prefix = layer.read(g, x, positions=positions, mask=mask, transposed=transposed, kv_only=last)
        read.append(prefix)
    return x, read
