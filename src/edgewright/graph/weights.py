"""Weights that are read only when they are written: a matrix knows its rows, a producer makes a file's bytes from them.

`Weight` is a logical float tensor that can give any slice of its leading axis as float32.
`Producer` turns weights into the tensors a graph refers to, a block of rows at a time, so that peak memory
follows the block size and not the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import ml_dtypes
import numpy as np

from edgewright.errors import CheckpointError

#: Rows are read in blocks of about this many elements (float32: 512 KiB, which stays in a core's cache).
BLOCK_ELEMENTS = 1 << 17

_NUMPY_DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "int64": np.dtype(np.int64),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}
#: Numbers of half a byte; arrays hold them in pairs, low half first.
PACKED_DTYPES = frozenset({"int4", "uint4", "float4_e2m1"})


class Rows(Protocol):
    """What a stored tensor offers: name, shape, dtype name and float32 slices of the leading axis."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def rows(self, start: int, stop: int) -> np.ndarray: ...

    def raw(self, start: int, stop: int) -> np.ndarray: ...


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype name and shape of a tensor in a weight file; 4-bit shapes count numbers, an even number a row."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype:
        """The NumPy dtype of the arrays that hold `dtype`."""
        return np.dtype(np.uint8) if self.dtype in PACKED_DTYPES else _NUMPY_DTYPES[self.dtype]

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of the array that holds it: that of bytes where two numbers share one."""
        return (*self.shape[:-1], self.shape[-1] // 2) if self.dtype in PACKED_DTYPES else self.shape

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.array_shape) * self.numpy_dtype.itemsize


class Weight(ABC):
    """A logical float tensor; `rows(a, b)` is the float32 slice `[a:b]` of its leading axis."""

    name: str
    shape: tuple[int, ...]
    #: Whether it is made of sums, whose last bit may differ from one machine to the next.
    summed = False

    @abstractmethod
    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows `[start, stop)` as contiguous float32."""

    def stored(self) -> Rows | None:
        """Return the stored tensor this weight is, value for value, or None when it was transformed."""
        return None

    def blocks(self, multiple: int = 1) -> Iterator[tuple[int, int]]:
        """Yield row ranges of about BLOCK_ELEMENTS elements that begin at multiples of `multiple`."""
        rows = self.shape[0] if self.shape else 1
        width = max(1, math.prod(self.shape[1:]))
        step = max(1, BLOCK_ELEMENTS // width // multiple) * multiple
        for start in range(0, rows, step):
            yield start, min(rows, start + step)


class StoredWeight(Weight):
    """A tensor of the checkpoint, with `plus` added to every element (norm weights stored as an offset from one)."""

    def __init__(self, tensor: Rows, name: str, plus: float = 0.0) -> None:
        self.name = name
        self.shape = tensor.shape
        self.tensor = tensor
        self.plus = np.float32(plus)

    def rows(self, start: int, stop: int) -> np.ndarray:
        values = self.tensor.rows(start, stop)
        return values + self.plus if self.plus else values

    def stored(self) -> Rows | None:
        return None if self.plus else self.tensor


class ComputedWeight(Weight):
    """A table made by a function of a row range (rope tables, constants)."""

    def __init__(self, name: str, shape: tuple[int, ...], make: Callable[[int, int], np.ndarray]) -> None:
        self.name = name
        self.shape = shape
        self._make = make

    def rows(self, start: int, stop: int) -> np.ndarray:
        values = self._make(start, stop)
        assert values.shape == (stop - start, *self.shape[1:]), (self.name, values.shape, self.shape)
        return np.ascontiguousarray(values, dtype=np.float32)


class Producer(ABC):
    """Makes one or more tensors of a weight file in one pass over their source.

    `chunks()` yields tuples with one array per spec; the arrays of one spec, one after the other, are its bytes.
    """

    specs: tuple[TensorSpec, ...]
    #: The producers this one joins.
    parts: tuple[Producer, ...] = ()

    def allow_nonfinite(self) -> None:
        """Take float values that are not finite as they are; integer codes can't hold any."""
        for part in self.parts:
            part.allow_nonfinite()

    @abstractmethod
    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        """Yield one function per chunk, in file order; a writer may call several at once on threads."""


class FloatProducer(Producer):
    """A weight stored as float32, float16 or bfloat16, rounded to nearest even where that is narrower.

    A stored weight with values that are not finite, or not in the narrower format, is refused unless
    `allow_nonfinite` was called.
    """

    def __init__(self, weight: Weight, dtype: str) -> None:
        self.weight = weight
        self._finite = True
        self.specs = (TensorSpec(weight.name, dtype, weight.shape),)

    def allow_nonfinite(self) -> None:
        self._finite = False

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for start, stop in self.weight.blocks():
            yield lambda a=start, b=stop: (self._chunk(a, b),)  # type: ignore[misc]

    def _chunk(self, start: int, stop: int) -> np.ndarray:
        spec = self.specs[0]
        with np.errstate(over="ignore"):
            values = self.weight.rows(start, stop).astype(spec.numpy_dtype, copy=False)
        refused = isinstance(self.weight, StoredWeight) and self._finite
        if refused and not np.isfinite(values).all():
            raise CheckpointError(
                f"{self.weight.name} holds values that are not finite in {spec.dtype}: repair it, keep it in float32, "
                "or ask for it with --allow-nonfinite."
            )
        return values


class StackedProducer(Producer):
    """Several producers of the same kind joined along the leading axis, for linears that share their input."""

    def __init__(self, parts: Sequence[Producer], names: Sequence[str]) -> None:
        self.parts = tuple(parts)
        specs = []
        for index, name in enumerate(names):
            columns = [part.specs[index] for part in parts]
            assert len({(c.dtype, c.shape[1:]) for c in columns}) == 1, columns
            shape = (sum(c.shape[0] for c in columns), *columns[0].shape[1:])
            specs.append(TensorSpec(name, columns[0].dtype, shape))
        self.specs = tuple(specs)

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for part in self.parts:
            yield from part.chunks()
