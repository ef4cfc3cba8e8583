"""Reading back what a bundle really ships: the tensors of its weight file, found through its graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx

from edgewright.dialects._ort_experts import InterleavedProducer
from edgewright.errors import BundleError
from edgewright.files import inside
from edgewright.graph import Producer, Stage, TensorSpec, Weight
from edgewright.graph.weights import StackedProducer
from edgewright.graph.writer import unique_producers
from edgewright.quant.formats import IntFormat


@dataclass(frozen=True)
class Leaf:
    """One weight as it was written: its producer, and for each of its tensors the file tensor and first row.

    `step` is the distance of its rows in the file: more than 1 where they alternate with another weight's.
    """

    producer: Producer
    places: tuple[tuple[TensorSpec, str, int], ...]
    step: int = 1


def leaves(stage: Stage) -> Iterator[Leaf]:
    """Yield the single weights of a lowered stage, stacked and interleaved ones taken apart."""
    for producer in unique_producers(stage):
        if isinstance(producer, InterleavedProducer):
            for first, part in enumerate(producer.parts):
                specs = zip(part.specs, producer.specs, strict=True)
                yield Leaf(part, tuple((spec, whole.name, first) for spec, whole in specs), len(producer.parts))
            continue
        if not isinstance(producer, StackedProducer):
            yield Leaf(producer, tuple((spec, spec.name, 0) for spec in producer.specs))
            continue
        starts = [0] * len(producer.specs)
        for part in producer.parts:
            yield Leaf(
                part,
                tuple(
                    (spec, whole.name, start)
                    for spec, whole, start in zip(part.specs, producer.specs, starts, strict=True)
                ),
            )
            starts = [start + spec.shape[0] for start, spec in zip(starts, part.specs, strict=True)]


class Tensors(Protocol):
    """Where the tensors of a weight come from."""

    def leaf_rows(self, leaf: Leaf, start: int, stop: int) -> tuple[np.ndarray, ...]: ...


class FreshTensors:
    """The tensors that a weight's producer makes now: what a bundle should ship."""

    def leaf_rows(self, leaf: Leaf, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return the rows of each of a leaf's tensors; the range must be one of the weight's blocks."""
        weight = leaf.producer.weight  # type: ignore[attr-defined]
        index = list(weight.blocks()).index((start, stop))
        return next(itertools.islice(leaf.producer.chunks(), index, None))()


class ShippedTensors:
    """The external tensors of a bundle's graph, mapped. Raises BundleError when one is missing or misplaced."""

    def __init__(self, graph: Path) -> None:
        model = onnx.load(graph, load_external_data=False)
        self._places: dict[str, tuple[Path, int, int]] = {}
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                path = inside(graph.parent, entries["location"])
                self._places[tensor.name] = (path, int(entries.get("offset", 0)), int(entries["length"]))
        self._maps: dict[Path, np.memmap] = {}

    def holds(self, leaf: Leaf) -> bool:
        """Tell whether the bundle has every tensor of a weight."""
        names = self._places
        return all(name in names or f"{name}.flat" in names for _, name, _ in leaf.places)

    def rows(self, spec: TensorSpec, name: str, first: int, start: int, stop: int, step: int = 1) -> np.ndarray:
        """Return rows `[start, stop)` of the tensor `spec`: its row i is row `first + i * step` of tensor `name`."""
        if name not in self._places:
            name = f"{name}.flat"  # the same bytes under another shape, see Stage.alias
        if name not in self._places:
            raise BundleError(f"The bundle has no tensor {name}: it was built from another checkpoint or recipe.")
        path, offset, length = self._places[name]
        if path not in self._maps:
            self._maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        row_bytes = spec.nbytes // max(1, spec.shape[0])
        count = (stop - start - 1) * step + 1
        begin = (first + start * step) * row_bytes
        end = begin + count * row_bytes
        if end > length or offset + end > len(self._maps[path]):
            raise BundleError(f"The bundle's tensor {name} is shorter than its weight: the bundle is damaged.")
        data = self._maps[path][offset + begin : offset + end].reshape(count, row_bytes)[::step]
        return np.ascontiguousarray(data).view(spec.numpy_dtype).reshape(stop - start, *spec.shape[1:])

    def leaf_rows(self, leaf: Leaf, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return the rows of each of a leaf's tensors."""
        return tuple(self.rows(spec, name, first, start, stop, leaf.step) for spec, name, first in leaf.places)


def decode(leaf: Leaf, arrays: tuple[np.ndarray, ...], fmt: IntFormat, width: int) -> np.ndarray:
    """Return float32 `[rows, width]` of a leaf's codes, scales and optional zero points and offsets.

    Written apart from the quantizer on purpose: it is the check on it. Source: the `MatMulNBits` specification.
    """
    kinds = [spec.name.rsplit(".", 1)[-1] for spec, _, _ in leaf.places]
    given = dict(zip(kinds, arrays, strict=True))
    codes, scales = given["codes"], given["scales"]
    rows, blocks = scales.shape
    if fmt.bits == 8:
        values = codes.reshape(rows, blocks, fmt.group).astype(np.float32)
    else:
        values = np.empty((rows, blocks, fmt.group), dtype=np.float32)
        values[:, :, 0::2] = codes & 0x0F
        values[:, :, 1::2] = codes >> 4
    packed = given.get("zero_points")
    if packed is not None:
        zeros = np.empty((rows, blocks), dtype=np.float32)
        for block in range(blocks):
            byte = packed[:, block] if fmt.bits == 8 else (packed[:, block // 2] >> (4 * (block % 2))) & 0x0F
            zeros[:, block] = byte
    else:
        zeros = np.full((rows, blocks), float(1 << (fmt.bits - 1)), dtype=np.float32)
    values = (values - zeros[:, :, None]) * scales[:, :, None]
    if "offsets" in given:
        values += given["offsets"][:, :, None]
    decoded: np.ndarray = values.reshape(rows, blocks * fmt.group)
    return decoded[:, :width]


class ShippedWeight(Weight):
    """A quantized weight as `tensors` give it, seen as floats."""

    def __init__(self, name: str, leaf: Leaf, fmt: IntFormat, shape: tuple[int, ...], tensors: Tensors) -> None:
        self.name, self.shape = name, shape
        self._leaf, self._format, self._tensors = leaf, fmt, tensors

    def rows(self, start: int, stop: int) -> np.ndarray:
        arrays = self._tensors.leaf_rows(self._leaf, start, stop)
        return decode(self._leaf, arrays, self._format, self.shape[1])
