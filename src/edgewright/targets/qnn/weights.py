"""Weights as the HTP takes them: whole numbers in two's complement, scaled by column or by block, zero at zero.

A recipe's integers are taken over where they are of that form: with a scale a row, or with scales by blocks of a
multiple of 16 that fill the rows. Codes of 4 bits that don't fit 4 bits around zero (they have zero points, or scales
below zero) stand in 8 bits, which changes no value. Everything else (floats, 8-bit codes that don't fit, padded or
narrow blocks) is rounded anew, by the recipe's blocks where they are an encoding of the HTP's, else by column.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from edgewright.dialects.qnn_graph import Source
from edgewright.files import inside

Floats = npt.NDArray[np.float32]
#: Blocks narrower than this, or no multiple of it, are no encoding of the HTP's.
_BLOCK = 16
_ROWS = 1 << 22


@dataclass(frozen=True)
class HtpWeight:
    """A weight `[in, out]`: codes in int8, float32 scales `[out]` or `[blocks, out]`, bits, and what was done.

    `how` is "taken", "centred" (the same values in 8 bits) or "rounded".
    """

    codes: npt.NDArray[np.int8]
    scales: Floats
    bits: int
    block: int | None
    how: str


class Weights:
    """The weights of a graph of the qnn dialect, read where they lie."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """Return an initializer; a view of the file where it is in one."""
        tensor = self._tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            array: npt.NDArray[Any] = numpy_helper.to_array(tensor)
            return array
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries["location"]
        if location not in self._maps:
            with inside(self._folder, location).open("rb") as file:
                self._maps[location] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        count = int(np.prod(tensor.dims, dtype=np.int64))
        start = int(entries.get("offset", 0))
        return np.frombuffer(self._maps[location], kind, count, start).reshape(tuple(tensor.dims))

    def vector(self, source: Source) -> Floats:
        """Return a norm's weight or a bias, float32."""
        return self.tensor(source.inputs[0]).astype(np.float32)

    def blocks(self, source: Source) -> Iterator[Floats]:
        """Yield the stored weight's float32 rows `[n, in]`, some at a time."""
        total, width = self._size(source)
        step = max(1, _ROWS // max(1, width))
        for start in range(0, total, step):
            yield self._rows(source, start, min(total, start + step))

    def linear(self, source: Source, wanted: str = "recipe") -> HtpWeight:
        """Return a linear's weight; `wanted` "int8" or "int4" rounds every one anew, in so many bits."""
        found = _taken(self, source) if wanted == "recipe" else None
        return found or self._rounded(source, 4 if wanted == "int4" else 8)

    def _rounded(self, source: Source, bits: int) -> HtpWeight:
        """Round a weight to nearest, by the recipe's blocks where the HTP has such, else by column."""
        largest = (1 << (bits - 1)) - 1
        total, width = self._size(source)
        block = _block_of(source, width)
        codes = np.empty((width, total), dtype=np.int8)
        scales = np.empty((width // block, total), dtype=np.float32)
        start = 0
        for rows in self.blocks(source):
            stop = start + len(rows)
            blocked = rows.reshape(len(rows), -1, block)
            tops = np.abs(blocked).max(axis=2)
            steps = np.where(tops > 0, tops / np.float32(largest), np.float32(1))
            codes[:, start:stop] = np.rint(blocked / steps[..., None]).astype(np.int8).reshape(len(rows), width).T
            scales[:, start:stop] = steps.T
            start = stop
        return _scaled(codes, scales, bits, "rounded")

    def _size(self, source: Source) -> tuple[int, int]:
        if source.op in ("Linear", "Embedding"):
            rows, width = self.tensor(source.inputs[0]).shape
            return int(rows), int(width)
        return int(source.attributes["out_features"]), int(source.attributes["in_features"])

    def _rows(self, source: Source, start: int, stop: int) -> Floats:
        stored = [self.tensor(name)[start:stop] if name else None for name in source.inputs[:4]]
        if source.op in ("Linear", "Embedding"):
            return _floats(stored[0])
        if source.op in ("QuantLinear", "QuantEmbedding"):
            return _dequantized(stored, source.attributes)
        scales = self.tensor(source.inputs[1])
        picked = scales if scales.size == 1 else scales[start:stop]
        return _floats(stored[0]) * picked.astype(np.float32).reshape(-1, 1)


def unpacked(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Return codes `[..., n]` of bytes whose low half comes first, or the bytes themselves."""
    if bits == 8:
        return codes
    pairs = np.stack([codes & 15, codes >> 4], axis=-1)
    return pairs.reshape(*codes.shape[:-1], -1)


def _floats(array: npt.NDArray[Any] | None) -> Floats:
    assert array is not None
    return np.ascontiguousarray(array, dtype=np.float32)


def _zero_points(packed: npt.NDArray[np.uint8] | None, blocks: int, bits: int) -> npt.NDArray[np.int16]:
    """Return zero points `[rows, blocks]`, `[1, 1]` where they are the middle."""
    if packed is None:
        return np.full((1, 1), 1 << (bits - 1), dtype=np.int16)
    return unpacked(packed, bits)[:, :blocks].astype(np.int16)


def _dequantized(stored: list[npt.NDArray[Any] | None], a: Mapping[str, Any]) -> Floats:
    codes, scales, zeros, offsets = stored
    assert codes is not None
    centred = unpacked(codes, a["bits"]).astype(np.int16) - _zero_points(zeros, codes.shape[1], a["bits"])[..., None]
    values = centred.astype(np.float32) * _floats(scales)[..., None]
    if offsets is not None:
        values += _floats(offsets)[..., None]
    return values.reshape(len(codes), -1)[:, : a["in_features"]]


def _block_of(source: Source, width: int) -> int:
    """Return the width of the blocks that a weight can have on the HTP: the recipe's, or that of the whole column."""
    group = int(source.attributes.get("group") or width)
    return group if group < width and width % group == 0 and group % _BLOCK == 0 else width


def _scaled(codes: npt.NDArray[np.int8], scales: Floats, bits: int, how: str) -> HtpWeight:
    """Return a weight with scales `[blocks, out]`."""
    if len(scales) == 1:
        return HtpWeight(codes, scales[0].copy(), bits, None, how)
    return HtpWeight(codes, np.ascontiguousarray(scales), bits, len(codes) // len(scales), how)


def _taken(weights: Weights, source: Source) -> HtpWeight | None:
    """Return a weight with the recipe's own values, or None where they are of no form the HTP has."""
    a = source.attributes
    if source.op == "Decode":
        codes, scales = weights.tensor(source.inputs[0]), weights.tensor(source.inputs[1]).astype(np.float32)
        rows = np.broadcast_to(scales.reshape(-1), (len(codes),))
        if not (rows > 0).all():
            return None
        columns = np.ascontiguousarray(codes[:, : a["in_features"]].T)
        return HtpWeight(columns, np.ascontiguousarray(rows), 8, None, "taken")
    if source.op != "QuantLinear" or source.inputs[3]:
        return None
    width, bits = int(a["in_features"]), int(a["bits"])
    codes, scales = weights.tensor(source.inputs[0]), weights.tensor(source.inputs[1]).astype(np.float32)
    blocks = codes.shape[1]
    if blocks > 1 and _block_of(source, width) == width:
        return None
    packed = weights.tensor(source.inputs[2]) if source.inputs[2] else None
    # The HTP's scales are above zero; a recipe's may be below, to reach the longer end of the codes.
    # What a scale of zero makes zero has the code of zero.
    signs = np.sign(scales).astype(np.int16)[..., None]
    centred = signs * (unpacked(codes, bits).astype(np.int16) - _zero_points(packed, blocks, bits)[..., None])
    centred = centred.reshape(len(codes), -1)[:, :width]
    low, high = int(centred.min()), int(centred.max())
    wide = next((n for n in (4, 8) if n >= bits and -(1 << (n - 1)) <= low and high < 1 << (n - 1)), None)
    if wide is None:
        return None
    steps = np.where(scales == 0, np.float32(1), np.abs(scales)).T
    return _scaled(np.ascontiguousarray(centred.astype(np.int8).T), steps, wide, "taken" if wide == bits else "centred")
