"""Tensors seen another way: some rows, several behind each other, transposed, of another shape; read when asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.tensor import DTYPES, Bytes, MappedTensor, StoredTensor
from edgewright.errors import TensorMismatchError, UnsupportedFormatError
from edgewright.formats import BlockFormat, Parts, ScaledFormat

Span = tuple[int, int]


class RowsView(StoredTensor):
    """Runs of rows of one or more tensors, in order. Integer codes of block formats stay available.

    `in_place` puts columns for a reordered input back in their places, which gives codes up; else that is done only
    where the orders differ.
    """

    def __init__(self, name: str, pieces: Sequence[tuple[StoredTensor, Span]], *, in_place: bool = False) -> None:
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
        self._put_in_place(always=in_place)
        self._take_encoding()

    def _take_encoding(self) -> None:
        """Keep the encoding of the pieces where it survives being cut and joined.

        Pieces encoded alike keep it when they are cut between the rows that share a scale and agree in what belongs to
        all rows. Else int8 and FP8 get the same scales row by row, and other encodings are given up for exact floats.
        """
        tensors = [tensor for tensor, _ in self._pieces]
        self._take_input(tensors)
        self.decoded = next((tensor.decoded for tensor in tensors if tensor.decoded is not None), None)
        encoding = next((tensor.encoding for tensor in tensors if tensor.encoding is not None), None)
        if encoding is None:
            return
        self._by_row = not self._keeps(encoding)
        if not self._by_row:
            self.encoding = encoding
        elif isinstance(encoding, ScaledFormat) and all(tensor.encoding == encoding for tensor in tensors):
            self.encoding = ScaledFormat(encoding.element, "row-block" if encoding.columns else "channel")
        else:
            self.dtype, self.decoded = "float32", encoding

    def _keeps(self, encoding: BlockFormat) -> bool:
        """Tell whether all pieces have an encoding and, joined, have it still."""
        tensors = [tensor for tensor, _ in self._pieces]
        if any(tensor.encoding != encoding for tensor in tensors):
            return False
        step = encoding.row_step
        if any(start % step or (stop % step and stop != t.shape[0]) for t, (start, stop) in self._pieces):
            return False
        if any((stop - start) % step for _, (start, stop) in self._pieces[:-1]):
            return False
        common = [{kind: t.encoded(0, 0)[kind] for kind in encoding.shared} for t in tensors]
        return all(np.array_equal(common[0][kind], other[kind]) for other in common for kind in encoding.shared)

    def _put_in_place(self, *, always: bool) -> None:
        """Decode pieces whose inputs are put in orders of their own, so that they can be joined."""
        inputs = [tensor.input for tensor, _ in self._pieces]
        differ = any(given is not inputs[0] for given in inputs)
        if (always or differ) and all(given is None or given.reorders for given in inputs):
            self._pieces = [(t if t.input is None else InPlace(t), span) for t, span in self._pieces]

    def _take_input(self, tensors: Sequence[StoredTensor]) -> None:
        """Keep what the input goes through where it is the same for all; roundings with other scales are given up.

        Raises UnsupportedFormatError where inputs are multiplied or put in order differently.
        """
        self.input = tensors[0].input
        self.unrounded = any(tensor.unrounded for tensor in tensors)
        if all(tensor.input is self.input for tensor in tensors):
            return
        given = [tensor.input for tensor in tensors if tensor.input is not None]
        if any(steps.multiply is not None or steps.permutation is not None for steps in given):
            raise UnsupportedFormatError(
                f"{self.name} joins tensors that were quantized for inputs of different scales or orders: "
                "convert the checkpoint to plain floats first."
            )
        self.input, self.unrounded = None, True

    def encoded(self, start: int, stop: int) -> Parts:
        assert self.encoding is not None
        read = _by_rows if self._by_row else _whole
        pieces = [read(t, a, b) for t, a, b in self._cover(start, stop)]
        return {
            kind: part if kind in self.encoding.shared else np.concatenate([piece[kind] for piece in pieces])
            for kind, part in pieces[0].items()
        }

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


def _whole(tensor: StoredTensor, start: int, stop: int) -> Parts:
    return tensor.encoded(start, stop)


def _by_rows(tensor: StoredTensor, start: int, stop: int) -> Parts:
    """Return int8 or FP8 codes of any rows, each row with its own scales."""
    encoding = tensor.encoding
    assert isinstance(encoding, ScaledFormat)
    first = start - start % encoding.row_step
    parts = tensor.encoded(first, stop)
    scales = encoding.grid_of(parts["scales"], stop - first).scale
    return {"codes": parts["codes"][start - first :], "scales": scales[start - first :]}


class InPlace(StoredTensor):
    """A matrix for a reordered input as floats for the input as it is: its columns are back in their places."""

    def __init__(self, source: StoredTensor) -> None:
        assert source.input is not None
        assert source.input.permutation is not None
        self.name, self.shape, self.dtype = source.name, source.shape, "float32"
        self.nbytes = 4 * math.prod(source.shape)
        self.transformed = "columns in their places"
        self.decoded = source.decoded or source.encoding
        self._source, self._order = source, source.input.permutation

    def raw(self, start: int, stop: int) -> Bytes:
        return self.rows(start, stop).view(np.uint8).reshape(stop - start, 4 * self.shape[1])

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        values = self._source.rows(start, stop)
        result = np.empty_like(values)
        result[:, self._order] = values
        return result


class EveryNth(StoredTensor):
    """The rows `first`, `first + step`, ... of a tensor; codes stay available where rows have scales of their own."""

    def __init__(self, name: str, source: StoredTensor, first: int, step: int) -> None:
        self.name, self.dtype, self.input = name, source.dtype, source.input
        self.shape = (len(range(first, source.shape[0], step)), *source.shape[1:])
        self.nbytes = source.nbytes * self.shape[0] // max(1, source.shape[0])
        self.decoded, self.unrounded = source.decoded, source.unrounded
        self._source, self._first, self._step = source, first, step
        if source.encoding is not None and source.encoding.row_step == 1:
            self.encoding = source.encoding
        elif source.encoding is not None:
            self.decoded, self.dtype = source.encoding, "float32"

    def encoded(self, start: int, stop: int) -> Parts:
        assert self.encoding is not None
        parts = self._source.encoded(*self._span(start, stop))
        shared = self.encoding.shared
        return {k: part if k in shared else np.ascontiguousarray(part[:: self._step]) for k, part in parts.items()}

    def raw(self, start: int, stop: int) -> Bytes:
        return np.ascontiguousarray(self._source.raw(*self._span(start, stop))[:: self._step])

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        return np.ascontiguousarray(self._source.rows(*self._span(start, stop))[:: self._step])

    def _span(self, start: int, stop: int) -> Span:
        """Return the rows of the source from row `start` to the last before `stop`."""
        self.check_range(start, stop)
        begin = self._first + start * self._step
        return (begin, begin + (stop - start - 1) * self._step + 1) if stop > start else (0, 0)


class DerivedTensor(StoredTensor):
    """A float tensor whose elements are another's in another order; an encoding of that one is given up."""

    def __init__(self, source: StoredTensor, shape: tuple[int, ...], transformed: str) -> None:
        self.name = source.name
        self.shape = shape
        # What isn't made of plain numbers is decoded; whole numbers keep their name, so that they can be refused.
        self.dtype = source.dtype if source.dtype in DTYPES else "float32"
        self.nbytes = math.prod(shape) * DTYPES[self.dtype].itemsize
        self.transformed = transformed
        self.decoded = source.decoded or source.encoding
        self.unrounded = source.unrounded or source.input is not None
        if source.input is not None and (source.input.multiply is not None or source.input.permutation is not None):
            raise UnsupportedFormatError(
                f"{source.name} was quantized for an input of other scales or another order, which a {transformed} "
                "weight can't have: convert the checkpoint to plain floats first."
            )
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
