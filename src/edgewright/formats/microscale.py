"""Block formats with narrow scales: NVFP4 (blocks of 16, E4M3 scales, one float32 scale) and the OCP MX formats.

NVFP4: value = code * (block_scale * global_scale), with global_scale = largest / (6 * 448), so that the largest block
scale is 448, and block_scale = largest of the block / (6 * global_scale) in E4M3, no less than its smallest number.
MX: value = code * 2^e, blocks of 32, e stored in E8M0 (bias 127, 255 is NaN); e = floor(log2(largest)) less the
element's own largest exponent (OCP microscaling specification 1.0, section 6.3). Other tools round e up, so that no
number saturates; what they wrote is read alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from edgewright.formats.base import BlockFormat, Grid, Parts, padded, to_blocks
from edgewright.formats.elements import E2M1, E4M3, ELEMENTS, Array, Element

#: The smallest block scale that is not zero: E4M3's smallest number.
_SMALLEST_E4M3 = np.float32(2.0**-9)
#: The smallest global scale: times the smallest block scale it is a normal number.
_SMALLEST_GLOBAL = np.float32(2.0**-117)


class _NarrowFormat(BlockFormat):
    """What NVFP4 and MX have in common: rows padded to whole blocks, codes of one element."""

    columns: int

    @property
    def number(self) -> Element:
        """What a code stands for."""
        raise AssertionError

    def _codes_spec(self, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        return self.number.dtype, (shape[0], self.blocks(shape[1]) * self.columns)

    def snap(self, values: Array, scale: Array, zero: Array | float) -> Array:
        return self.number.snap(values / scale)

    def assemble(self, codes: Array, grid: Grid) -> Parts:
        return {"codes": self.number.codes(padded(codes, self.columns)), **grid.stored}

    def _decode(self, codes: Array, scale: Array, width: int) -> Array:
        blocks = to_blocks(self.number.values(codes), self.columns) * scale[:, :, None]
        return np.ascontiguousarray(blocks.reshape(len(codes), -1)[:, :width])


@dataclass(frozen=True)
class Nvfp4Format(_NarrowFormat):
    """E2M1 codes, an E4M3 scale for 16 columns of a row, a float32 scale for the matrix."""

    columns = 16
    shared = frozenset({"global_scale"})

    @property
    def label(self) -> str:
        return "nvfp4"

    @property
    def number(self) -> Element:
        return E2M1

    def specs(self, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        scales = (shape[0], self.blocks(shape[1]))
        return {
            "codes": self._codes_spec(shape),
            "scales": ("float8_e4m3fn", scales),
            "global_scale": ("float32", (1,)),
        }

    def to_json(self) -> dict[str, Any]:
        return {"element": "nvfp4"}

    def survey(self, largest: float) -> Parts:
        scale = np.maximum(np.float32(largest) / np.float32(E2M1.largest * E4M3.largest), _SMALLEST_GLOBAL)
        return {"global_scale": np.array([scale if largest else 1.0], np.float32)}

    def grid_between(self, low: Array, high: Array, shared: Mapping[str, Array]) -> Grid:
        whole = shared["global_scale"][0]
        scales = np.maximum(-low, high) / (np.float32(E2M1.largest) * whole)
        # A block of small numbers keeps a scale; one of zeros alone needs any that isn't zero.
        scales = np.where(scales > 0, np.maximum(E4M3.snap(scales), _SMALLEST_E4M3), np.float32(1))
        return self.grid_of(scales.astype(ml_dtypes.float8_e4m3fn), shared)

    def grid_of(self, scales: Array, shared: Mapping[str, Array]) -> Grid:
        """Return the grid of stored block scales."""
        whole = shared["global_scale"]
        return Grid(scales.astype(np.float32) * whole[0], None, {"scales": scales, "global_scale": whole})

    def decode(self, parts: Mapping[str, Array], width: int) -> Array:
        return self._decode(parts["codes"], parts["scales"].astype(np.float32) * parts["global_scale"][0], width)


@dataclass(frozen=True)
class MxFormat(_NarrowFormat):
    """E4M3 (mxfp8) or E2M1 (mxfp4) codes, a power of two in E8M0 for 32 columns of a row."""

    element: str
    columns = 32

    @property
    def label(self) -> str:
        return f"mxfp{self.number.bits}"

    @property
    def number(self) -> Element:
        return ELEMENTS[self.element]

    def specs(self, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        scales = ("float8_e8m0fnu", (shape[0], self.blocks(shape[1])))
        return {"codes": self._codes_spec(shape), "scales": scales}

    def to_json(self) -> dict[str, Any]:
        return {"element": f"mx{self.element}"}

    def grid_between(self, low: Array, high: Array, shared: Mapping[str, Array]) -> Grid:
        largest = np.maximum(-low, high)
        _, exponent = np.frexp(largest)  # largest = m * 2^exponent, m in [0.5, 1)
        own = int(np.floor(np.log2(self.number.largest)))
        codes = np.where(largest > 0, np.clip(exponent - 1 - own + 127, 0, 254), 127).astype(np.uint8)
        return self.grid_of(codes.view(ml_dtypes.float8_e8m0fnu))

    def grid_of(self, scales: Array) -> Grid:
        """Return the grid of stored block scales."""
        return Grid(scales.astype(np.float32), None, {"scales": scales})

    def decode(self, parts: Mapping[str, Array], width: int) -> Array:
        return self._decode(parts["codes"], parts["scales"].astype(np.float32), width)
