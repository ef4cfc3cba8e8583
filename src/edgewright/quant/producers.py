"""Producers of quantized weights: by rounding, or bit-exactly from a file that stores the same codes already."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from edgewright.errors import CheckpointError
from edgewright.graph.weights import Producer, Rows, TensorSpec, Weight
from edgewright.quant.formats import IntFormat, pack, quantize


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
            yield lambda a=start, b=stop: self._chunk(a, b)  # type: ignore[misc]

    def _chunk(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        try:
            codes, scales, zeros = quantize(self.weight.rows(start, stop), self.format)
        except FloatingPointError:
            raise CheckpointError(
                f"{self.weight.name} holds values that are not finite, so it can't be quantized: repair the checkpoint."
            ) from None
        packed = (pack(codes, self.format.bits), scales)
        return packed if zeros is None else (*packed, pack(zeros, self.format.bits))


#: GGUF block formats whose value is (code - zero) * scale in blocks of 32: bytes a block, bits, zero.
_EXACT = {"Q4_0": (18, 4, 8), "Q5_0": (22, 5, 16), "Q8_0": (34, 8, 0)}


def holds_exactly(tensor: Rows | None, fmt: IntFormat) -> bool:
    """Tell whether `fmt` can hold the stored tensor's codes and scales without a second rounding."""
    if tensor is None or fmt.group != 32 or len(tensor.shape) != 2:
        return False
    return tensor.dtype in _EXACT and _EXACT[tensor.dtype][1] <= fmt.bits


class ExactProducer(Producer):
    """Takes codes and scales of a GGUF tensor over as they are (no zero points: the default one fits)."""

    def __init__(self, tensor: Rows, weight: Weight, fmt: IntFormat, name: str) -> None:
        self.weight, self.format, self._tensor = weight, fmt, tensor
        self.specs = specs_of(name, weight.shape, fmt, zero_points=False)

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for start, stop in self.weight.blocks():
            yield lambda a=start, b=stop: self._chunk(a, b)  # type: ignore[misc]

    def _chunk(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        block_bytes, bits, zero = _EXACT[self._tensor.dtype]
        raw = self._tensor.raw(start, stop)
        blocks = raw.reshape(len(raw), -1, block_bytes)
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
        if bits == 8:
            centred = blocks[..., 2:].view(np.int8).astype(np.int16)
        else:
            nibbles = blocks[..., -16:]
            # GGUF keeps elements 0..15 in the low and 16..31 in the high nibbles of a block.
            centred = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.int16)
            if bits == 5:
                fifth = np.unpackbits(np.ascontiguousarray(blocks[..., 2:6]), axis=-1, bitorder="little")
                centred += fifth.astype(np.int16) << 4
            centred -= zero
        codes = (centred + self.format.levels // 2).astype(np.uint8)
        return pack(codes, self.format.bits), scales
