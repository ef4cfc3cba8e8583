"""The codes of a quantized cache, compared: rounding may go either way where a value lies between two codes."""

from __future__ import annotations

import numpy as np

from edgewright.verify.graphs import FP8, Array

#: Largest share of a row's codes that may be a neighbour of what they should be, one of them not counted. A value in
#: between is rare: kernels that divide, and such that multiply by the inverse, differ in one code of some 100,000.
CODE_BOUND = 0.02


def is_codes(array: Array) -> bool:
    """Tell whether an array holds codes of a cache."""
    return array.dtype in (np.dtype(np.int8), FP8)


def ranks(codes: Array) -> Array:
    """Return codes as int16 numbers in the order of their values, with neighbours one apart."""
    if codes.dtype != FP8:
        return codes.astype(np.int16)
    magnitude = (codes.view(np.uint8) & 0x7F).astype(np.int16)
    return np.where(np.signbit(codes), -magnitude, magnitude)


def code_errors(given: Array, wanted: Array) -> Array:
    """Return `[batch, rows]` of arrays `[batch, rows, ...]`: the share of codes that are neighbours of what they
    should be, without the first; infinity where one is further off."""
    if given.dtype != wanted.dtype:
        return np.full(given.shape[:2], np.inf)
    distance = np.abs(ranks(given) - ranks(wanted)).reshape(*given.shape[:2], -1)
    if distance.shape[2] == 0:
        return np.zeros(given.shape[:2])
    share = np.maximum((distance == 1).sum(axis=2) - 1, 0) / distance.shape[2]
    return np.where((distance > 1).any(axis=2), np.inf, share)
