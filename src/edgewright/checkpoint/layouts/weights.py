"""Quantized linears of other tools as encoded tensors: shapes are checked, values stay what they were.

Every function takes the tensors of one module and returns an `EncodedTensor` of one of our formats. What a format has
no place for is spread out, never rounded: a scale of a whole row becomes the same scale in each of its blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.tensor import DTYPES, StoredTensor
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import Array, IntFormat, LinearInput, MxFormat, Nvfp4Format, Parts, ScaledFormat, pack

#: Gives codes, scales or zero points of rows [start, stop).
Rows = Callable[[int, int], Array]
#: Blocks that integer formats may have: powers of two in this range.
SMALLEST, LARGEST, USUAL = 16, 256, 128
E8M0_DTYPES = ("uint8", "float8_e8m0fnu")
FLOATS = ("float32", "bfloat16", "float16")


def need_shape(tensor: StoredTensor, *shapes: Sequence[int]) -> None:
    """Raise CheckpointError unless a tensor has one of the shapes."""
    if tuple(tensor.shape) not in {tuple(shape) for shape in shapes}:
        wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(tuple(shape) for shape in shapes))
        raise CheckpointError(
            f"The tensor {tensor.name} has the shape {list(tensor.shape)} where {wanted} is needed: the checkpoint's "
            "config and its tensors disagree."
        )


def scalar(tensor: StoredTensor) -> Array:
    """Return the one positive finite number of a tensor as float32 `[1]`."""
    need_shape(tensor, (), (1,), (1, 1))
    value: Array = np.array(tensor.read(), np.float32).reshape(1)
    if not (np.isfinite(value).all() and (value > 0).all()):
        raise CheckpointError(
            f"The scale {tensor.name} is {float(value[0]):g} where a positive number is needed: the checkpoint is "
            "damaged, take another copy."
        )
    return value


def stored_array(tensor: StoredTensor, start: int, stop: int) -> Array:
    """Return rows of a tensor in the dtype it is stored in."""
    data = np.ascontiguousarray(tensor.raw(start, stop))
    return data.reshape(-1).view(DTYPES[tensor.dtype]).reshape(stop - start, *tensor.shape[1:])


def int_weight(
    name: str,
    shape: tuple[int, int],
    bits: int,
    group: int | None,
    codes: Rows,
    scales: Rows,
    zeros: Rows | None,
    *,
    parts: Iterable[StoredTensor],
    order: Array | None = None,
    half_scales: bool = False,
    linear_input: LinearInput | None = None,
) -> EncodedTensor:
    """Return a weight of `bits`-bit codes, stored unsigned.

    `codes` gives uint8 `[rows, width]`, `scales` float32 and `zeros` uint8 `[rows, groups]`; without `zeros` the zero
    point is 2^(bits - 1). `group` columns share a scale, None for a row. `order` puts the columns in another order.
    """
    width = shape[1]
    block, repeat = block_of(name, group, width)
    wide = 4 if bits <= 4 else 8
    fmt = IntFormat(wide, block, zeros is not None, scales="float16" if half_scales else "float32")
    blocks = fmt.blocks(width)
    centre = 0 if zeros is not None else (1 << (wide - 1)) - (1 << (bits - 1))

    def spread(values: Array) -> Array:
        return np.repeat(values, blocks if group is None or group >= width else repeat, axis=1)[:, :blocks]

    def read(start: int, stop: int) -> Parts:
        found = codes(start, stop) + np.uint8(centre)
        found = found if order is None else found[:, order]
        scale = spread(scales(start, stop))
        zero = None if zeros is None else spread(zeros(start, stop))
        if blocks * block != width:
            last = np.full((stop - start, 1), fmt.levels // 2, np.uint8) if zero is None else zero[:, -1:]
            found = np.concatenate([found, np.repeat(last, blocks * block - width, axis=1)], axis=1)
        result = {"codes": pack(found.reshape(stop - start, blocks, block), wide), "scales": scale.astype(fmt.scales)}
        return result if zero is None else {**result, "zero_points": pack(zero, wide)}

    return EncodedTensor(name, shape, fmt, read, nbytes=_bytes(parts), linear_input=linear_input)


def block_of(name: str, group: int | None, width: int) -> tuple[int, int]:
    """Return the block of a format that holds groups of `group` columns, and how many blocks a group is.

    Raises UnsupportedFormatError on groups that are no multiple of the smallest block.
    """
    if group is None or group >= width:
        block = min(USUAL, max(SMALLEST, 1 << (width - 1).bit_length()))
        return (group, 1) if group is not None and group == block else (block, -(-width // block))
    block = math.gcd(group, LARGEST)
    if block < SMALLEST:
        raise UnsupportedFormatError(
            f"{name} has groups of {group} columns, which aren't a multiple of {SMALLEST}: no format here holds that "
            "without a second rounding, take the unquantized checkpoint."
        )
    return block, group // block


def scaled_weight(
    weight: StoredTensor,
    element: str,
    scope: str,
    scales: Rows,
    *,
    name: str | None = None,
    shape: tuple[int, int] | None = None,
    codes: Rows | None = None,
    parts: Iterable[StoredTensor],
    linear_input: LinearInput | None = None,
) -> EncodedTensor:
    """Return an int8 or FP8 weight; `scales` gives float32 of `[1]`, `[rows, 1]` or the blocks of some rows."""
    fmt = ScaledFormat(element, scope)
    size = shape or (weight.shape[0], weight.shape[1])
    read_codes = codes or functools.partial(stored_array, weight)

    def read(start: int, stop: int) -> Parts:
        found = read_codes(start, stop)
        if element == "e4m3":
            need_numbers(weight.name, found)
        return {"codes": found, "scales": scales(start, stop)}

    return EncodedTensor(name or weight.name, size, fmt, read, nbytes=_bytes(parts), linear_input=linear_input)


def need_numbers(name: str, codes: Array) -> None:
    """Raise CheckpointError on E4M3 codes that are no number."""
    if ((codes.view(np.uint8) & 127) == 127).any():
        raise CheckpointError(f"{name} holds FP8 codes that are no number: the checkpoint is damaged.")


def scale_rows(tensor: StoredTensor, fmt: str, rows: int, width: int) -> Rows:
    """Return the scales of a scope as a reader of rows; checks the shape. A tensor or channel scale may lack axes."""
    if fmt == "tensor":
        value = scalar(tensor)
        return lambda start, stop: value
    if fmt == "channel":
        need_shape(tensor, (rows, 1), (rows,))
        return lambda start, stop: tensor.rows(start, stop).reshape(-1, 1)
    blocks = -(-width // 128)
    if fmt == "row-block":
        need_shape(tensor, (rows, blocks))
        return tensor.rows
    tall = -(-rows // 128)
    need_shape(tensor, (tall, blocks), (tall, 1, blocks, 1), *([(), (1,)] if tall == blocks == 1 else []))

    def block_rows(start: int, stop: int) -> Array:
        if not tensor.shape:
            return np.array(tensor.read(), np.float32).reshape(1, 1)[: -(-stop // 128) - start // 128]
        return tensor.rows(start // 128, -(-stop // 128)).reshape(-1, blocks)

    return block_rows


def nvfp4_weight(
    name: str,
    packed: StoredTensor,
    scale: StoredTensor,
    global_scale: Array,
    *,
    linear_input: LinearInput | None = None,
) -> EncodedTensor:
    """Return an NVFP4 weight of codes uint8 `[rows, width / 2]`, low half first, and E4M3 scales `[rows, blocks]`."""
    rows, width = _packed_shape(packed)
    need_shape(scale, (rows, -(-width // 16)))

    def read(start: int, stop: int) -> Parts:
        return {
            "codes": _padded(stored_array(packed, start, stop), 8),
            "scales": stored_array(scale, start, stop),
            "global_scale": global_scale,
        }

    return EncodedTensor(
        name, (rows, width), Nvfp4Format(), read, nbytes=packed.nbytes + scale.nbytes + 4, linear_input=linear_input
    )


def mx_weight(
    name: str, codes: StoredTensor, scale: StoredTensor, element: str, *, linear_input: LinearInput | None = None
) -> EncodedTensor:
    """Return an MXFP8 (codes E4M3 `[rows, width]`) or MXFP4 (uint8, low half first) weight with E8M0 scales."""
    rows, width = _packed_shape(codes) if element == "e2m1" else (codes.shape[0], codes.shape[1])
    need_shape(scale, (rows, -(-width // 32)))

    def read(start: int, stop: int) -> Parts:
        found = stored_array(codes, start, stop)
        if element == "e4m3":
            need_numbers(codes.name, found)
            found = _padded(found.view(np.uint8), 32).view(found.dtype)
        else:
            found = _padded(found, 16)
        scales = np.ascontiguousarray(scale.raw(start, stop)).reshape(-1).view(ml_dtypes.float8_e8m0fnu)
        return {"codes": found, "scales": scales.reshape(stop - start, scale.shape[1])}

    fmt = MxFormat(element)
    return EncodedTensor(name, (rows, width), fmt, read, nbytes=codes.nbytes + scale.nbytes, linear_input=linear_input)


def _packed_shape(packed: StoredTensor) -> tuple[int, int]:
    rows, half = need_matrix(packed)
    return rows, 2 * half


def _padded(codes: Array, block: int) -> Array:
    surplus = -codes.shape[1] % block
    return np.pad(codes, ((0, 0), (0, surplus))) if surplus else codes


def _bytes(parts: Iterable[StoredTensor]) -> int:
    return sum(tensor.nbytes for tensor in parts)


def need_matrix(tensor: StoredTensor) -> tuple[int, int]:
    """Return rows and width of a matrix; raises CheckpointError on another number of axes or an empty one."""
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise CheckpointError(f"The tensor {tensor.name} has the shape {list(tensor.shape)} where a matrix is needed.")
    return tensor.shape[0], tensor.shape[1]


def json_int(value: Any, what: str) -> int:
    """Return a whole number of a config; raises CheckpointError on anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"The quantization_config gives {what} as {value!r} where a whole number is needed.")
    return value
