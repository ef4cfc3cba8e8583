"""Tensors that stay in their file until rows of them are asked for."""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from edgewright.errors import UsageError
from edgewright.formats import BlockFormat, LinearInput, Parts

Bytes = npt.NDArray[np.uint8]

DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint64": np.dtype("<u8"),
    "uint32": np.dtype("<u4"),
    "uint16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
}
#: Bytes of a mapped file that are given back at once, and how few aren't worth it.
_PORTION, _WORTH_FORGETTING = 4 << 20, 1 << 20
FLOATING = frozenset(name for name in DTYPES if "float" in name)


class StoredTensor(ABC):
    """A tensor of a checkpoint: its header is known, its bytes are still in the file.

    `name` is the Hugging Face name, `shape` the logical shape (rows first), `dtype` a NumPy-style name or a GGUF block
    format such as `Q4_K`, `nbytes` the stored size. `transformed` is empty when the file holds the values as Hugging
    Face does; otherwise it says what was done to them on the way (`rows` and `raw` both give the result).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    transformed: str = ""
    #: How another tool quantized it, or None for plain numbers and GGUF blocks; `encoded` then gives its parts.
    encoding: BlockFormat | None = None
    #: What the input of the linear goes through, where quantizing changed that as well.
    input: LinearInput | None = None
    #: The encoding that a view had no place for: the values are exact floats, and rounding them is a second rounding.
    decoded: BlockFormat | None = None
    #: The float dtype that quantizing chose for it, where that isn't left to how it is stored.
    kept: str | None = None
    #: Whether a view had no place for how the input was to be rounded.
    unrounded: bool = False

    def encoded(self, start: int, stop: int) -> Parts:
        """Return the parts of rows `start` to `stop` in the layout of `encoding`; shared parts are whole.

        `start` is a multiple of the format's `row_step`.
        """
        raise UsageError(f"{self.name} holds plain numbers; ask for its rows.")

    @abstractmethod
    def raw(self, start: int, stop: int) -> Bytes:
        """Return the stored bytes of rows `start` to `stop` as uint8 [rows, row_bytes].

        The result may be a read-only view of the mapped file. Raises UsageError if the range is outside the tensor.
        """

    @abstractmethod
    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows `start` to `stop` along axis 0, C-contiguous; a 0-d tensor is its own row 0.

        Floating and block dtypes come as float32 (exact, except that float64 is rounded), the others as stored.
        Raises UsageError if the range is outside the tensor.
        """

    def read(self) -> npt.NDArray[Any]:
        """Return the whole tensor; dtype as `rows` gives it."""
        return self.rows(0, self.row_count)

    @property
    def row_count(self) -> int:
        """The length of axis 0; 1 for a 0-d tensor."""
        return self.shape[0] if self.shape else 1

    def check_range(self, start: int, stop: int) -> None:
        """Raise UsageError unless 0 <= start <= stop <= row_count."""
        if not 0 <= start <= stop <= self.row_count:
            raise UsageError(
                f"rows {start} to {stop} of {self.name} don't exist, it has {self.row_count}; ask for a range inside."
            )

    def __repr__(self) -> str:
        return f"<{self.name} {self.dtype}{list(self.shape)}>"


class MappedTensor(StoredTensor):
    """A tensor of plain numbers in a mapped file.

    `data` are the stored bytes, uint8 [nbytes]. `order`, if given, is the stored row of each row (int [rows]).
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: str, data: Bytes, order: npt.NDArray[np.intp] | None = None
    ):
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.nbytes = data.size
        self._data = data
        self._order = order

    def reshaped(self, shape: tuple[int, ...]) -> StoredTensor:
        """Return the same elements under another shape of as many."""
        assert self._order is None
        return MappedTensor(self.name, shape, self.dtype, self._data)

    def raw(self, start: int, stop: int) -> Bytes:
        self.check_range(start, stop)
        return take_rows(self._data, self.row_count, start, stop, self._order)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        shape = (stop - start, *self.shape[1:]) if self.shape else ()
        data = np.ascontiguousarray(self.raw(start, stop))
        values = data.reshape(-1).view(DTYPES[self.dtype])
        values = widen(values) if self.dtype in FLOATING else values.copy()
        if self._order is None:
            self._forget(start, stop)
        return values.reshape(shape if self.shape or stop > start else (0,))

    def _forget(self, start: int, stop: int) -> None:
        """Give back what lies before `stop`, once for every portion that rows are read across the end of."""
        row_bytes = self.nbytes // max(1, self.row_count)
        first, last = start * row_bytes, stop * row_bytes
        if first // _PORTION != last // _PORTION or stop == self.row_count:
            forget(self._data[first - first % _PORTION : last])


class OffsetTensor(StoredTensor):
    """A tensor whose file holds every value plus a constant; `rows` and `raw` give float32 with it taken off."""

    def __init__(self, stored: StoredTensor, offset: float):
        self.name = stored.name
        self.shape = stored.shape
        self.dtype = "float32"
        self.nbytes = 4 * math.prod(stored.shape)
        self.transformed = f"stored value minus {offset:g}"
        self._stored = stored
        self._offset = np.float32(offset)

    def raw(self, start: int, stop: int) -> Bytes:
        return self.rows(start, stop).view(np.uint8).reshape(stop - start, -1)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._stored.rows(start, stop) - self._offset


def forget(data: Bytes) -> None:
    """Let the system take back the pages of a mapped file that `data` lies in; they come again when they are read.

    Pages that were read count as this process's memory for as long as they stay mapped. Small runs are left alone.
    """
    owner: Any = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if data.nbytes < _WORTH_FORGETTING or not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    start = first - first % mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, start, first + data.nbytes - start)


def take_rows(data: Bytes, row_count: int, start: int, stop: int, order: npt.NDArray[np.intp] | None) -> Bytes:
    """Return rows of a flat buffer as uint8 [stop - start, row_bytes], gathered by `order` if given."""
    row_bytes = data.size // row_count if row_count else 0
    if order is None:
        return data[start * row_bytes : stop * row_bytes].reshape(stop - start, row_bytes)
    return data.reshape(row_count, row_bytes)[order[start:stop]]


def widen(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return floating values of any stored dtype as float32."""
    if values.dtype == DTYPES["bfloat16"]:
        wide = values.view(np.uint16).astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    return values.astype(np.float32)
