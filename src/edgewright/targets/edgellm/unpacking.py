"""Reads the packed weights of TensorRT Edge-LLM back, one code's address at a time, from what their layouts are.

It shares nothing with the packing, so that a mistake there is seen: every function says where a number lies.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def from_fragments(packed: Array, rows: int, width: int) -> Array:
    """Return the codes 0 to 15 `[rows, width]` of the second int4 plug-in's weight, int8 `[n, 512]`.

    A line of the file is 128 words of 32 bits, one for each thread. A thread's word has eight codes, for the rows r and
    r + 32 and the columns c, c + 1, c + 8 and c + 9, where r is thread / 4 and c twice thread % 4. Eight lines are a
    tile of 128 rows by 64 columns: line 2 b + p is 16 columns further for each b, 64 rows further for p = 1. The tiles
    of one run of rows follow each other along the columns.
    """
    words = np.ascontiguousarray(packed).view("<u4")
    n, k = np.arange(rows)[:, None], np.arange(width)[None, :]
    tile = n // 128 * -(-width // 64) + k // 64
    line = tile * 8 + 2 * (k % 64 // 16) + n % 128 // 64
    thread = 4 * (n % 32) + k % 8 // 2
    lower = n % 64 // 32  # of the two rows
    bit = 16 * (k % 2) + 8 * lower + 4 * (k % 16 // 8)
    codes: Array = (words[line, thread] >> bit.astype(np.uint32) & 15).astype(np.uint8)
    return codes


def from_stripes(packed: Array, rows: int, width: int) -> Array:
    """Return the codes 0 to 15 `[rows, width]` of the first int4 plug-in's weight, int8 `[rows / 2, width]`.

    Four rows are a line of 16-bit words, four codes in each from the lowest bits on. In a stripe of 64 words the codes
    of the first row come first, then those of the second. A row's 64 codes are two halves of 32, in each of which come
    the columns 0, 8, 16, 24, then 1, 9, 17, 25, then the same from 2 on, from 4 and from 6 on.
    """
    words = np.ascontiguousarray(packed).view("<u2").reshape(rows // 4, width)
    n, k = np.arange(rows)[:, None], np.arange(width)[None, :]
    column = k % 32
    place = k % 64 // 32 * 32 + column % 8 // 2 * 8 + column % 2 * 4 + column // 8
    number = n % 4 * 64 + place
    found = words[n // 4, k // 64 * 64 + number // 4]
    codes: Array = (found >> (4 * (number % 4)).astype(np.uint16) & 15).astype(np.uint8)
    return codes


def e2m1_values(packed: bytes, rows: int, width: int) -> Array:
    """Return float16 `[rows, width]` of 4-bit floats, two to a byte, the first in the low half."""
    data = np.frombuffer(packed, np.uint8).reshape(rows, width // 2)
    values = np.empty((rows, width), np.float16)
    values[:, 0::2], values[:, 1::2] = _E2M1[data & 15], _E2M1[data >> 4]
    return values


def mx_values(codes: Array, exponents: Array) -> Array:
    """Return float16 `[rows, width]` of E4M3 codes in blocks of 32, each with the power of two 2^(exponent - 127)."""
    rows, width = codes.shape
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(rows, width // 32, 32)
    scaled: Array = np.ldexp(numbers, exponents.astype(np.int32)[:, :, None] - 127).reshape(rows, width)
    halves: Array = scaled.astype(np.float16)
    return halves
