"""Tensors seen another way: some rows, several behind each other, transposed, of another shape; read when asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.tensor import DTYPES, Bytes, MappedTensor, StoredTensor
from edgewright.errors import TensorMismatchError

Span = tuple[int, int]


class RowsView(StoredTensor):
    """Runs of rows of one or more tensors, in order. Integer codes of block formats stay available."""

    def __init__(self, name: str, pieces: Sequence[tuple[StoredTensor, Span]]) -> None:
        first = pieces[0][0]
        assert len({(t.dtype, tuple(t.shape[1:])) for t, _ in pieces}) == 1, name
        self.name = name
        self.dtype = first.dtype
        self.shape = (sum(stop - start for _, (start, stop) in pieces), *first.shape[1:])
        self.nbytes = sum(t.nbytes * (stop - start) // max(1, t.shape[0]) for t, (start, stop) in pieces)
        self._pieces = list(pieces)
        self._ends = np.cumsum([stop - start for _, (start, stop) in pieces])
        blocks = getattr(first, "format", None)
        if blocks is not None:
            self.format = blocks

    def raw(self, start: int, stop: int) -> Bytes:
        return np.concatenate([t.raw(a, b) for t, a, b in self._cover(start, stop)])

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        parts = [t.rows(a, b) for t, a, b in self._cover(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def parts(self, start: int, stop: int) -> Any:
        """Return the codes of rows of a block format, as its tensors do."""
        parts = [t.parts(a, b) for t, a, b in self._cover(start, stop)]  # type: ignore[attr-defined]
        if len(parts) == 1:
            return parts[0]
        offsets = None if parts[0].offsets is None else np.concatenate([p.offsets for p in parts])
        joined = [np.concatenate([getattr(p, field) for p in parts]) for field in ("codes", "scales")]
        return type(parts[0])(*joined, offsets)

    def _cover(self, start: int, stop: int) -> list[tuple[StoredTensor, int, int]]:
        """Return the pieces, and their rows, that hold rows `start` to `stop`; one empty piece for an empty range."""
        self.check_range(start, stop)
        index = min(int(np.searchsorted(self._ends, start, side="right")), len(self._pieces) - 1)
        result: list[tuple[StoredTensor, int, int]] = []
        while not result or start < stop:
            tensor, (first, last) = self._pieces[index]
            begin = int(self._ends[index]) - (last - first)
            end = min(stop, int(self._ends[index]))
            result.append((tensor, first + start - begin, first + end - begin))
            start, index = end, index + 1
        return result


class DerivedTensor(StoredTensor):
    """A float tensor whose elements are another's in another order."""

    def __init__(self, source: StoredTensor, shape: tuple[int, ...], transformed: str) -> None:
        self.name = source.name
        self.shape = shape
        # What isn't made of plain numbers is decoded; whole numbers keep their name, so that they can be refused.
        self.dtype = source.dtype if source.dtype in DTYPES else "float32"
        self.nbytes = math.prod(shape) * DTYPES[self.dtype].itemsize
        self.transformed = transformed
        self._source = source

    def raw(self, start: int, stop: int) -> Bytes:
        values = np.ascontiguousarray(self.rows(start, stop).astype(DTYPES[self.dtype]))
        return values.view(np.uint8).reshape(stop - start, math.prod(self.shape[1:]) * values.itemsize)


class Columns(DerivedTensor):
    """Matrices `[in, out]`, or `[n, in, out]`, as rows: `[picked, in]`, or those of all n one after the other.

    `picked` are the columns taken. One matrix at a time is decoded and kept while its rows are asked for.
    """

    def __init__(self, source: StoredTensor, picked: slice = slice(None)) -> None:
        *count, width, columns = source.shape
        self._picked = picked
        self._per = len(range(columns)[picked])
        super().__init__(source, (math.prod(count) * self._per, width), "transposed")
        self._lock = threading.Lock()
        self._kept: tuple[int, npt.NDArray[Any]] | None = None

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        self.check_range(start, stop)
        parts = []
        while start < stop:
            index, first = divmod(start, self._per)
            last = min(stop - index * self._per, self._per)
            parts.append(self._matrix(index)[first:last])
            start = index * self._per + last
        if stop == self.shape[0]:
            self._kept = None
        return np.concatenate(parts) if parts else np.zeros((0, self.shape[1]), np.float32)

    def _matrix(self, index: int) -> npt.NDArray[Any]:
        with self._lock:
            if self._kept is None or self._kept[0] != index:
                stacked = len(self._source.shape) == 3
                values = self._source.rows(index, index + 1)[0] if stacked else self._source.read()
                self._kept = (index, np.ascontiguousarray(values[:, self._picked].T))
            return self._kept[1]


class Flattened(DerivedTensor):
    """Small rows `[n, m]` as one vector of their picked columns."""

    def __init__(self, source: StoredTensor, picked: slice = slice(None)) -> None:
        self._picked = picked
        super().__init__(source, (source.shape[0] * len(range(source.shape[1])[picked]),), "flattened")

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        self.check_range(start, stop)
        return np.ascontiguousarray(self._source.read()[:, self._picked].reshape(-1)[start:stop])


class Reshaped(DerivedTensor):
    """A tensor of another shape over the same elements; reads the rows of the source that hold what is asked for."""

    def __init__(self, source: StoredTensor, shape: tuple[int, ...]) -> None:
        super().__init__(source, shape, "reshaped")

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        self.check_range(start, stop)
        mine, theirs = math.prod(self.shape[1:]), math.prod(self._source.shape[1:])
        first = start * mine // max(theirs, 1)
        values = self._source.rows(first, -(-stop * mine // max(theirs, 1))).reshape(-1)
        offset = start * mine - first * theirs
        return values[offset : offset + (stop - start) * mine].reshape(stop - start, *self.shape[1:])


def reshaped(tensor: StoredTensor, shape: tuple[int, ...]) -> StoredTensor:
    """Return `tensor` with another shape; raises TensorMismatchError when the numbers of elements differ."""
    if math.prod(shape) != math.prod(tensor.shape):
        raise TensorMismatchError(
            f"The checkpoint's tensors don't fit its config: {tensor.name} has the shape {list(tensor.shape)}, "
            f"which can't be {list(shape)}."
        )
    return tensor.reshaped(shape) if isinstance(tensor, MappedTensor) else Reshaped(tensor, shape)
