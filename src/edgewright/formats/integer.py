"""Integer weight formats: codes in blocks along the input axis, a scale per block, optionally a zero point per block.

Layout (the one of `ops.quantized`): codes uint8 `[rows, blocks, group * bits / 8]`, low nibble first; scales float32
`[rows, blocks]`; zero points uint8 `[rows, ceil(blocks * bits / 8)]`, or absent for 2^(bits - 1).
value = (code - zero_point) * scale. A last block that the width does not fill is padded with the zero point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class FloatFormat:
    """A weight kept as float32 or float16."""

    dtype: str

    @property
    def label(self) -> str:
        """The format's name as recipes and reports spell it."""
        return self.dtype


@dataclass(frozen=True)
class IntFormat:
    """A weight as `bits`-bit codes in blocks of `group`, with a zero point per block or none.

    `int8_activations` lets a kernel round its inputs to int8 in blocks of `group`, which is faster and adds noise.
    """

    bits: int
    group: int
    zero_point: bool
    int8_activations: bool = True

    @property
    def label(self) -> str:
        """The format's name as reports spell it."""
        words = [f"int{self.bits} group {self.group}"]
        words += ["zero-point"] if self.zero_point else []
        words += [] if self.int8_activations else ["float activations"]
        return " ".join(words)

    @property
    def levels(self) -> int:
        """Number of codes."""
        return 1 << self.bits

    def blocks(self, width: int) -> int:
        """Blocks per row of `width` elements."""
        return -(-width // self.group)

    def codes_shape(self, rows: int, width: int) -> tuple[int, int, int]:
        """Shape of the packed codes."""
        return rows, self.blocks(width), self.group * self.bits // 8

    def zero_points_shape(self, rows: int, width: int) -> tuple[int, int]:
        """Shape of the packed zero points."""
        return rows, -(-self.blocks(width) * self.bits // 8)


@dataclass(frozen=True)
class StoredFormat:
    """A weight kept as the checkpoint stores it; resolved to one of the other formats per tensor."""

    label: str = "stored"


Format = FloatFormat | IntFormat
Wanted = Format | StoredFormat


def to_blocks(values: Array, group: int) -> Array:
    """Return float32 `[rows, width]` as `[rows, blocks, group]`, the last block padded with zeros."""
    rows, width = values.shape
    blocks = -(-width // group)
    if blocks * group != width:
        values = np.pad(values, ((0, 0), (0, blocks * group - width)))
    return values.reshape(rows, blocks, group)


def quantize(values: Array, fmt: IntFormat) -> tuple[Array, Array, Array | None]:
    """Round float32 `[rows, width]` to the nearest codes.

    Returns unpacked codes uint8 `[rows, blocks, group]`, scales float32 `[rows, blocks]`, and zero points uint8
    `[rows, blocks]` or None. Without zero points the element of largest magnitude of a block is put on the
    lowest code, so that all codes are used. After rounding the scale is refitted to the codes by least squares.
    Raises FloatingPointError when a value is not finite.
    """
    w = to_blocks(values, fmt.group)
    low, high = w.min(axis=2), w.max(axis=2)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise FloatingPointError("a weight is not finite")
    if fmt.zero_point:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / np.float32(fmt.levels - 1)
        safe = np.where(scale > 0, scale, np.float32(1))
        zero = np.clip(np.rint(-low / safe), 0, fmt.levels - 1)
    else:
        extreme = np.where(-low > high, low, high)
        scale = extreme / np.float32(-(fmt.levels // 2))
        safe = np.where(scale != 0, scale, np.float32(1))
        zero = np.full_like(scale, fmt.levels // 2)
    codes = w * (1 / safe)[..., None]
    codes += zero[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, 0, fmt.levels - 1, out=codes)
    scale = _refit(w, codes, zero, scale)
    return codes.astype(np.uint8), scale, zero.astype(np.uint8) if fmt.zero_point else None


def _refit(w: Array, codes: Array, zero: Array, scale: Array) -> Array:
    """Return the scales that minimise the squared error for the given codes."""
    centred = codes - zero[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        dot = np.einsum("rbg,rbg->rb", w, centred)
    norm = np.einsum("rbg,rbg->rb", centred, centred)
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = dot / np.where(norm > 0, norm, 1)
    return np.where((norm > 0) & np.isfinite(fitted), fitted, scale).astype(np.float32)


def pack(codes: Array, bits: int) -> Array:
    """Pack unpacked codes along the last axis; an odd count of 4-bit codes is padded with zero."""
    if bits == 8:
        return np.ascontiguousarray(codes, dtype=np.uint8)
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    packed: Array = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed


def unpack(packed: Array, bits: int) -> Array:
    """Undo `pack`: uint8 codes along the last axis (an even count for 4 bits)."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def dequantize(codes: Array, scales: Array, zero_points: Array | None, fmt: IntFormat, width: int) -> Array:
    """Return float32 `[rows, width]` of packed tensors."""
    unpacked = unpack(codes, fmt.bits).astype(np.float32)
    if zero_points is None:
        zero: Array | np.float32 = np.float32(fmt.levels // 2)
    else:
        zero = unpack(zero_points, fmt.bits)[:, : scales.shape[1], None].astype(np.float32)
    values = (unpacked - zero) * scales[..., None]
    return np.ascontiguousarray(values.reshape(len(values), -1)[:, :width])
