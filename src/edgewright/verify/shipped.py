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
from edgewright.dialects._qdq import DenseZeroPoints, dense_rows
from edgewright.errors import BundleError
from edgewright.files import inside
from edgewright.formats import BlockFormat
from edgewright.graph import Producer, Stage, TensorSpec, Weight
from edgewright.graph.weights import StackedProducer
from edgewright.graph.writer import unique_producers
from edgewright.runtime.embedding import SIDECAR, TENSORS, read_places
from edgewright.verify.decode import decode_parts
from edgewright.verify.packed import PackedPart, packed_parts

#: The file of an embedding table beside the graph.
TABLE = f"sidecars/{SIDECAR}"


@dataclass(frozen=True)
class Leaf:
    """One weight as it was written: its producer, and for each of its tensors the file tensor and first row.

    `step` is the distance of its rows in the file: more than 1 where they alternate with another weight's. `file` is
    the file of a table beside the graph. A weight in another order has `packed`, which reads its parts.
    """

    producer: Producer
    places: tuple[tuple[TensorSpec, str, int], ...]
    step: int = 1
    file: str = ""
    packed: PackedPart | None = None

    @property
    def name(self) -> str:
        """What reports call it: its first tensor, or its file."""
        return self.file or self.producer.specs[0].name


def leaves(stage: Stage) -> Iterator[Leaf]:
    """Yield the single weights of a lowered stage, stacked and interleaved ones taken apart; a table beside it last."""
    for producer in unique_producers(stage):
        packed = [
            Leaf(part.inner, tuple((spec, spec.name, 0) for spec in part.shipped), packed=part)
            for part in packed_parts(producer)
        ]
        if packed:
            yield from packed
            continue
        if isinstance(producer, InterleavedProducer):
            for first, part in enumerate(producer.parts):
                specs = zip(part.specs, producer.specs, strict=True)
                yield Leaf(part, tuple((spec, whole.name, first) for spec, whole in specs), len(producer.parts))
            continue
        if isinstance(producer, DenseZeroPoints):
            producer = producer.inner
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
    if stage.outside is not None:
        producer = stage.outside.producer
        quantized = hasattr(producer, "format")
        kinds = [spec.name.rsplit(".", 1)[-1] if quantized else "codes" for spec in producer.specs]
        names = [f"{TABLE}:{TENSORS[kind]}" for kind in kinds]
        places = tuple((spec, name, 0) for spec, name in zip(producer.specs, names, strict=True))
        yield Leaf(producer, places, file=TABLE)


class Tensors(Protocol):
    """Where the tensors of a weight come from."""

    def leaf_rows(self, leaf: Leaf, start: int, stop: int) -> tuple[np.ndarray, ...]: ...


class FreshTensors:
    """The tensors that a weight's producer makes now: what a bundle should ship."""

    def leaf_rows(self, leaf: Leaf, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return the rows of each of a leaf's tensors; the range must be one of the weight's blocks."""
        producer = leaf.producer
        step = getattr(getattr(producer, "format", None), "row_step", 1)
        index = list(producer.weight.blocks(step)).index((start, stop))  # type: ignore[attr-defined]
        arrays = next(itertools.islice(producer.chunks(), index, None))()
        if start and (shared := getattr(getattr(producer, "format", None), "shared", None)):
            whole = next(iter(producer.chunks()))()
            kinds = [spec.name.rsplit(".", 1)[-1] for spec in producer.specs]
            arrays = tuple(w if k in shared else a for k, w, a in zip(kinds, whole, arrays, strict=True))
        return arrays


def part_rows(producer: Producer, spec: TensorSpec, start: int, stop: int) -> tuple[int, int]:
    """Return the rows of one of a weight's tensors that belong to rows `[start, stop)` of the weight."""
    fmt = getattr(producer, "format", None)
    kind = spec.name.rsplit(".", 1)[-1]
    if fmt is None or kind == "codes":
        return start, stop
    if kind in fmt.shared:
        return 0, spec.shape[0]
    return start // fmt.row_step, -(-stop // fmt.row_step)


class ShippedTensors:
    """The external tensors of a bundle's graph, and those of an embedding table beside it, mapped.

    Raises BundleError when one is missing or misplaced.
    """

    def __init__(self, graph: Path, table: Path | None = None) -> None:
        model = onnx.load(graph, load_external_data=False)
        self._places: dict[str, tuple[Path, int, int]] = {}
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                path = inside(graph.parent, entries["location"])
                self._places[tensor.name] = (path, int(entries.get("offset", 0)), int(entries["length"]))
        if table is not None:
            found = read_places(table).items()
            self._places |= {f"{TABLE}:{name}": (table, start, length) for name, (_, _, start, length) in found}
        self._maps: dict[Path, np.memmap] = {}

    def holds(self, leaf: Leaf) -> bool:
        """Tell whether the bundle has every tensor of a weight."""
        names = self._places
        return all({name, f"{name}.flat", f"{name}.dense.flat"} & names.keys() for _, name, _ in leaf.places)

    def rows(self, spec: TensorSpec, name: str, first: int, start: int, stop: int, step: int = 1) -> np.ndarray:
        """Return rows `[start, stop)` of the tensor `spec`: its row i is row `first + i * step` of tensor `name`."""
        if name not in self._places and f"{name}.dense.flat" in self._places:
            try:
                return dense_rows(self._bytes(f"{name}.dense.flat"), spec, start, stop)
            except ValueError:
                raise BundleError(f"The bundle's tensor {name} is too short: the bundle is damaged.") from None
        if name not in self._places:
            name = f"{name}.flat"  # the same bytes under another shape, see Stage.alias
        data = self._bytes(name)
        row_bytes = spec.nbytes // max(1, spec.shape[0])
        count = (stop - start - 1) * step + 1
        begin = (first + start * step) * row_bytes
        end = begin + count * row_bytes
        if end > len(data):
            raise BundleError(f"The bundle's tensor {name} is shorter than its weight: the bundle is damaged.")
        data = data[begin:end].reshape(count, row_bytes)[::step]
        return np.ascontiguousarray(data).view(spec.numpy_dtype).reshape(stop - start, *spec.array_shape[1:])

    def _bytes(self, name: str) -> np.ndarray:
        """Return a tensor's bytes, as many as the file has."""
        if name not in self._places:
            raise BundleError(f"The bundle has no tensor {name}: it was built from another checkpoint or recipe.")
        path, offset, length = self._places[name]
        if path not in self._maps:
            self._maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        return self._maps[path][offset : offset + length]

    def leaf_rows(self, leaf: Leaf, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return the rows of each of a leaf's tensors; smaller ones have their share or all of it."""
        if leaf.packed is not None:
            try:
                return leaf.packed.unpack(self._bytes, start, stop)
            except (ValueError, IndexError):
                raise BundleError(f"The bundle's {leaf.name} is shorter than its weight: it is damaged.") from None
        return tuple(
            self.rows(spec, name, first, *part_rows(leaf.producer, spec, start, stop), leaf.step)
            for spec, name, first in leaf.places
        )


def decode(leaf: Leaf, arrays: tuple[np.ndarray, ...], fmt: BlockFormat, width: int) -> np.ndarray:
    """Return float32 `[rows, width]` of a leaf's parts."""
    specs = leaf.producer.specs if leaf.packed is not None else [spec for spec, _, _ in leaf.places]
    kinds = [spec.name.rsplit(".", 1)[-1] for spec in specs]
    return decode_parts(dict(zip(kinds, arrays, strict=True)), fmt, width)


class ShippedWeight(Weight):
    """A quantized weight as `tensors` give it, seen as floats."""

    def __init__(self, name: str, leaf: Leaf, fmt: BlockFormat, shape: tuple[int, ...], tensors: Tensors) -> None:
        self.name, self.shape = name, shape
        self._leaf, self._format, self._tensors = leaf, fmt, tensors

    def rows(self, start: int, stop: int) -> np.ndarray:
        first = start - start % self._format.row_step
        arrays = self._tensors.leaf_rows(self._leaf, first, stop)
        return np.ascontiguousarray(decode(self._leaf, arrays, self._format, self.shape[1])[start - first :])
