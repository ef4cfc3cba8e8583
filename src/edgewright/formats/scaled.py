"""Int8 and FP8 weights with float32 scales: one for the matrix, one a row (output channel), or one a block.

value = code * scale, with scale = largest magnitude of what shares it / largest code (127, or 448 for E4M3).
Blocks of 128 x 128 are those of DeepSeek's FP8 checkpoints, blocks of 1 x 128 those of FP8 embedding tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright.formats.base import BlockFormat, Grid, Parts, to_blocks
from edgewright.formats.elements import ELEMENTS, Array, Element

#: What may share a scale.
SCOPES = ("tensor", "channel", "block", "row-block")
BLOCK = 128


@dataclass(frozen=True)
class ScaledFormat(BlockFormat):
    """`element` int8 or e4m3; `scope` says who shares a scale: the tensor, a row (channel), a block of 128 x 128
    (block), or 128 columns of a row (row-block)."""

    element: str
    scope: str

    @property
    def columns(self) -> int | None:  # type: ignore[override]
        """Columns of a block; None for whole rows."""
        return BLOCK if "block" in self.scope else None

    @property
    def row_step(self) -> int:  # type: ignore[override]
        """Rows that share a scale."""
        return BLOCK if self.scope == "block" else 1

    @property
    def shared(self) -> frozenset[str]:  # type: ignore[override]
        """Parts of the whole matrix."""
        return frozenset({"scales"}) if self.scope == "tensor" else frozenset()

    @property
    def label(self) -> str:
        name = "fp8" if self.element == "e4m3" else self.element
        return f"{name} {self.scope}" + (f" {BLOCK}" if "block" in self.scope else "")

    @property
    def number(self) -> Element:
        """What a code stands for."""
        return ELEMENTS[self.element]

    def specs(self, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        rows, width = shape
        scales: dict[str, tuple[int, ...]] = {
            "tensor": (1,),
            "channel": (rows, 1),
            "block": (-(-rows // BLOCK), self.blocks(width)),
            "row-block": (rows, self.blocks(width)),
        }
        return {"codes": (self.number.dtype, shape), "scales": ("float32", scales[self.scope])}

    def to_json(self) -> dict[str, Any]:
        return {"element": self.element, "scope": self.scope}

    def survey(self, largest: float) -> Parts:
        scale = np.float32(largest) / np.float32(self.number.largest)
        return {"scales": np.array([scale or 1.0], np.float32)} if self.scope == "tensor" else {}

    def grid_between(self, low: Array, high: Array, shared: Mapping[str, Array]) -> Grid:
        if self.scope == "tensor":
            scale = np.full((len(low), 1), shared["scales"][0], np.float32)
            return Grid(scale, None, dict(shared))
        largest = np.maximum(-low, high)
        if self.scope == "block":
            starts = np.arange(0, len(low), BLOCK)
            largest = np.maximum.reduceat(largest, starts, axis=0)
        scales = largest / np.float32(self.number.largest)
        scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)
        return self.grid_of(scales, len(low))

    def grid_of(self, scales: Array, rows: int) -> Grid:
        """Return the grid of stored scales for `rows` rows that begin at a multiple of `row_step`."""
        return Grid(self._by_row(scales, rows), None, {"scales": scales})

    def snap(self, values: Array, scale: Array, zero: Array | float) -> Array:
        return self.number.snap(values / scale)

    def assemble(self, codes: Array, grid: Grid) -> Parts:
        return {"codes": self.number.codes(codes), **grid.stored}

    def decode(self, parts: Mapping[str, Array], width: int) -> Array:
        codes = self.number.values(parts["codes"])
        scale = self._by_row(parts["scales"], len(codes))
        blocks = to_blocks(codes, self.span(width)) * scale[:, :, None]
        return np.ascontiguousarray(blocks.reshape(len(codes), -1)[:, :width])

    def _by_row(self, scales: Array, rows: int) -> Array:
        if self.scope == "tensor":
            return np.full((rows, 1), scales[0], np.float32)
        return np.repeat(scales, BLOCK, axis=0)[:rows] if self.scope == "block" else scales
