"""Tensors that another tool quantized: their parts as they are, and the floats they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.tensor import Bytes, StoredTensor
from edgewright.formats import BlockFormat, LinearInput, Parts

#: Gives the parts of rows [start, stop) in the layout of the tensor's format; see `StoredTensor.encoded`.
ReadParts = Callable[[int, int], Parts]


class EncodedTensor(StoredTensor):
    """A matrix `[rows, width]` stored in one of our formats, value for value; `rows` decodes it to float32.

    A reader of a layout makes one per quantized linear, under the name the plain weight would have.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        encoding: BlockFormat,
        parts: ReadParts,
        *,
        nbytes: int,
        dtype: str | None = None,
        linear_input: LinearInput | None = None,
    ) -> None:
        self.name, self.shape = name, shape
        self.dtype = dtype or encoding.label
        self.nbytes = nbytes
        self.encoding = encoding
        self.input = linear_input
        self._parts = parts

    def encoded(self, start: int, stop: int) -> Parts:
        self.check_range(start, stop)
        return self._parts(start, stop)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        self.check_range(start, stop)
        assert self.encoding is not None
        if start == stop:
            return np.zeros((0, *self.shape[1:]), np.float32)
        first = start - start % self.encoding.row_step
        values = self.encoding.decode(self._parts(first, stop), math.prod(self.shape[1:]))
        return np.ascontiguousarray(values[start - first :])

    def raw(self, start: int, stop: int) -> Bytes:
        return self.rows(start, stop).view(np.uint8).reshape(stop - start, 4 * math.prod(self.shape[1:]))
