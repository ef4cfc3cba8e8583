"""Producers of quantized weights: by rounding, or bit-exactly from a file that stores the same codes already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, cast

import numpy as np

from edgewright.errors import CheckpointError
from edgewright.graph.weights import Producer, Rows, TensorSpec, Weight
from edgewright.quant.formats import FloatFormat, Format, IntFormat, pack, quantize


def specs_of(name: str, shape: tuple[int, ...], fmt: IntFormat, *, zero_points: bool) -> tuple[TensorSpec, ...]:
    """Return the tensors a weight `[rows, width]` becomes: codes, scales and, if wanted, zero points."""
    rows, width = shape
    specs = [
        TensorSpec(f"{name}.codes", "uint8", fmt.codes_shape(rows, width)),
        TensorSpec(f"{name}.scales", "float32", (rows, fmt.blocks(width))),
    ]
    if zero_points:
        specs.append(TensorSpec(f"{name}.zero_points", "uint8", fmt.zero_points_shape(rows, width)))
    return tuple(specs)


class RoundingProducer(Producer):
    """Rounds a weight to the nearest codes, a block of rows at a time."""

    def __init__(self, weight: Weight, fmt: IntFormat, name: str) -> None:
        self.weight, self.format = weight, fmt
        self.specs = specs_of(name, weight.shape, fmt, zero_points=fmt.zero_point)

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for start, stop in self.weight.blocks():
            yield lambda a=start, b=stop: self.chunk(a, b)  # type: ignore[misc]

    def chunk(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return codes, scales and, if the format has them, zero points of some rows."""
        try:
            codes, scales, zeros = quantize(self.weight.rows(start, stop), self.format)
        except FloatingPointError:
            raise CheckpointError(
                f"{self.weight.name} holds values that are not finite, so it can't be quantized: repair the checkpoint."
            ) from None
        packed = (pack(codes, self.format.bits), scales)
        return packed if zeros is None else (*packed, pack(zeros, self.format.bits))


class _Parts(Protocol):
    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None


class _BlockFormat(Protocol):
    bits: int
    group: int


class _Blocks(Rows, Protocol):
    """A stored tensor whose integer codes can be had."""

    format: _BlockFormat

    def parts(self, start: int, stop: int) -> _Parts: ...


def held_exactly(tensor: Rows | None, fmt: IntFormat) -> _Blocks | None:
    """Return the stored tensor when `fmt` can hold its codes and scales without a second rounding, else None.

    That is a GGUF block tensor with groups of the same size and codes of no more bits.
    """
    stored = getattr(tensor, "format", None)
    if tensor is None or stored is None or len(tensor.shape) != 2:
        return None
    exact = stored.group == fmt.group and stored.bits <= fmt.bits and tensor.shape[1] % fmt.group == 0
    return cast(_Blocks, tensor) if exact else None


def stored_format(tensor: Rows | None) -> Format:
    """Return the format that holds a tensor as it is stored: integer codes for GGUF blocks, else a float."""
    stored = getattr(tensor, "format", None)
    if tensor is not None and stored is not None and len(tensor.shape) == 2:
        return IntFormat(4 if stored.bits <= 4 else 8, stored.group, zero_point=False)
    return FloatFormat("float16" if tensor is not None and tensor.dtype == "float16" else "float32")


class ExactProducer(Producer):
    """Takes codes, scales and offsets of a GGUF tensor over as they are.

    Unsigned codes of `bits` bits that have an offset are centred on the default zero point, and the offset is raised by
    as much: with middle = 2^(bits - 1), code * scale + offset = (code - middle) * scale + (offset + middle * scale). No
    zero points need storing, and the noise of rounded inputs meets small centred codes.
    """

    def __init__(self, tensor: _Blocks, weight: Weight, fmt: IntFormat, name: str) -> None:
        self.weight, self.format, self._tensor = weight, fmt, tensor
        self.has_offsets = tensor.parts(0, 1).offsets is not None
        specs = specs_of(name, weight.shape, fmt, zero_points=False)
        if self.has_offsets:
            specs = (*specs, TensorSpec(f"{name}.offsets", "float32", specs[1].shape))
        self.specs = specs

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for start, stop in self.weight.blocks():
            yield lambda a=start, b=stop: self._chunk(a, b)  # type: ignore[misc]

    def _chunk(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        parts = self._tensor.parts(start, stop)
        if not np.isfinite(parts.scales).all() or not (parts.offsets is None or np.isfinite(parts.offsets).all()):
            raise CheckpointError(f"{self.weight.name} holds scales that are not finite: repair the checkpoint.")
        zero = self.format.levels // 2
        if parts.offsets is None:
            codes = (parts.codes.astype(np.int16) + zero).astype(np.uint8)
            return pack(codes, self.format.bits), parts.scales
        middle = 1 << (self._tensor.format.bits - 1)
        codes = parts.codes + np.uint8(zero - middle)
        return pack(codes, self.format.bits), parts.scales, parts.offsets + np.float32(middle) * parts.scales
