"""Producers of the weights that TensorRT Edge-LLM's plug-ins read: other orders of the same codes, made row by row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np

from edgewright.errors import UnsupportedFormatError
from edgewright.formats import unpack
from edgewright.graph import Producer, TensorSpec

Array = np.ndarray
Make = Callable[[], tuple[Array, ...]]

#: The only group of the int4 plug-ins.
GROUP = 128
#: Rows of a tile of the fragment layout, and columns of one of either layout.
_TILE_ROWS, _TILE_COLUMNS = 128, 64
#: What a code stands for is its distance from this.
_MIDDLE = 8


@dataclass(frozen=True)
class Pick:
    """One tensor of a producer, as another one: its place there, its new spec, and what becomes of its arrays."""

    place: int
    spec: TensorSpec
    change: Callable[[Array], Array] = lambda array: array


class Picked(Producer):
    """Some of the tensors of a producer, changed element by element."""

    def __init__(self, inner: Producer, picks: Sequence[Pick]) -> None:
        self.parts, self._inner, self._picks = (inner,), inner, tuple(picks)
        self.specs = tuple(pick.spec for pick in picks)

    def chunks(self) -> Iterator[Make]:
        for make in self._inner.chunks():
            yield lambda m=make: self._changed(m())  # type: ignore[misc]

    def _changed(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(pick.change(arrays[pick.place]) for pick in self._picks)


class Joined(Producer):
    """Producers one below the other; of the tensors at the places `shared`, which are equal, the first one's."""

    def __init__(self, parts: Sequence[Producer], names: Sequence[str], shared: Sequence[int]) -> None:
        self.parts, self.shared = tuple(parts), frozenset(shared)
        specs = []
        for place, name in enumerate(names):
            first = parts[0].specs[place]
            rows = sum(part.specs[place].shape[0] for part in parts) if place not in self.shared else 0
            shape = first.shape if place in self.shared else (rows, *first.shape[1:])
            specs.append(TensorSpec(name, first.dtype, shape))
        self.specs = tuple(specs)

    def chunks(self) -> Iterator[Make]:
        for number, part in enumerate(self.parts):
            for make in part.chunks():
                yield lambda m=make, n=number: self._kept(m(), n)  # type: ignore[misc]

    def _kept(self, arrays: tuple[Array, ...], number: int) -> tuple[Array, ...]:
        return tuple(array[:0] if number and place in self.shared else array for place, array in enumerate(arrays))


def halves(scales: Array, name: str, *, divides: bool = False) -> Array:
    """Return scales as float16; raises UnsupportedFormatError for those that it can't hold.

    Of a block, nothing may be what is too small to matter; what `divides`, or belongs to a whole tensor, may not.
    """
    with np.errstate(over="ignore", under="ignore"):
        narrow = scales.astype(np.float16)
    lost = ~np.isfinite(narrow) | ((narrow == 0) & (scales != 0) & divides)
    if lost.any():
        raise UnsupportedFormatError(
            f"{name} has scales of {float(scales[lost][0]):.4g}, which TensorRT Edge-LLM reads as float16, and float16 "
            "can't hold: keep the layer in float16 with a rule of the recipe."
        )
    return narrow


def first_value(producer: Producer, place: int) -> Array:
    """Return the tensor at a place that belongs to all rows; reads one block of rows."""
    return next(iter(producer.chunks()))()[place]


class _ByRows(Protocol):
    specs: tuple[TensorSpec, ...]

    def chunk(self, start: int, stop: int) -> tuple[Array, ...]: ...


class Int4Producer(Producer):
    """An int4 weight for a plug-in: `qweight` int8, `scales` float16 `[blocks, rows]`, and `corrections` float32.

    `fragments` says which layout; see `pack_fragments` and `pack_stripes`. Where `folded`, zero points are part of the
    codes. Otherwise the codes are as they are, and `corrections` `[blocks, rows]` are what a block's sum of inputs is
    multiplied by in place of them. They are there for a weight with zero points that don't fit.
    """

    def __init__(self, inner: Producer, name: str, *, fragments: bool, folded: bool) -> None:
        self.parts, self._inner = (inner,), cast(_ByRows, inner)
        self._rows, self._blocks = inner.specs[0].shape[:2]
        self._zeros = len(inner.specs) > 2
        self._folded, self.fragments = folded, fragments
        width = self._blocks * GROUP
        packed = fragment_shape(self._rows, width) if fragments else (self._rows // 2, width)
        self.specs = (
            TensorSpec(f"{name}.qweight", "int8", packed),
            TensorSpec(f"{name}.scales", "float16", (self._blocks, self._rows)),
        )
        if self._zeros and not folded:
            self.specs += (TensorSpec(f"{name}.corrections", "float32", (self._blocks, self._rows)),)

    def chunks(self) -> Iterator[Make]:
        columns = _Columns(self._rows, self._blocks, -(-self._rows // _TILE_ROWS))
        for start in range(0, self._rows, _TILE_ROWS):
            yield lambda a=start, c=columns: self._chunk(a, min(a + _TILE_ROWS, self._rows), c)  # type: ignore[misc]
        yield lambda c=columns: self._last(c)  # type: ignore[misc]

    def _chunk(self, start: int, stop: int, columns: _Columns) -> tuple[Array, ...]:
        with columns.counted():
            codes, zeros, scales = self._numbers(start, stop)
            columns.put(start, scales, zeros)
            codes = codes.reshape(stop - start, -1)
            if zeros is not None and self._folded:
                codes = codes + _MIDDLE - np.repeat(zeros, GROUP, axis=1)
            packed = pack_fragments(codes) if self.fragments else pack_stripes(codes)
        return (packed, *(np.empty((0, self._rows), spec.numpy_dtype) for spec in self.specs[1:]))

    def _last(self, columns: _Columns) -> tuple[Array, ...]:
        """Return what stands the other way round in the file, when all rows are known."""
        scales, zeros = columns.get()
        tensors = [np.ascontiguousarray(halves(scales.T, self.specs[1].name))]
        if len(self.specs) > 2:
            tensors.append(np.ascontiguousarray(((_MIDDLE - zeros) * scales).T.astype(np.float32)))
        return (np.empty((0, self.specs[0].shape[1]), np.int8), *tensors)

    def _numbers(self, start: int, stop: int) -> tuple[Array, Array | None, Array]:
        parts = self._inner.chunk(start, stop)
        codes = unpack(parts[0].reshape(stop - start, -1), 4).astype(np.int16)
        zeros = unpack(parts[2], 4)[:, : self._blocks].astype(np.int16) if self._zeros else None
        return codes, zeros, parts[1].astype(np.float32)

    def fits(self) -> bool:
        """Tell whether zero points can be part of the codes; reads the weight once."""
        for start in range(0, self._rows, _TILE_ROWS):
            codes, zeros, _ = self._numbers(start, min(start + _TILE_ROWS, self._rows))
            if zeros is not None:
                moved = codes.reshape(len(codes), -1) - np.repeat(zeros, GROUP, axis=1) + _MIDDLE
                if moved.min() < 0 or moved.max() > 2 * _MIDDLE - 1:
                    return False
        return True


class _Columns:
    """What the chunks of a weight found that is written transposed, at the end."""

    def __init__(self, rows: int, blocks: int, chunks: int) -> None:
        self._scales = np.zeros((rows, blocks), np.float32)
        self._zeros = np.full((rows, blocks), _MIDDLE, np.float32)
        self._left, self._changed = chunks, threading.Condition()

    def put(self, start: int, scales: Array, zeros: Array | None) -> None:
        self._scales[start : start + len(scales)] = scales
        if zeros is not None:
            self._zeros[start : start + len(scales)] = zeros

    def get(self) -> tuple[Array, Array]:
        """Wait for all chunks, those that fail too, and return scales and zero points `[rows, blocks]`."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0)
        return self._scales, self._zeros

    def counted(self) -> _Counted:
        return _Counted(self)

    def done(self) -> None:
        with self._changed:
            self._left -= 1
            self._changed.notify_all()


class _Counted:
    """Counts a chunk as done, whether it succeeds or not."""

    def __init__(self, columns: _Columns) -> None:
        self._columns = columns

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._columns.done()


def fragment_shape(rows: int, width: int) -> tuple[int, int]:
    """Return the shape of a weight in the fragment layout."""
    return -(-rows // _TILE_ROWS) * -(-width // _TILE_COLUMNS) * 8, 512


def takes_fragments(rows: int, width: int) -> bool:
    """Tell whether the fragment layout can hold a weight of that size."""
    return rows % 64 == 0 and width % _TILE_COLUMNS == 0


def takes_stripes(rows: int, width: int) -> bool:
    """Tell whether the stripe layout can hold a weight of that size."""
    return rows % 4 == 0 and width % _TILE_COLUMNS == 0


def pack_fragments(codes: Array) -> Array:
    """Return codes 0 to 15 `[rows, width]` in the order in which a tensor core's threads read them, int8 `[n, 512]`.

    A tile is 128 rows by 64 columns. Row = 64 p + 32 h + t, column = 16 b + 8 e + 2 l + o; in a tile the order is
    b, p, t, l, o, h, e, two codes a byte. Rows that are missing are 8.
    """
    rows, width = codes.shape
    padded = np.full((-(-rows // _TILE_ROWS) * _TILE_ROWS, width), _MIDDLE, np.uint8)
    padded[:rows] = codes
    tiles = padded.reshape(-1, 2, 2, 32, width // _TILE_COLUMNS, 4, 2, 4, 2)
    ordered = tiles.transpose(0, 4, 5, 1, 3, 7, 8, 2, 6)
    packed: Array = (ordered[..., 0] | ordered[..., 1] << 4).reshape(-1, 512).view(np.int8)
    return packed


def pack_stripes(codes: Array) -> Array:
    """Return codes 0 to 15 `[rows, width]` in the order of the first int4 plug-in, int8 `[rows / 2, width]`.

    Four rows stand one behind the other in every stripe of 64 columns, whose order is: column = 32 b + 8 c + 2 a + h
    at place 32 b + 8 a + 4 h + c. Four codes are a 16-bit word, the first one lowest.
    """
    rows, width = codes.shape
    columns = codes.astype(np.uint16).reshape(rows // 4, 4, width // _TILE_COLUMNS, 2, 4, 4, 2)
    ordered = columns.transpose(0, 2, 1, 3, 5, 6, 4).reshape(rows // 4, width, 4)
    words = ordered[..., 0] | ordered[..., 1] << 4 | ordered[..., 2] << 8 | ordered[..., 3] << 12
    packed: Array = words.astype("<u2").view(np.int8).reshape(rows // 2, width)
    return packed


def renamed(spec: TensorSpec, name: str, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> TensorSpec:
    """Return a spec under another name, and, where given, of another dtype and shape."""
    return replace(spec, name=name, dtype=dtype or spec.dtype, shape=spec.shape if shape is None else shape)
