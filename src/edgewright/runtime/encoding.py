"""How numbers are stored as small integers: encodings, files that state theirs, and the way from one to another.

The offset is the negative zero point: real = scale * (code + offset).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError, UsageError

DType = Literal["int8", "uint8", "int16", "uint16", "float32"]
Mode = Literal["round", "legacy-truncate"]
Codes = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

#: Types of integer codes, the only ones that an embedding argument can name.
INTEGERS: tuple[DType, ...] = ("int8", "uint8", "int16", "uint16")
_NUMPY = {"int8": "i1", "uint8": "u1", "int16": "<i2", "uint16": "<u2", "float32": "<f4"}
_LARGEST = float(np.finfo(np.float32).max)
#: Offsets are stored as int32 by the programs that share these files.
_OFFSETS = (-(1 << 31), (1 << 31) - 1)
_SCALE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_OFFSET = re.compile(r"[+-]?\d+", re.ASCII)
_FORM = "write PATH alone (float32 values) or PATH,TYPE,SCALE,OFFSET"


@dataclass(frozen=True, slots=True)
class Encoding:
    """real = scale * (code + offset); float32 has scale 1 and offset 0.

    Raises UsageError on an unknown dtype, on a scale that is not finite and above 0 or that leaves float32's range with
    the largest code, and on an offset outside int32.
    """

    dtype: DType = "float32"
    scale: float = 1.0
    offset: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DType):
            raise UsageError(f"Invalid datatype {self.dtype!r}: choose from {', '.join(get_args(DType))}.")
        if type(self.offset) is not int or not _OFFSETS[0] <= self.offset <= _OFFSETS[1]:
            raise UsageError(f"Invalid quantization offset {self.offset!r}: give an integer within int32.")
        if not isinstance(self.scale, int | float) or not math.isfinite(self.scale) or self.scale <= 0:
            raise UsageError(f"Invalid quantization scale {self.scale!r}: give a finite number above 0.")
        if self.dtype == "float32":
            if (self.scale, self.offset) != (1, 0):
                raise UsageError("float32 values are stored as they are: their scale is 1 and their offset 0.")
        elif self.scale * max(abs(self.low + self.offset), abs(self.high + self.offset)) > _LARGEST:
            raise UsageError(
                f"Invalid quantization scale {self.scale!r}: with offset {self.offset} the largest {self.dtype} code "
                "is beyond float32."
            )

    @classmethod
    def of_range(cls, dtype: DType, low: float, high: float) -> Encoding:
        """Return the encoding of `dtype` that spans `low` to `high` and holds 0 exactly."""
        if dtype == "float32":
            return cls()
        low, high = min(low, 0.0), max(high, 0.0)
        limits = np.iinfo(_NUMPY[dtype])
        # Where all values are 0, or too small for a scale of their own, any scale holds them.
        scale = (high - low) / (int(limits.max) - int(limits.min)) or 1.0
        return cls(dtype, scale, round(low / scale) - int(limits.min))

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype of codes in a file: little-endian."""
        return np.dtype(_NUMPY[self.dtype])

    @property
    def itemsize(self) -> int:
        """Bytes a code takes."""
        return self.numpy.itemsize

    @property
    def low(self) -> float:
        """Smallest code; minus infinity for float32."""
        return -math.inf if self.dtype == "float32" else int(np.iinfo(self.numpy).min)

    @property
    def high(self) -> float:
        """Largest code; infinity for float32."""
        return math.inf if self.dtype == "float32" else int(np.iinfo(self.numpy).max)

    def quantize(self, real: npt.ArrayLike) -> tuple[Codes, int]:
        """Return the nearest codes (a tie goes to the even one) of any shape, and how many were cut to the range.

        Raises GenerationError on values that are not a number; infinities are cut.
        """
        values = np.asarray(real)
        if self.dtype == "float32":
            with np.errstate(over="ignore"):
                return values.astype(self.numpy), 0
        if np.isnan(values).any():
            raise GenerationError(f"Values that are not a number have no {self.dtype} code.")
        with np.errstate(over="ignore"):
            codes = np.rint(values.astype(np.float64) / self.scale - self.offset)
        kept = np.clip(codes, self.low, self.high)
        return kept.astype(self.numpy), int(np.count_nonzero(kept != codes))

    def dequantize(self, codes: npt.ArrayLike) -> Floats:
        """Return the float32 values of codes, in fresh memory and their shape."""
        values = np.asarray(codes)
        if self.dtype == "float32":
            return values.astype(np.float32)
        return ((values.astype(np.float64) + self.offset) * self.scale).astype(np.float32)

    def __str__(self) -> str:
        return self.dtype if self.dtype == "float32" else f"{self.dtype},{self.scale!r},{self.offset}"


@dataclass(frozen=True, slots=True)
class EmbeddingFile:
    """A raw file and how its numbers are stored; `stated` says that the encoding was written, not implied."""

    path: Path
    encoding: Encoding = Encoding()
    stated: bool = False

    @classmethod
    def parse(cls, text: str, folder: Path = Path()) -> EmbeddingFile:
        """Return what `PATH` or `PATH,TYPE,SCALE,OFFSET` says; a relative path is one of `folder`.

        Raises UsageError on another form. What the usual program takes without a word and this one refuses: an empty
        field, text after a number, a fraction in an offset, a scale that is 0, negative or not finite.
        """
        fields = text.split(",")
        if len(fields) not in (1, 4) and sum(map(bool, fields)) not in (1, 4):
            raise UsageError(f"Invalid embedding argument: {text!r} has {len(fields)} fields; {_FORM}.")
        if not all(field.strip() for field in fields):
            raise UsageError(
                f"Invalid embedding argument: {text!r} has an empty field, which genie-t2t-run would drop; {_FORM}."
            )
        path = folder / fields[0]
        if len(fields) == 1:
            return cls(path)
        dtype = next((name for name in INTEGERS if name == fields[1].strip()), None)
        if dtype is None:
            hint = " (values of float32 are what PATH alone means)" if fields[1].strip() == "float32" else ""
            raise UsageError(
                f"Invalid embedding argument: invalid datatype {fields[1]!r} in {text!r}: choose from "
                f"{', '.join(INTEGERS)}{hint}."
            )
        try:
            return cls(path, Encoding(dtype, _scale(fields[2].strip()), _offset(fields[3].strip())), stated=True)
        except UsageError as error:
            raise UsageError(f"Invalid quantization encodings: {{{','.join(fields[1:])}}}: {error}") from None

    def __str__(self) -> str:
        """The argument that says this."""
        return f"{self.path},{self.encoding}" if self.stated else str(self.path)


def _scale(text: str) -> float:
    if _SCALE.fullmatch(text) is None:
        read = _SCALE.match(text)
        raise UsageError(f"the scale {text!r} is not a number{_library(float(read.group()) if read else None)}.")
    return float(text)


def _offset(text: str) -> int:
    if _OFFSET.fullmatch(text) is None:
        read = _OFFSET.match(text)
        raise UsageError(f"the offset {text!r} is not an integer{_library(read.group() if read else None)}.")
    # int() refuses thousands of digits, and no offset has more than ten.
    return int(text) if len(text.lstrip("+-0")) <= 10 else _OFFSETS[1] + 1


def _library(read: float | str | None) -> str:
    return "" if read is None else f" (genie-t2t-run would take it as {read})"


class Requantizer:
    """Turns codes of one encoding into those of another that mean the same values, as exactly as they can.

    "round" takes the nearest code, a tie to the even one, and cuts to the range. "legacy-truncate" gives what the usual
    program does: k * code + b is cut toward zero and, out of range, wraps as a conversion to int32 and then to the type
    does on x86-64; C leaves it undefined. `saturated` counts the codes that left the range so far.

    The four integer types go to those of the same signedness, with `mixed` to the others, too; float32 goes to float32
    only. Raises UsageError on another pair.
    """

    def __init__(self, source: Encoding, target: Encoding, *, mode: Mode = "round", mixed: bool = False) -> None:
        if mode not in get_args(Mode):
            raise UsageError(f"Requantizing knows the modes {' and '.join(get_args(Mode))}, not {mode!r}.")
        kinds = (source.numpy.kind, target.numpy.kind)
        if kinds[0] != kinds[1] and ("f" in kinds or not mixed):
            raise UsageError(
                f"Unsupported LUT requantization: {source.dtype} -> {target.dtype}. The table and the input must both "
                "be signed, both unsigned or both float32: state their encodings, or store one of them anew."
            )
        self.source, self.target, self.mode = source, target, mode
        self.scale = source.scale / target.scale
        self.offset = self.scale * source.offset - target.offset
        if not math.isfinite(self.scale) or not math.isfinite(self.offset):
            raise UsageError(
                f"Requantizing from scale {source.scale!r} to {target.scale!r} leaves the range of numbers: check both."
            )
        self.saturated = 0
        if source.dtype != "float32":
            # There are so few codes that all of them are turned once; a token is then a look-up.
            self._index = np.dtype(f"u{source.itemsize}")
            every = np.arange(1 << (8 * source.itemsize)).astype(self._index).view(source.numpy)
            self._made, self._cut = self._truncated(every) if mode == "legacy-truncate" else self._rounded(every)
            self._may_cut = bool(self._cut.any())

    def __call__(self, codes: Codes) -> Codes:
        """Return the codes of any shape in the target's encoding, in fresh memory.

        Raises GenerationError when `codes` are not of the source's dtype.
        """
        if codes.dtype != self.source.numpy:
            raise GenerationError(f"Codes of {codes.dtype} are not those of {self.source.dtype} to be requantized.")
        if self.source.dtype == "float32":
            return codes.copy()
        index = codes.view(self._index)
        if self._may_cut:
            self.saturated += int(np.count_nonzero(self._cut[index]))
        made: Codes = self._made[index]
        return made

    def _rounded(self, codes: Codes) -> tuple[Codes, npt.NDArray[np.bool_]]:
        """Return what codes become, and which of them leave the range."""
        # The sum of the integers is exact, which the sum of products is not.
        values = np.rint(self.scale * (codes.astype(np.float64) + self.source.offset) - self.target.offset)
        kept = np.clip(values, self.target.low, self.target.high)
        return kept.astype(self.target.numpy), kept != values

    def _truncated(self, codes: Codes) -> tuple[Codes, npt.NDArray[np.bool_]]:
        values = np.trunc(self.scale * codes.astype(np.float64) + self.offset)
        # A conversion that doesn't fit int32 gives its smallest number there.
        words = np.where(np.abs(values) < 1 << 31, values, float(_OFFSETS[0])).astype(np.int64)
        return words.astype(self.target.numpy), (values < self.target.low) | (values > self.target.high)
