"""Codes of few bits as other tools pack them into 32-bit words, first code in the lowest bits.

A dense stream puts element i at bit i * bits of its row, so that a code may straddle two words. An older way puts
floor(32 / bits) codes into a word and leaves the rest of it empty; the two differ where the bits don't divide 32.
"""

from __future__ import annotations

import numpy as np

from edgewright.formats import Array, pack, unpack

WORD = 32


def dense_words(count: int, bits: int) -> int:
    """Return the words that hold `count` codes in a dense stream."""
    return -(-count * bits // WORD)


def loose_words(count: int, bits: int) -> int:
    """Return the words that hold `count` codes where none straddles two words."""
    return -(-count // (WORD // bits))


def unpack_words(words: Array, bits: int, count: int, *, dense: bool = True) -> Array:
    """Return the first `count` codes of every row: uint8 `[rows, count]` of int32 or uint32 words `[rows, words]`."""
    words = np.ascontiguousarray(words)
    rows = len(words)
    stored: Array = words.view(np.uint8).reshape(rows, 4 * words.shape[1])
    if bits in (4, 8):
        return unpack(stored, bits)[:, :count]
    places = np.arange(bits, dtype=np.uint8)
    if dense:
        single = np.unpackbits(stored, axis=1, count=count * bits, bitorder="little")
        values: Array = (single.reshape(rows, count, bits) << places).sum(axis=2, dtype=np.uint8)
        return values
    shifts = np.arange(WORD // bits, dtype=np.uint32) * np.uint32(bits)
    fields = (words.view(np.uint32)[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    loose: Array = fields.reshape(rows, words.shape[1] * len(shifts))[:, :count].astype(np.uint8)
    return loose


def pack_words(codes: Array, bits: int) -> Array:
    """Return int32 words `[rows, words]` that hold codes uint8 `[rows, count]` as a dense stream, zeros at the end."""
    rows, count = codes.shape
    if bits in (4, 8):
        packed = pack(codes, bits)
        filled = np.pad(packed, ((0, 0), (0, 4 * dense_words(count, bits) - packed.shape[1])))
        whole: Array = np.ascontiguousarray(filled).view("<i4")
        return whole
    places = np.arange(bits, dtype=np.uint8)
    single = ((codes[:, :, None] >> places) & 1).reshape(rows, count * bits)
    surplus = dense_words(count, bits) * WORD - count * bits
    stored = np.packbits(np.pad(single, ((0, 0), (0, surplus))), axis=1, bitorder="little")
    words: Array = np.ascontiguousarray(stored).view("<i4")
    return words
