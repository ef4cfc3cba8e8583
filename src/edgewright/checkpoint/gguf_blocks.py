"""GGUF block formats: 32 or 256 weights of a row share scales; decoded bit for bit as `gguf.quants.dequantize` does.

Layouts are those of ggml's `ggml-common.h`. Every decoder takes blocks uint8 [n, block_bytes] and fills out
float32 [n, block_size]; the order of the float operations is part of the format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.tensor import Bytes

Floats = npt.NDArray[np.float32]
_CHUNK_WEIGHTS = 1 << 16  # 256 KiB of float32: a chunk's temporaries stay in the second-level cache
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_FOUR = np.uint64(4)


@dataclass(frozen=True)
class BlockFormat:
    """A block format: `block_size` weights in `block_bytes` bytes, `decode(blocks, out)` to float32."""

    name: str
    block_size: int
    block_bytes: int
    decode: Callable[[Bytes, Floats], None]

    def decode_rows(self, data: Bytes) -> Floats:
        """Return uint8 [rows, row_bytes] as float32 [rows, columns], without temporaries that grow with the input."""
        count = data.size // self.block_bytes
        out = np.empty((count, self.block_size), np.float32)
        blocks = data.reshape(count, self.block_bytes)
        step = _CHUNK_WEIGHTS // self.block_size
        for start in range(0, count, step):
            self.decode(np.ascontiguousarray(blocks[start : start + step]), out[start : start + step])
        return out.reshape(len(data), -1) if len(data) else out


def _fields(blocks: Bytes, *fields: tuple[str, Any] | tuple[str, Any, int]) -> npt.NDArray[Any]:
    return blocks.view(np.dtype(list(fields))).reshape(-1)


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


def _q4_0(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("d", "<f2"), ("qs", "u1", 16))
    out[...] = _signed(_nibbles(block["qs"], 16), 8)
    out *= block["d"].astype(np.float32)[:, None]


def _q4_1(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16))
    out[...] = _nibbles(block["qs"], 16)
    out *= block["d"].astype(np.float32)[:, None]
    out += block["m"].astype(np.float32)[:, None]


def _q5_0(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
    out[...] = _signed(_nibbles(block["qs"], 16) | _fifth_bits(block["qh"]), 16)
    out *= block["d"].astype(np.float32)[:, None]


def _q5_1(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))
    out[...] = _nibbles(block["qs"], 16) | _fifth_bits(block["qh"])
    out *= block["d"].astype(np.float32)[:, None]
    out += block["m"].astype(np.float32)[:, None]


def _q8_0(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("d", "<f2"), ("qs", "i1", 32))
    out[...] = block["qs"]
    out *= block["d"].astype(np.float32)[:, None]


def _shifted(packed: Bytes, group_bytes: int, bits: int, mask: int) -> Bytes:
    """Split bytes [n, k] into values of `bits` bits, [n, k * 8 / bits]: per group first every byte's lowest value."""
    n = packed.shape[0]
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    values = packed.reshape(n, -1, 1, group_bytes) >> shifts
    values &= np.uint8(mask)
    return values.reshape(n, -1)


def _q2_k(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2"))
    scales = block["scales"]
    scale = block["d"].astype(np.float32)[:, None] * (scales & np.uint8(15)).astype(np.float32)
    least = block["dmin"].astype(np.float32)[:, None] * (scales >> np.uint8(4)).astype(np.float32)
    out[...] = _shifted(block["qs"], 32, 2, 3)
    groups = out.reshape(-1, 16, 16)
    groups *= scale[:, :, None]
    groups -= least[:, :, None]


def _q3_k(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2"))
    low, high = block["scales"][:, :8], block["scales"][:, 8:]
    scales = _shifted(low, 8, 4, 15) | (_shifted(high, 4, 2, 3) << np.uint8(4))
    scale = block["d"].astype(np.float32)[:, None] * _signed(scales, 32).astype(np.float32)
    # The value is 4 less where the high bit is 0.
    out[...] = _signed(_shifted(block["qs"], 32, 2, 3) | (_shifted(block["hmask"], 32, 1, 1) << np.uint8(2)), 4)
    groups = out.reshape(-1, 16, 16)
    groups *= scale[:, :, None]


_K4_FIELDS: tuple[tuple[str, Any] | tuple[str, Any, int], ...] = (("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12))


def _k4_scales(block: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the 8 scales and 8 minimums of Q4_K and Q5_K blocks: 6 bits each, the upper 2 stored apart."""
    first, second, rest = (block["scales"][:, at : at + 4] for at in (0, 4, 8))
    six, top = np.uint8(63), np.uint8(48)
    scale = np.concatenate([first & six, (rest & np.uint8(15)) | ((first >> np.uint8(2)) & top)], axis=1)
    least = np.concatenate([second & six, (rest >> np.uint8(4)) | ((second >> np.uint8(2)) & top)], axis=1)
    d, dmin = block["d"].astype(np.float32)[:, None], block["dmin"].astype(np.float32)[:, None]
    return d * scale.astype(np.float32), dmin * least.astype(np.float32)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, *_K4_FIELDS, ("qs", "u1", 128))
    scale, least = _k4_scales(block)
    out[...] = _nibbles(block["qs"], 32)
    groups = out.reshape(-1, 8, 32)
    groups *= scale[:, :, None]
    groups -= least[:, :, None]


def _q5_k(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, *_K4_FIELDS, ("qh", "u1", 32), ("qs", "u1", 128))
    scale, least = _k4_scales(block)
    out[...] = _nibbles(block["qs"], 32) | (_shifted(block["qh"], 32, 1, 1) << np.uint8(4))
    groups = out.reshape(-1, 8, 32)
    groups *= scale[:, :, None]
    groups -= least[:, :, None]


def _q6_k(blocks: Bytes, out: Floats) -> None:
    block = _fields(blocks, ("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2"))
    scale = block["d"].astype(np.float32)[:, None] * block["scales"].astype(np.float32)
    out[...] = _signed(_nibbles(block["ql"], 64) | (_shifted(block["qh"], 32, 2, 3) << np.uint8(4)), 32)
    groups = out.reshape(-1, 16, 16)
    groups *= scale[:, :, None]


BLOCK_FORMATS = {
    entry.name: entry
    for entry in (
        BlockFormat("Q4_0", 32, 18, _q4_0),
        BlockFormat("Q4_1", 32, 20, _q4_1),
        BlockFormat("Q5_0", 32, 22, _q5_0),
        BlockFormat("Q5_1", 32, 24, _q5_1),
        BlockFormat("Q8_0", 32, 34, _q8_0),
        BlockFormat("Q2_K", 256, 84, _q2_k),
        BlockFormat("Q3_K", 256, 110, _q3_k),
        BlockFormat("Q4_K", 256, 144, _q4_k),
        BlockFormat("Q5_K", 256, 176, _q5_k),
        BlockFormat("Q6_K", 256, 210, _q6_k),
    )
}
