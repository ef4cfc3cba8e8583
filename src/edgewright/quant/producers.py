"""Producers of quantized weights: by rounding, or bit-exactly from a file that stores the same codes already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import ml_dtypes
import numpy as np

from edgewright.errors import CheckpointError
from edgewright.formats import BlockFormat, FloatFormat, Format, IntFormat, Parts, pack
from edgewright.graph.weights import Producer, Rows, TensorSpec, Weight

if TYPE_CHECKING:
    from edgewright.graph import Stage


def specs_of(name: str, shape: tuple[int, ...], fmt: BlockFormat) -> tuple[TensorSpec, ...]:
    """Return the tensors a weight `[rows, width]` becomes, named after the module and the part."""
    return tuple(TensorSpec(f"{name}.{kind}", dtype, dims) for kind, (dtype, dims) in fmt.specs(shape).items())


class RoundingProducer(Producer):
    """Rounds a weight to the nearest codes, a block of rows at a time."""

    def __init__(self, weight: Weight, fmt: BlockFormat, name: str) -> None:
        self.weight, self.format = weight, fmt
        self.specs = specs_of(name, weight.shape, fmt)
        self._shared: Parts | None = None
        self._lock = threading.Lock()

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for start, stop in self.weight.blocks(self.format.row_step):
            yield lambda a=start, b=stop: self.chunk(a, b)  # type: ignore[misc]

    def chunk(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return the parts of some rows; what belongs to all rows comes with the first."""
        try:
            parts = self.format.encode(self.weight.rows(start, stop), self.shared())
        except FloatingPointError as error:
            what = f"{error}, so it" if "scale" in str(error) else "it holds values that are not finite, so it"
            raise CheckpointError(
                f"{self.weight.name}: {what} can't be quantized: repair the checkpoint, or keep it in float32."
            ) from None
        return in_order(parts, self.specs, self.format, start)

    def shared(self) -> Parts:
        """Return the parts that belong to all rows, which takes a pass over the weight the first time."""
        with self._lock:
            if self._shared is None:
                largest = 0.0
                for start, stop in self.weight.blocks() if self.format.shared else ():
                    largest = max(largest, float(np.abs(self.weight.rows(start, stop)).max()))
                self._shared = self.format.survey(largest)
        return self._shared


def second_roundings(stage: Stage) -> dict[str, dict[str, Any]]:
    """Return, by module, what was quantized before and is rounded again, with the relative RMS error of that."""
    found = {}
    beside = [] if stage.outside is None else [stage.outside.producer]
    for producer in _flat(dict.fromkeys([*stage.producers.values(), *beside])):
        before = _encoding(producer.weight.stored()) if isinstance(producer, RoundingProducer) else None
        if before is None:
            continue
        assert isinstance(producer, RoundingProducer)
        error = total = 0.0
        for start, stop in producer.weight.blocks(producer.format.row_step):
            values = producer.weight.rows(start, stop)
            parts = {**producer.shared(), **producer.format.encode(values, producer.shared())}
            rounded = producer.format.decode(parts, values.shape[1])
            error += float(np.square(rounded - values, dtype=np.float64).sum())
            total += float(np.square(values, dtype=np.float64).sum())
        module = producer.specs[0].name.rsplit(".", 1)[0]
        rms = float(np.sqrt(error / total)) if total else 0.0
        found[module] = {"from": before.label, "relative_rms": float(f"{rms:.4g}")}
    return found


def _flat(producers: Iterable[Producer]) -> Iterator[Producer]:
    for producer in producers:
        yield from _flat(producer.parts) if producer.parts else (producer,)


def _encoding(tensor: Rows | None) -> BlockFormat | None:
    """Return the format another tool quantized a tensor to, also where it was decoded since."""
    before: BlockFormat | None = getattr(tensor, "encoding", None) or getattr(tensor, "decoded", None)
    return before


def in_order(
    parts: Mapping[str, np.ndarray], specs: Sequence[TensorSpec], fmt: BlockFormat, start: int
) -> tuple[np.ndarray, ...]:
    """Return parts as the arrays of a chunk; shared ones are empty but in the chunk that begins at row 0."""
    kinds = [spec.name.rsplit(".", 1)[-1] for spec in specs]
    return tuple(parts[kind][:0] if kind in fmt.shared and start else parts[kind] for kind in kinds)


class _Encoded(Rows, Protocol):
    """A stored tensor that another tool quantized."""

    encoding: BlockFormat

    def encoded(self, start: int, stop: int) -> Parts: ...


class EncodedProducer(Producer):
    """Takes the parts of a tensor that another tool quantized over as they are."""

    def __init__(self, tensor: _Encoded, weight: Weight, fmt: BlockFormat, name: str) -> None:
        self.weight, self.format, self._tensor = weight, fmt, tensor
        specs = specs_of(name, weight.shape, tensor.encoding)
        if "offsets" in tensor.encoded(0, 0):
            specs = (*specs, TensorSpec(f"{name}.offsets", "float32", specs[1].shape))
        self.specs = specs

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for start, stop in self.weight.blocks(self.format.row_step):
            yield lambda a=start, b=stop: self.chunk(a, b)  # type: ignore[misc]

    def chunk(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return the parts of some rows as the checkpoint has them. Raises CheckpointError on what is not finite."""
        parts = self._tensor.encoded(start, stop)
        for kind, part in parts.items():
            if not _is_finite(part):
                raise CheckpointError(f"{self.weight.name} holds {kind} that are not finite: repair the checkpoint.")
        return in_order(parts, self.specs, self.format, start)


def _is_finite(part: np.ndarray) -> bool:
    """Tell whether codes or scales are numbers: two codes of E4M3, and one of E8M0, are none."""
    if part.dtype in (np.uint8, np.int8):  # whole numbers, and 4-bit floats, which have no such codes
        return True
    if part.dtype == ml_dtypes.float8_e4m3fn:
        return not (part.view(np.uint8) & 0x7F == 0x7F).any()
    return bool(np.isfinite(part.astype(np.float32)).all())


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
    kept: str | None = getattr(tensor, "kept", None)
    if kept is not None:
        return FloatFormat(kept)
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
        specs = specs_of(name, weight.shape, replace(fmt, zero_point=False))
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
