"""Stored parts back to floats, written apart from the formats on purpose: it is the check on them.

Sources: the `MatMulNBits` specification for integers, the OCP 8-bit and microscaling specifications for E4M3, E2M1 and
E8M0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgewright.formats import BlockFormat, IntFormat, Nvfp4Format, ScaledFormat

Array = np.ndarray


def decode_parts(parts: Mapping[str, Array], fmt: BlockFormat, width: int) -> Array:
    """Return float32 `[rows, width]` of the parts of some rows, which begin where blocks of rows do."""
    if isinstance(fmt, IntFormat):
        return _integers(parts, fmt, width)
    codes = parts["codes"]
    rows = len(codes)
    if isinstance(fmt, ScaledFormat):
        numbers = codes.astype(np.float32) if fmt.element == "int8" else _TABLE_E4M3[codes.view(np.uint8)]
        return _scaled(numbers, parts["scales"], fmt, width)
    halves = fmt.specs((1, width))["codes"][0] == "float4_e2m1"
    numbers = _TABLE_E2M1[_nibbles(codes)] if halves else _TABLE_E4M3[codes.view(np.uint8)]
    raw = parts["scales"].view(np.uint8)
    if isinstance(fmt, Nvfp4Format):
        scales = _TABLE_E4M3[raw] * parts["global_scale"][0]
    else:
        scales = np.ldexp(np.float32(1), raw.astype(np.int32) - 127).astype(np.float32)
    group = numbers.shape[1] // scales.shape[1]
    values: Array = (numbers.reshape(rows, -1, group) * scales[:, :, None]).reshape(rows, -1)
    return values[:, :width]


def _scaled(numbers: Array, scales: Array, fmt: ScaledFormat, width: int) -> Array:
    if fmt.scope in ("tensor", "channel"):
        whole: Array = numbers * scales
        return whole
    by_column: Array = np.repeat(scales, 128, axis=1)[:, :width]
    if fmt.scope == "block":
        by_column = np.repeat(by_column, 128, axis=0)[: len(numbers)]
    values: Array = numbers * by_column
    return values


def _integers(parts: Mapping[str, Array], fmt: IntFormat, width: int) -> Array:
    codes, scales = parts["codes"], parts["scales"].astype(np.float32)
    rows, blocks = scales.shape
    if fmt.bits == 8:
        values = codes.reshape(rows, blocks, fmt.group).astype(np.float32)
    else:
        values = _nibbles(codes).astype(np.float32)
    packed = parts.get("zero_points")
    if packed is not None:
        zeros = np.empty((rows, blocks), dtype=np.float32)
        for block in range(blocks):
            byte = packed[:, block] if fmt.bits == 8 else (packed[:, block // 2] >> (4 * (block % 2))) & 0x0F
            zeros[:, block] = byte
    else:
        zeros = np.full((rows, blocks), float(1 << (fmt.bits - 1)), dtype=np.float32)
    values = (values - zeros[:, :, None]) * scales[:, :, None]
    if "offsets" in parts:
        values += parts["offsets"][:, :, None]
    decoded: Array = values.reshape(rows, blocks * fmt.group)
    return decoded[:, :width]


def _nibbles(codes: Array) -> Array:
    """Return 4-bit codes one a byte; the low half comes first."""
    result = np.empty((*codes.shape[:-1], 2 * codes.shape[-1]), np.uint8)
    result[..., 0::2] = codes & 0x0F
    result[..., 1::2] = codes >> 4
    return result


def _floats(exponent_bits: int, mantissa_bits: int, bias: int) -> Array:
    """Return the value of every code of a small float without infinities, positive codes first."""
    half = 1 << (exponent_bits + mantissa_bits)
    values = []
    for code in range(half):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        values.append(2.0 ** (exponent - bias) * (1 + fraction) if exponent else 2.0 ** (1 - bias) * fraction)
    positive = np.asarray(values, np.float32)
    return np.concatenate([positive, -positive])


_TABLE_E4M3 = _floats(4, 3, 7)
_TABLE_E4M3[[0x7F, 0xFF]] = np.nan
_TABLE_E2M1 = _floats(2, 1, 1)
