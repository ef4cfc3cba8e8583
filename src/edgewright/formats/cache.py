"""The key/value cache as int8 or FP8 E4M3 codes: value = code * scale.

There is one scale for the keys and one for the values of a layer, or of each of its key/value heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgewright.errors import RecipeError

#: The largest code, and the smallest positive one.
CACHE_CODES = {"int8": (127.0, 1.0), "float8_e4m3": (448.0, 2.0**-9)}
_DTYPES = {"int8": "int8", "float8_e4m3": "float8_e4m3fn"}


@dataclass(frozen=True)
class KVFormat:
    """A dtype of codes, with one scale a layer (`tensor`) or one a key/value head (`head`)."""

    dtype: Literal["int8", "float8_e4m3"]
    per: Literal["tensor", "head"]

    def __post_init__(self) -> None:
        if self.dtype not in CACHE_CODES or self.per not in ("tensor", "head"):
            raise RecipeError(
                f"The cache format {self.dtype!r} per {self.per!r} is unknown: give int8 or float8_e4m3, and tensor or "
                "head."
            )

    @property
    def label(self) -> str:
        """The format in one word."""
        return f"{self.dtype}/{self.per}"

    @property
    def cache_dtype(self) -> str:
        """The dtype as a contract spells it."""
        return _DTYPES[self.dtype]

    @property
    def largest(self) -> float:
        """The largest code: a scale is at least the largest magnitude over it where nothing may be clipped."""
        return CACHE_CODES[self.dtype][0]


@dataclass(frozen=True)
class KVScales:
    """Scales of one layer's keys and values: float32 `[1]`, or `[kv_heads]` for a format per head; positive, finite."""

    key: np.ndarray
    value: np.ndarray
