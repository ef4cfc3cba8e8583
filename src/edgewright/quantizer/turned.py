"""Weights multiplied by Hadamard matrices, read a run of rows at a time like all others."""

from __future__ import annotations

import functools

import numpy as np

from edgewright.formats import Array
from edgewright.graph import Weight


def hadamard_size(width: int) -> int:
    """Return the largest power of two that divides a width."""
    return width & -width


@functools.cache
def hadamard(size: int) -> Array:
    """Return the orthonormal, symmetric Hadamard matrix float32 `[size, size]` of Sylvester's construction."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    result: Array = (matrix / np.sqrt(size)).astype(np.float32)
    return result


class Turned(Weight):
    """A weight whose columns are multiplied by `by` and turned in blocks of `columns`, its rows in blocks of `rows`."""

    def __init__(
        self,
        source: Weight,
        *,
        rows: int | None = None,
        columns: int | None = None,
        by: Array | None = None,
        name: str | None = None,
    ) -> None:
        self.name, self.shape = name or source.name, source.shape
        self.plus = getattr(source, "plus", np.float32(0))
        self._source, self._rows, self._columns, self._by = source, rows, columns, by

    def rows(self, start: int, stop: int) -> Array:
        step = self._rows or 1
        first, last = start // step * step, -(-stop // step) * step
        values = self._source.rows(first, last)
        shape = values.shape
        if self._by is not None:
            values = values * self._by
        if self._columns is not None:
            values = values.reshape(-1, self._columns) @ hadamard(self._columns)
        if self._rows is not None:
            values = np.matmul(hadamard(step), values.reshape((last - first) // step, step, -1))
        return np.ascontiguousarray(values.reshape(shape)[start - first : stop - first], dtype=np.float32)


class Ones(Weight):
    """A norm's weight after it was moved elsewhere."""

    def __init__(self, source: Weight) -> None:
        self.name, self.shape = source.name, source.shape
        self.plus = getattr(source, "plus", np.float32(0))

    def rows(self, start: int, stop: int) -> Array:
        return np.ones((stop - start, *self.shape[1:]), np.float32)
