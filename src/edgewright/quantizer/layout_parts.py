"""What the writers of other tools' layouts have in common: a module to write, and specs of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edgewright.checkpoint.safetensors_writer import TensorSpec, array_spec
from edgewright.checkpoint.tensor import DTYPES, FLOATING, StoredTensor
from edgewright.formats import ActivationFormat, Array, BlockFormat, IntFormat, unpack
from edgewright.formats.cache import KVFormat

#: The safetensors names of dtypes.
NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "uint8": "U8",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
}
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Written:
    """A quantized module under its stored name: its parts as our formats have them, what its input goes through."""

    name: str
    format: BlockFormat
    shape: tuple[int, int]
    activation: ActivationFormat | None
    parts: Mapping[str, StoredTensor]
    inputs: Mapping[str, StoredTensor]


class Layout(Protocol):
    """How another tool stores quantized modules."""

    def refuses(
        self, fmt: BlockFormat, activation: ActivationFormat | None, shape: tuple[int, int], *, multiply: bool
    ) -> str | None:
        """Say why there is no place for a module, or None; `multiply` tells that its input has factors."""

    def refuses_cache(self, fmt: KVFormat) -> str | None:
        """Say why there is no place for a format of the cache, or None."""

    def tensors(self, module: Written) -> dict[str, TensorSpec]:
        """Return the tensors of a module."""

    def cache(self, attention: str, key: StoredTensor, value: StoredTensor) -> dict[str, TensorSpec]:
        """Return the tensors of the scales of a layer's cache."""

    def config(
        self, modules: Sequence[Written], plain: Sequence[str], kv: KVFormat | None
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the entry quantization_config and further files by name; `plain` are modules that stay floats."""


class Again:
    """Chunks that can be asked for whenever their turn comes."""

    def __init__(self, chunks: Callable[[], Iterator[Array]]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[Array]:
        return self._chunks()


def by_rows(
    dtype: str, shape: tuple[int, ...], rows: int, row_bytes: int, make: Callable[[int, int], Array], multiple: int = 1
) -> TensorSpec:
    """Return a tensor made of runs of `rows` rows that begin at multiples of `multiple`."""
    step = max(1, _CHUNK_BYTES // max(row_bytes, 1) // multiple) * multiple

    def chunks() -> Iterator[Array]:
        for start in range(0, rows, step):
            yield make(start, min(start + step, rows))

    return TensorSpec(NAMES[dtype], shape, Again(chunks))


def copied(tensor: StoredTensor, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> TensorSpec:
    """Return a tensor byte for byte under another dtype of that size or another shape; what isn't plain as float32."""
    if tensor.dtype not in NAMES:
        assert dtype is None
        return by_rows(
            "float32", tuple(tensor.shape), tensor.row_count, 4 * _width(tensor), lambda a, b: tensor.rows(a, b)
        )
    row_bytes = tensor.nbytes // max(tensor.row_count, 1)
    size = tuple(tensor.shape) if shape is None else shape
    return by_rows(dtype or tensor.dtype, size, tensor.row_count, row_bytes, tensor.raw)


def _width(tensor: StoredTensor) -> int:
    return int(np.prod(tensor.shape[1:], dtype=np.int64))


def floats(tensor: StoredTensor) -> Array:
    """Return a small tensor of floats in memory, as float32."""
    assert tensor.dtype in FLOATING
    values: Array = tensor.read().astype(np.float32)
    return values


def small(values: Any, dtype: str, shape: tuple[int, ...] | None = None) -> TensorSpec:
    """Return a small tensor from memory."""
    array = np.asarray(values, DTYPES[dtype])
    return array_spec(array if shape is None else array.reshape(shape))


def codes_of(module: Written) -> Callable[[int, int], Array]:
    """Return a reader of the unsigned codes of an integer format, uint8 `[rows, width]`."""
    fmt, tensor = module.format, module.parts["codes"]
    assert isinstance(fmt, IntFormat)
    bits, width = fmt.bits, module.shape[1]

    def read(start: int, stop: int) -> Array:
        packed = tensor.rows(start, stop).reshape(stop - start, -1)
        return unpack(packed, bits)[:, :width]

    return read


def distinct(items: Iterable[Any]) -> list[Any]:
    """Return items without repetitions, in order."""
    found: list[Any] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found
