"""Weights that a dialect ships in another order, read back as the parts they were made of, for every level to see.

Nothing of the packing is used: codes come through the unpacking, which only knows where a layout has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from edgewright.dialects._trt_weights import SignedProducer
from edgewright.dialects.edgellm.packing import GROUP, Int4Producer, Joined, Picked
from edgewright.formats import pack
from edgewright.graph import Producer, TensorSpec
from edgewright.targets.edgellm.unpacking import from_fragments, from_stripes

Array = np.ndarray
#: What gives the bytes of a shipped tensor, by name.
Read = Callable[[str], Array]
#: The parts of rows `[start, stop)`, in the order of the producer that was packed.
Unpack = Callable[[Read, int, int], tuple[Array, ...]]
_MIDDLE = 8
#: Rows that are unpacked together begin at multiples of this.
_RUN = 128


@dataclass(frozen=True)
class PackedPart:
    """A packed weight: what was packed, the shipped tensors, and how its parts are read back.

    `half` says that scales were rounded to float16.
    """

    inner: Producer
    shipped: tuple[TensorSpec, ...]
    unpack: Unpack
    half: bool


def packed_parts(producer: Producer) -> Iterator[PackedPart]:
    """Yield the weights that a producer packs, none for one that packs nothing."""
    if isinstance(producer, Picked):
        yield _picked(producer, producer.specs, [0] * len(producer.specs))
    elif isinstance(producer, Joined):
        starts = [0] * len(producer.specs)
        for part in producer.parts:
            assert isinstance(part, Picked)
            yield _picked(part, producer.specs, starts)
            steps = [0 if n in producer.shared else spec.shape[0] for n, spec in enumerate(part.specs)]
            starts = [start + step for start, step in zip(starts, steps, strict=True)]
    elif isinstance(producer, Int4Producer):
        yield PackedPart(producer.parts[0], producer.specs, partial(_int4, producer), half=True)
    elif isinstance(producer, SignedProducer):
        yield PackedPart(producer.parts[0], producer.specs, partial(_signed, producer), half=False)


def _picked(part: Picked, shipped: tuple[TensorSpec, ...], starts: list[int]) -> PackedPart:
    half = any(spec.dtype == "float16" for spec in shipped)
    return PackedPart(part.parts[0], shipped, partial(_rows, part, shipped, tuple(starts)), half)


def _rows(
    part: Picked, shipped: tuple[TensorSpec, ...], starts: tuple[int, ...], read: Read, start: int, stop: int
) -> tuple[Array, ...]:
    """Read rows that stand in their own order."""
    inner = part.parts[0]
    rows = inner.specs[0].shape[0]
    arrays = []
    for spec, whole, first in zip(inner.specs, shipped, starts, strict=True):
        data = read(whole.name).view(whole.numpy_dtype)
        if spec.shape[0] == rows:
            each = data.reshape(whole.array_shape[0], -1)
            data = each[first + start : first + stop]
        kind = spec.numpy_dtype
        data = data.astype(kind) if whole.dtype == "float16" else np.ascontiguousarray(data).view(kind)
        arrays.append(data.reshape(-1, *spec.array_shape[1:]))
    return tuple(arrays)


def _int4(producer: Int4Producer, read: Read, start: int, stop: int) -> tuple[Array, ...]:
    """Read the codes of an int4 plug-in's weight; zero points are in them, or in the corrections."""
    weight, *beside = producer.specs
    inner = producer.parts[0]
    rows, blocks = inner.specs[0].shape[:2]
    first, last = start - start % _RUN, min(rows, -(-stop // _RUN) * _RUN)
    lines = read(weight.name).view(np.int8).reshape(weight.shape)
    width = blocks * GROUP
    if producer.fragments:
        each = width // 64 * 8
        codes = from_fragments(lines[first // _RUN * each : -(-last // _RUN) * each], last - first, width)
    else:
        codes = from_stripes(lines[first // 2 : last // 2], last - first, width)
    codes = codes[start - first : stop - first]
    tables = [read(spec.name).view(spec.numpy_dtype).reshape(spec.shape)[:, start:stop].T for spec in beside]
    scales = tables[0].astype(np.float32)
    parts = [pack(codes, 4).reshape(stop - start, blocks, -1), scales.astype(inner.specs[1].numpy_dtype)]
    if len(inner.specs) > 2:
        zeros = np.full(scales.shape, _MIDDLE, np.uint8)
        if len(tables) > 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                moved = np.nan_to_num(np.rint(tables[1] / scales))
            zeros = np.clip(_MIDDLE - moved, 0, 15).astype(np.uint8)
        parts.append(pack(zeros, 4))
    return tuple(parts)


def _signed(producer: SignedProducer, read: Read, start: int, stop: int) -> tuple[Array, ...]:
    """Read codes around zero, and what corrections say of zero points or offsets."""
    inner = producer.parts[0]
    arrays = [read(spec.name).view(spec.numpy_dtype).reshape(spec.array_shape)[start:stop] for spec in producer.specs]
    bits = 4 if producer.specs[0].dtype == "int4" else 8
    middle = 1 << (bits - 1)
    if bits == 4:
        pairs = np.stack([arrays[0] & 15, arrays[0] >> 4], axis=-1).reshape(len(arrays[0]), -1).astype(np.int16)
        codes = pack(((pairs + middle) % 16).astype(np.uint8), 4)
    else:
        codes = (arrays[0].astype(np.int16) + middle).astype(np.uint8)
    found = {"codes": codes, "scales": arrays[1]}
    if len(arrays) > 2:
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.nan_to_num(np.rint(arrays[2] / arrays[1].astype(np.float32)), posinf=0, neginf=0)
        zeros = np.clip(middle - moved, 0, 2 * middle - 1).astype(np.uint8)
        found["zero_points"] = pack(np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2))), 4) if bits == 4 else zeros
        found["offsets"] = arrays[2]
    kinds = [spec.name.rsplit(".", 1)[-1] for spec in inner.specs]
    return tuple(
        np.ascontiguousarray(found[kind]).reshape(-1, *spec.array_shape[1:])
        for kind, spec in zip(kinds, inner.specs, strict=True)
    )
