"""What a number format is: the tensors a matrix becomes, and the arithmetic between it and them.

A format stores a matrix `[rows, width]` (rows are outputs, the width is the input axis) as named parts: `codes`, and
what gives the codes their meaning (`scales`, `zero_points`, `offsets`, `global_scale`). Everything is computed here on
runs of rows; who calls decides how many at a time. Parts in `Format.shared` belong to the whole matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright.formats.elements import Array

Parts = dict[str, Array]


class Format(ABC):
    """A way to store a weight; formats are values: equal when they store alike."""

    #: Rows that share a scale; a run of rows begins at a multiple of it.
    row_step = 1
    #: Parts that belong to the whole matrix.
    shared: frozenset[str] = frozenset()

    @property
    @abstractmethod
    def label(self) -> str:
        """The format's name as reports spell it."""

    @abstractmethod
    def specs(self, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype name and shape of every part of a matrix, codes first. 4-bit shapes count numbers, not bytes."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the format as JSON-compatible values; `format_from_json` undoes it."""


@dataclass(frozen=True)
class Grid:
    """The numbers the codes of some rows can reach: (code - zero) * scale.

    `scale` float32 `[rows, blocks]`, a block being `BlockFormat.columns` columns; `zero` the same or None for 0;
    `stored` the parts of the file that say so.
    """

    scale: Array
    zero: Array | None
    stored: Mapping[str, Array]

    def along(self, first: int, stop: int, columns: int) -> tuple[Array, Array | float]:
        """Return scale and zero for columns `[first, stop)`, `[rows, stop - first]` each."""
        index = np.arange(first, stop) // columns
        return self.scale[:, index], 0.0 if self.zero is None else self.zero[:, index]


class BlockFormat(Format):
    """A format whose codes get their scale by blocks of columns; `columns` None means that a row is one block."""

    columns: int | None

    def survey(self, largest: float) -> Parts:
        """Return the shared parts of a matrix whose largest magnitude is `largest`."""
        return {}

    def grid(self, values: Array, shared: Mapping[str, Array]) -> Grid:
        """Return where to round float32 `[rows, width]` to, from the extremes of every block."""
        blocks = to_blocks(values, self.span(values.shape[1]))
        return self.grid_between(blocks.min(axis=2), blocks.max(axis=2), shared)

    @abstractmethod
    def grid_between(self, low: Array, high: Array, shared: Mapping[str, Array]) -> Grid:
        """Return where to round blocks to whose values lie in [low, high], float32 `[rows, blocks]` each."""

    @abstractmethod
    def snap(self, values: Array, scale: Array, zero: Array | float) -> Array:
        """Return the codes nearest to `values`, as float32 of the same shape; scale and zero are broadcast to it."""

    @abstractmethod
    def assemble(self, codes: Array, grid: Grid) -> Parts:
        """Return the parts of codes float32 `[rows, width]` on a grid."""

    @abstractmethod
    def decode(self, parts: Mapping[str, Array], width: int) -> Array:
        """Return float32 `[rows, width]` of the parts of some rows (and the shared ones)."""

    def encode(self, values: Array, shared: Mapping[str, Array]) -> Parts:
        """Round float32 `[rows, width]` to the nearest codes. Raises FloatingPointError on values not finite."""
        if not np.isfinite(values).all():
            raise FloatingPointError("a weight is not finite")
        grid = self.grid(values, shared)
        return self.assemble(self.snap(values, *grid.along(0, values.shape[1], self.span(values.shape[1]))), grid)

    def span(self, width: int) -> int:
        """Return the columns of a block in a row of `width`."""
        return self.columns or width

    def blocks(self, width: int) -> int:
        """Return the number of blocks in a row of `width`."""
        return -(-width // self.span(width))


@dataclass(frozen=True)
class FloatFormat(Format):
    """A weight kept as float32, float16 or bfloat16."""

    dtype: str

    @property
    def label(self) -> str:
        return self.dtype

    def specs(self, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {"codes": (self.dtype, shape)}

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype}


@dataclass(frozen=True)
class StoredFormat:
    """A wish: a weight kept as the checkpoint stores it; resolved to a format per tensor."""

    label: str = "stored"


def to_blocks(values: Array, group: int) -> Array:
    """Return float32 `[rows, width]` as `[rows, blocks, group]`, the last block padded with zeros."""
    rows, width = values.shape
    blocks = -(-width // group)
    if blocks * group != width:
        values = np.pad(values, ((0, 0), (0, blocks * group - width)))
    return values.reshape(rows, blocks, group)


def padded(values: Array, group: int, fill: float = 0.0) -> Array:
    """Return `[rows, width]` with the last block filled up."""
    surplus = -values.shape[1] % group
    return np.pad(values, ((0, 0), (0, surplus)), constant_values=fill) if surplus else values
