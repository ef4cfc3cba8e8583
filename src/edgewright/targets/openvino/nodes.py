"""Small pieces of OpenVINO graphs that the rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

#: An output of a node; OpenVINO takes single-output nodes in its place.
Out = Any
#: Score of a slot that a row doesn't see, where scores are computed in single steps.
HIDDEN = -1.0e30
#: The largest number of FP8 E4M3.
FP8_LARGEST = 448.0


def ints(*values: int) -> ov.Node:
    """Return an int64 vector."""
    return ops.constant(np.array(values, np.int64))


def number(value: int) -> ov.Node:
    """Return an int64 scalar."""
    return ops.constant(np.int64(value))


def scalar(value: float) -> ov.Node:
    """Return a float32 scalar."""
    return ops.constant(np.float32(value))


def split(value: Out, *widths: int) -> list[Out]:
    """Return the pieces of the last of four axes."""
    pieces: list[Out] = ops.variadic_split(value, number(3), ints(*widths)).outputs()
    return pieces


def turned_halves(x: Out, cos: Out, sin: Out, half: int) -> Out:
    """Return the rotation of the last axis's two halves by tables `[..., 2 * half]`, which repeat."""
    first, second = split(x, half, half)
    other = ops.concat([ops.multiply(second, scalar(-1.0)), first], -1)
    return ops.add(ops.multiply(x, cos), ops.multiply(other, sin))


def turned_pairs(x: Out, cos: Out, sin: Out, half: int) -> Out:
    """Return the rotation of the last axis's neighbours by tables `[..., half]`; x has four axes."""
    pairs = ops.reshape(x, ints(0, 0, 0, half, 2), True)
    a, b = (ops.squeeze(part, number(-1)) for part in ops.split(pairs, number(-1), 2).outputs())
    first = ops.subtract(ops.multiply(a, cos), ops.multiply(b, sin))
    second = ops.add(ops.multiply(b, cos), ops.multiply(a, sin))
    both = ops.concat([ops.unsqueeze(first, number(-1)), ops.unsqueeze(second, number(-1))], -1)
    return ops.reshape(both, ints(0, 0, 0, 2 * half), True)


def per_head(scale: Out, heads: int) -> Out:
    """Return one scale, or one a head, as `[1, heads or 1, 1, 1]`."""
    count = int(scale.get_partial_shape()[0].get_length())
    return ops.reshape(scale, ints(1, heads if count > 1 else 1, 1, 1), False)


def rounded_to_fp8(value: Out) -> Out:
    """Return float32 numbers of FP8 E4M3, the nearest to those of `value`, which are none that is too large.

    OpenVINO makes them by way of float16, and rounds twice so: two of a thousand would become another number.
    """
    large = ops.multiply(value, scalar(2.0**20 + 1.0))
    normal = ops.subtract(large, ops.subtract(large, value))  # what four bits of the mantissa hold
    small = ops.divide(ops.round(ops.multiply(value, scalar(2.0**9)), "half_to_even"), scalar(2.0**9))
    return ops.select(ops.less(ops.abs(value), scalar(2.0**-6)), small, normal)


def shared(rows: Out, groups: int, heads: int) -> Out:
    """Return `[batch, heads, rows, width]` of `[batch, groups, rows, width]`: the heads of a group read the same."""
    if groups == heads:
        return rows
    width = int(rows.get_partial_shape()[3].get_length())
    wide = ops.broadcast(
        ops.unsqueeze(rows, number(2)), ints(1, 1, heads // groups, 1, 1), broadcast_spec="BIDIRECTIONAL"
    )
    return ops.reshape(wide, ints(0, heads, -1, width), True)


def masked(seen: Out, bias: Out | None) -> Out:
    """Return what is added to the scores, float32 `[1, 1 or heads, seq, slots]`: `bias` where `seen` is true."""
    return ops.select(seen, scalar(0.0) if bias is None else bias, scalar(HIDDEN))


def attention_in_steps(
    q: Out, keys: Out, values: Out, mask: Out, *, groups: int, scale: float, cap: float, sinks: Out | None
) -> Out:
    """Return attention with what OpenVINO's op hasn't: a cap of the scores, or sinks; shapes as that op's."""
    heads, width = (int(q.get_partial_shape()[axis].get_length()) for axis in (1, 3))
    rows = ops.reshape(q, ints(0, groups, -1, width), True)
    scores = ops.multiply(ops.matmul(rows, keys, False, True), scalar(scale))
    slots = ops.gather(ops.shape_of(keys), ints(2), number(0))
    by_head = ops.concat([ints(1, heads, -1), slots], 0)
    scores = ops.reshape(scores, by_head, False)
    if cap:
        scores = ops.multiply(ops.tanh(ops.multiply(scores, scalar(1.0 / cap))), scalar(cap))
    scores = ops.add(scores, mask)
    if sinks is None:
        shares = ops.softmax(scores, -1)
    else:
        seq = ops.gather(ops.shape_of(q), ints(2), number(0))
        column = ops.broadcast(
            ops.reshape(sinks, ints(1, heads, 1, 1), False), ops.concat([ints(1, heads), seq, ints(1)], 0)
        )
        shares = ops.softmax(ops.concat([scores, column], -1), -1)
        shares = ops.slice(shares, ints(0), slots, ints(1), ints(3))
    grouped = ops.reshape(shares, ops.concat([ints(1, groups, -1), slots], 0), False)
    mixed = ops.matmul(grouped, values, False, False)
    value_width = int(values.get_partial_shape()[3].get_length())
    return ops.reshape(mixed, ints(1, heads, -1, value_width), False)


def constant_of(data: np.ndarray, kind: ov.Type, shape: Sequence[int]) -> ov.Node:
    """Return a constant of a copy of an array's bytes, seen as `kind` of that shape."""
    return ops.constant(ov.Tensor(np.ascontiguousarray(data), ov.Shape(list(shape)), kind), shared_memory=False)
