"""GGUF block formats: 32 or 256 weights of a row share scales; decoded bit for bit as `gguf.quants.dequantize` does.

Layouts are those of ggml's `ggml-common.h`. Every format is split into parts, value = code * scale + offset with one
scale and offset per group; the order of the float operations is part of the format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.tensor import Bytes, StoredTensor, take_rows

Floats = npt.NDArray[np.float32]
_CHUNK_WEIGHTS = 1 << 16  # 256 KiB of float32: a chunk's temporaries stay in the second-level cache
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_FOUR = np.uint64(4)


@dataclass(frozen=True)
class Parts:
    """Codes int8 or uint8 [n, block_size], scales and (or None) offsets float32 [n, groups] of n blocks."""

    codes: npt.NDArray[Any]
    scales: Floats
    offsets: Floats | None = None


@dataclass(frozen=True)
class BlockFormat:
    """A block format: `block_size` weights in `block_bytes` bytes; `split(blocks uint8 [n, block_bytes])`.

    `bits` is the width of a code, `group` the weights that share a scale. Codes are signed around zero, unsigned where
    there are offsets.
    """

    name: str
    block_size: int
    block_bytes: int
    bits: int
    group: int
    split: Callable[[Bytes], Parts]

    def decode_rows(self, data: Bytes) -> Floats:
        """Return uint8 [rows, row_bytes] as float32 [rows, columns], without temporaries that grow with the input."""
        count = data.size // self.block_bytes
        out = np.empty((count, self.block_size), np.float32)
        blocks = data.reshape(count, self.block_bytes)
        step = _CHUNK_WEIGHTS // self.block_size
        for start in range(0, count, step):
            parts = self.split(np.ascontiguousarray(blocks[start : start + step]))
            values = out[start : start + step]
            values[...] = parts.codes
            groups = values.reshape(len(values), -1, self.group)
            groups *= parts.scales[:, :, None]
            if parts.offsets is not None:
                groups += parts.offsets[:, :, None]
        return out.reshape(len(data), -1) if len(data) else out

    def split_rows(self, data: Bytes) -> Parts:
        """Return the parts of uint8 [rows, row_bytes] by row: codes [rows, groups, group], the rest [rows, groups]."""
        parts = self.split(np.ascontiguousarray(data.reshape(-1, self.block_bytes)))
        rows = len(data)
        offsets = None if parts.offsets is None else parts.offsets.reshape(rows, -1)
        return Parts(parts.codes.reshape(rows, -1, self.group), parts.scales.reshape(rows, -1), offsets)


def _fields(blocks: Bytes, *fields: tuple[str, Any] | tuple[str, Any, int]) -> npt.NDArray[Any]:
    return blocks.view(np.dtype(list(fields))).reshape(-1)


def _column(values: npt.NDArray[Any]) -> Floats:
    return values.astype(np.float32)[:, None]


def _nibbles(packed: Bytes, group_bytes: int) -> Bytes:
    """Split bytes [n, k] into 4-bit values [n, 2 k]: of each group of bytes first the low halves, then"
    " the high ones."""
    n, width = packed.shape
    words = np.ascontiguousarray(packed).view(np.uint64)
    out = np.empty((n, width // group_bytes, 2, group_bytes // 8), np.uint64)
    for word in range(width // 8):
        group, place = divmod(word, group_bytes // 8)
        column = words[:, word]
        out[:, group, 0, place] = column & _NIBBLES
        out[:, group, 1, place] = (column >> _FOUR) & _NIBBLES
    return out.view(np.uint8).reshape(n, 2 * width)


def _fifth_bits(packed: npt.NDArray[Any]) -> Bytes:
    """Return the 32 bits of each uint8 [n, 4] row, low bit first, as 0 or 16: uint8 [n, 32]."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little") << np.uint8(4)


def _signed(values: Bytes, offset: int) -> npt.NDArray[np.int8]:
    signed = values.view(np.int8)
    signed -= np.int8(offset)
    return signed


def _q4_0(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("d", "<f2"), ("qs", "u1", 16))
    return Parts(_signed(_nibbles(block["qs"], 16), 8), _column(block["d"]))


def _q4_1(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16))
    return Parts(_nibbles(block["qs"], 16), _column(block["d"]), _column(block["m"]))


def _q5_0(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
    return Parts(_signed(_nibbles(block["qs"], 16) | _fifth_bits(block["qh"]), 16), _column(block["d"]))


def _q5_1(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
    return Parts(_nibbles(block["qs"], 16) | _fifth_bits(block["qh"]), _column(block["d"]), _column(block["m"]))


def _q8_0(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("d", "<f2"), ("qs", "i1", 32))
    return Parts(block["qs"], _column(block["d"]))


def _shifted(packed: Bytes, group_bytes: int, bits: int, mask: int) -> Bytes:
    """Split bytes [n, k] into values of `bits` bits, [n, k * 8 / bits]: per group first every byte's lowest value."""
    n = packed.shape[0]
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    values = packed.reshape(n, -1, 1, group_bytes) >> shifts
    values &= np.uint8(mask)
    return values.reshape(n, -1)


def _q2_k(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2"))
    scales = block["scales"]
    scale = _column(block["d"]) * (scales & np.uint8(15)).astype(np.float32)
    least = _column(block["dmin"]) * (scales >> np.uint8(4)).astype(np.float32)
    return Parts(_shifted(block["qs"], 32, 2, 3), scale, -least)


def _q3_k(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2"))
    low, high = block["scales"][:, :8], block["scales"][:, 8:]
    scales = _shifted(low, 8, 4, 15) | (_shifted(high, 4, 2, 3) << np.uint8(4))
    scale = _column(block["d"]) * _signed(scales, 32).astype(np.float32)
    # The value is 4 less where the high bit is 0.
    codes = _signed(_shifted(block["qs"], 32, 2, 3) | (_shifted(block["hmask"], 32, 1, 1) << np.uint8(2)), 4)
    return Parts(codes, scale)


_K4_FIELDS: tuple[tuple[str, Any] | tuple[str, Any, int], ...] = (("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12))


def _k4_scales(block: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the 8 scales and 8 offsets of Q4_K and Q5_K blocks: 6 bits each, the upper 2 stored apart."""
    first, second, rest = (block["scales"][:, at : at + 4] for at in (0, 4, 8))
    six, top = np.uint8(63), np.uint8(48)
    scale = np.concatenate([first & six, (rest & np.uint8(15)) | ((first >> np.uint8(2)) & top)], axis=1)
    least = np.concatenate([second & six, (rest >> np.uint8(4)) | ((second >> np.uint8(2)) & top)], axis=1)
    return _column(block["d"]) * scale.astype(np.float32), -(_column(block["dmin"]) * least.astype(np.float32))


def _q4_k(blocks: Bytes) -> Parts:
    block = _fields(blocks, *_K4_FIELDS, ("qs", "u1", 128))
    return Parts(_nibbles(block["qs"], 32), *_k4_scales(block))


def _q5_k(blocks: Bytes) -> Parts:
    block = _fields(blocks, *_K4_FIELDS, ("qh", "u1", 32), ("qs", "u1", 128))
    codes = _nibbles(block["qs"], 32) | (_shifted(block["qh"], 32, 1, 1) << np.uint8(4))
    return Parts(codes, *_k4_scales(block))


def _q6_k(blocks: Bytes) -> Parts:
    block = _fields(blocks, ("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2"))
    scale = _column(block["d"]) * block["scales"].astype(np.float32)
    return Parts(_signed(_nibbles(block["ql"], 64) | (_shifted(block["qh"], 32, 2, 3) << np.uint8(4)), 32), scale)


BLOCK_FORMATS = {
    entry.name: entry
    for entry in (
        BlockFormat("Q4_0", 32, 18, 4, 32, _q4_0),
        BlockFormat("Q4_1", 32, 20, 4, 32, _q4_1),
        BlockFormat("Q5_0", 32, 22, 5, 32, _q5_0),
        BlockFormat("Q5_1", 32, 24, 5, 32, _q5_1),
        BlockFormat("Q8_0", 32, 34, 8, 32, _q8_0),
        BlockFormat("Q2_K", 256, 84, 2, 16, _q2_k),
        BlockFormat("Q3_K", 256, 110, 3, 16, _q3_k),
        BlockFormat("Q4_K", 256, 144, 4, 32, _q4_k),
        BlockFormat("Q5_K", 256, 176, 5, 32, _q5_k),
        BlockFormat("Q6_K", 256, 210, 6, 16, _q6_k),
    )
}


class BlockTensor(StoredTensor):
    """A matrix in a GGUF block format.

    `data` are the stored bytes, uint8 [nbytes]. `order`, if given, is the stored row of each row (int [rows]).
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        data: Bytes,
        order: npt.NDArray[np.intp] | None = None,
    ):
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.nbytes = data.size
        self.format = BLOCK_FORMATS[dtype]
        self._data = data
        self._order = order

    def raw(self, start: int, stop: int) -> Bytes:
        self.check_range(start, stop)
        return take_rows(self._data, self.row_count, start, stop, self._order)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self.format.decode_rows(self.raw(start, stop)).reshape(stop - start, *self.shape[1:])

    def parts(self, start: int, stop: int) -> Parts:
        """Return the rows as stored: codes [rows, groups, group], scales and offsets [rows, groups]."""
        return self.format.split_rows(self.raw(start, stop))
