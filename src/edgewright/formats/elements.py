"""The numbers a code can stand for: 8-bit integers, E4M3 and E2M1 floats.

Sources: the OCP 8-bit floating point specification (E4M3: largest 448, no infinity) and the OCP microscaling
specification (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6). Rounding is to nearest, ties to even, and saturates.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Element:
    """A signed number of few bits: its name, the dtype of its codes in a file, its bits and its largest magnitude."""

    name: str
    dtype: str
    bits: int
    largest: float

    @property
    def numpy_dtype(self) -> np.dtype:
        """The NumPy dtype of one number."""
        dtype: np.dtype = _DTYPES[self.name]
        return dtype

    def snap(self, values: Array) -> Array:
        """Return the nearest representable numbers as float32; what is too large becomes the largest."""
        clipped = np.clip(values, -self.largest, self.largest)
        if self.name == "int8":
            rounded: Array = np.rint(clipped).astype(np.float32)
            return rounded
        snapped: Array = clipped.astype(self.numpy_dtype).astype(np.float32)
        return snapped

    def codes(self, snapped: Array) -> Array:
        """Return representable numbers `[rows, width]` as a file holds them: 4-bit ones in pairs, low half first."""
        codes: Array = snapped.astype(self.numpy_dtype)
        if self.bits != 4:
            return codes
        halves: Array = codes.view(np.uint8) & np.uint8(15)
        return pack(halves, 4)

    def values(self, codes: Array) -> Array:
        """Undo `codes`: float32 numbers."""
        if self.bits != 4:
            return codes.astype(np.float32)
        values: Array = _E2M1[unpack(codes, 4)]
        return values


_DTYPES = {
    "int8": np.dtype(np.int8),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
}
_POSITIVE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_POSITIVE, -_POSITIVE])

INT8 = Element("int8", "int8", 8, 127.0)
E4M3 = Element("e4m3", "float8_e4m3fn", 8, 448.0)
E2M1 = Element("e2m1", "float4_e2m1", 4, 6.0)
ELEMENTS = {element.name: element for element in (INT8, E4M3, E2M1)}


def pack(codes: Array, bits: int) -> Array:
    """Pack unpacked codes along the last axis; an odd count of 4-bit codes is padded with zero."""
    if bits == 8:
        return np.ascontiguousarray(codes, dtype=np.uint8)
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    packed: Array = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed


def unpack(packed: Array, bits: int) -> Array:
    """Undo `pack`: uint8 codes along the last axis (an even count for 4 bits)."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])
