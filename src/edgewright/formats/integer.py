"""Integer weight formats: codes in blocks along the input axis, a scale per block, optionally a zero point per block.

Layout (the one of `ops.quantized`): codes uint8 `[rows, blocks, group * bits / 8]`, low nibble first; scales
`[rows, blocks]`; zero points uint8 `[rows, ceil(blocks * bits / 8)]`, or absent for 2^(bits - 1).
value = (code - zero_point) * scale. A last block that the width does not fill is padded with the zero point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright.formats.base import BlockFormat, Grid, Parts, to_blocks
from edgewright.formats.elements import Array, pack, unpack


@dataclass(frozen=True)
class IntFormat(BlockFormat):
    """A weight as `bits`-bit codes in blocks of `group`, with a zero point per block or none.

    `int8_activations` lets a kernel round its inputs to int8 in blocks of `group`, which is faster and adds noise.
    `scales` is the dtype the scales are stored in: float32, or float16, which are half as large and widened at load.
    """

    bits: int
    group: int
    zero_point: bool
    int8_activations: bool = True
    scales: str = "float32"

    @property
    def columns(self) -> int:  # type: ignore[override]
        """Columns of a block."""
        return self.group

    @property
    def label(self) -> str:
        words = [f"int{self.bits} group {self.group}"]
        words += ["zero-point"] if self.zero_point else []
        words += [] if self.int8_activations else ["float activations"]
        words += [] if self.scales == "float32" else [f"{self.scales} scales"]
        return " ".join(words)

    @property
    def levels(self) -> int:
        """Number of codes."""
        return 1 << self.bits

    def codes_shape(self, rows: int, width: int) -> tuple[int, int, int]:
        """Shape of the packed codes."""
        return rows, self.blocks(width), self.group * self.bits // 8

    def zero_points_shape(self, rows: int, width: int) -> tuple[int, int]:
        """Shape of the packed zero points."""
        return rows, -(-self.blocks(width) * self.bits // 8)

    def specs(self, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        rows, width = shape
        specs: dict[str, tuple[str, tuple[int, ...]]] = {
            "codes": ("uint8", self.codes_shape(rows, width)),
            "scales": (self.scales, (rows, self.blocks(width))),
        }
        if self.zero_point:
            specs["zero_points"] = ("uint8", self.zero_points_shape(rows, width))
        return specs

    def to_json(self) -> dict[str, Any]:
        """Return the format as JSON-compatible values; the dtype of the scales only where it isn't float32."""
        values = dict(vars(self))
        if self.scales == "float32":
            del values["scales"]
        return values

    def grid_between(self, low: Array, high: Array, shared: Mapping[str, Array]) -> Grid:
        """Return where to round to. Without zero points the element of largest magnitude of a block is put on the
        lowest code, so that all codes are used. Raises FloatingPointError when a scale is not finite."""
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise FloatingPointError("a weight is not finite")
        if self.zero_point:
            low, high = np.minimum(low, 0), np.maximum(high, 0)
            scale = self.rounded_scales((high - low) / np.float32(self.levels - 1))
            zero = np.clip(np.rint(-low / _safe(scale)), 0, self.levels - 1)
        else:
            extreme = np.where(-low > high, low, high)
            scale = self.rounded_scales(extreme / np.float32(-(self.levels // 2)))
            zero = np.full_like(scale, self.levels // 2)
        return self.grid_of(scale, zero)

    def grid_of(self, scale: Array, zero: Array) -> Grid:
        """Return the grid of given scales and zero points, float32 `[rows, blocks]` each."""
        scale = self.rounded_scales(scale)
        stored = {"scales": scale.astype(self.scales)}
        if self.zero_point:
            stored["zero_points"] = pack(zero.astype(np.uint8), self.bits)
        return Grid(scale, zero, stored)

    def snap(self, values: Array, scale: Array, zero: Array | float) -> Array:
        codes: Array = values * (1 / _safe(scale))
        codes += zero
        np.rint(codes, out=codes)
        return np.clip(codes, 0, self.levels - 1, out=codes)

    def assemble(self, codes: Array, grid: Grid) -> Parts:
        rows, width = codes.shape
        blocks = self.blocks(width)
        unpacked = codes.astype(np.uint8)
        if blocks * self.group != width:
            assert grid.zero is not None
            filled = np.repeat(grid.zero.astype(np.uint8)[:, -1:], blocks * self.group - width, axis=1)
            unpacked = np.concatenate([unpacked, filled], axis=1)
        return {"codes": pack(unpacked.reshape(rows, blocks, self.group), self.bits), **grid.stored}

    def encode(self, values: Array, shared: Mapping[str, Array]) -> Parts:
        """Round to the nearest codes, then refit the scales to them by least squares."""
        codes, scales, zeros = quantize(values, self)
        parts: Parts = {"codes": pack(codes, self.bits), "scales": scales.astype(self.scales)}
        return parts if zeros is None else {**parts, "zero_points": pack(zeros, self.bits)}

    def decode(self, parts: Mapping[str, Array], width: int) -> Array:
        values = dequantize(parts["codes"], parts["scales"], parts.get("zero_points"), self, width)
        if "offsets" in parts:
            values += np.repeat(parts["offsets"], self.group, axis=1)[:, :width]
        return values

    def rounded_scales(self, scale: Array) -> Array:
        """Return float32 scales as they are after having been stored."""
        with np.errstate(over="ignore"):
            rounded = scale.astype(self.scales).astype(np.float32)
        if not np.isfinite(rounded).all():
            raise FloatingPointError(f"a block's scale is not finite in {self.scales}")
        return rounded


def quantize(values: Array, fmt: IntFormat) -> tuple[Array, Array, Array | None]:
    """Round float32 `[rows, width]` to the nearest codes.

    Returns unpacked codes uint8 `[rows, blocks, group]`, scales float32 `[rows, blocks]`, and zero points uint8
    `[rows, blocks]` or None. After rounding the scale is refitted to the codes by least squares.
    Raises FloatingPointError when a value is not finite.
    """
    w = to_blocks(values, fmt.group)
    grid = fmt.grid(values, {})
    assert grid.zero is not None
    codes = fmt.snap(w, grid.scale[..., None], grid.zero[..., None])
    scale = fmt.rounded_scales(_refit(w, codes, grid.zero, grid.scale))
    return codes.astype(np.uint8), scale, grid.zero.astype(np.uint8) if fmt.zero_point else None


def _safe(scale: Array) -> Array:
    return np.where(scale != 0, scale, np.float32(1))


def _refit(w: Array, codes: Array, zero: Array, scale: Array) -> Array:
    """Return the scales that minimise the squared error for the given codes."""
    centred = codes - zero[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        dot = np.einsum("rbg,rbg->rb", w, centred)
    norm = np.einsum("rbg,rbg->rb", centred, centred)
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = dot / np.where(norm > 0, norm, 1)
    return np.where((norm > 0) & np.isfinite(fitted), fitted, scale).astype(np.float32)


def dequantize(codes: Array, scales: Array, zero_points: Array | None, fmt: IntFormat, width: int) -> Array:
    """Return float32 `[rows, width]` of packed tensors."""
    unpacked = unpack(codes, fmt.bits).astype(np.float32)
    if zero_points is None:
        zero: Array | np.float32 = np.float32(fmt.levels // 2)
    else:
        zero = unpack(zero_points, fmt.bits)[:, : scales.shape[1], None].astype(np.float32)
    values = (unpacked - zero) * scales.astype(np.float32)[..., None]
    return np.ascontiguousarray(values.reshape(len(values), -1)[:, :width])
