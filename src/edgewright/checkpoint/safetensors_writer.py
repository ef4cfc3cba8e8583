"""The safetensors file format, written from chunks: the header first, then one tensor after the other.

No tensor is ever in memory as a whole unless its chunks are. `safetensors` is the reader, which also has the layout.
Tensors are laid out by falling element size and then by name, so that each begins at a multiple of its element size
and the file depends on nothing but its content; chunks are asked for in that order (`file_order`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.safetensors import MAX_DIMENSIONS, MAX_HEADER_BYTES
from edgewright.checkpoint.text import shown
from edgewright.errors import UsageError
from edgewright.files import os_errors

#: The format's names of what can be written. Packed 4-bit codes are stored as U8.
WRITABLE: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype.newbyteorder("="): name for name, dtype in WRITABLE.items()}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written: its dtype by the format's name (`F32`), its shape, and its elements.

    `chunks` yields arrays of that dtype whose elements, one array after the other in C order, are the tensor's. An
    array of uint8 is taken as stored bytes whatever the dtype. Chunks are asked for once, when their turn comes.
    """

    dtype: str
    shape: tuple[int, ...]
    chunks: Iterable[npt.NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """The tensor's size in the file."""
        return math.prod(self.shape) * WRITABLE[self.dtype].itemsize


def array_spec(array: npt.NDArray[Any]) -> TensorSpec:
    """Return the spec of an array in memory; raises UsageError for a dtype that the format lacks."""
    name = _NAMES.get(array.dtype.newbyteorder("="))
    if name is None:
        raise UsageError(f"An array of {array.dtype} can't be written as safetensors: convert it to another dtype.")
    return TensorSpec(name, tuple(array.shape), (array,))


def file_order(tensors: Mapping[str, TensorSpec]) -> list[str]:
    """Return the names in the order in which the file has the tensors and their chunks are asked for."""
    return sorted(tensors, key=lambda name: (-WRITABLE[tensors[name].dtype].itemsize, name))


def write_safetensors(
    path: Path,
    tensors: Mapping[str, TensorSpec],
    metadata: Mapping[str, str] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a safetensors file that appears under its name only when it is complete and on the disk.

    An existing file is replaced. `progress` is told the bytes of every chunk. Raises UsageError when a spec breaks the
    format or its chunks aren't what it says, OutputError when the file can't be written.
    """
    for name, spec in tensors.items():
        _check_spec(name, spec)
    names = file_order(tensors)
    header = _header(names, tensors, metadata or {})
    work = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with os_errors(path.name):
            with work.open("wb") as file:
                file.write(len(header).to_bytes(8, "little"))
                file.write(header)
                for name in names:
                    _write_tensor(file, name, tensors[name], progress)
                file.flush()
                os.fsync(file.fileno())
            work.replace(path)
            _sync_folder(path.parent)
    finally:
        work.unlink(missing_ok=True)


def _check_spec(name: str, spec: TensorSpec) -> None:
    if not isinstance(name, str) or name == "__metadata__":
        raise UsageError(f"A tensor can't be named {shown(name)} in a safetensors file: choose another name.")
    if spec.dtype not in WRITABLE:
        raise UsageError(
            f"The tensor {shown(name)} has the dtype {shown(spec.dtype)}, which can't be written; known are "
            f"{', '.join(WRITABLE)}."
        )
    if len(spec.shape) > MAX_DIMENSIONS or any(size < 0 for size in spec.shape):
        raise UsageError(
            f"The tensor {shown(name)} has the shape {shown(list(spec.shape))}, not at most {MAX_DIMENSIONS} "
            "non-negative sizes: correct it."
        )


def _header(names: Iterable[str], tensors: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Return the header, padded with spaces so that the data begins at a multiple of 8 bytes."""
    if not all(isinstance(item, str) for pair in metadata.items() for item in pair):
        raise UsageError("The metadata of a safetensors file are texts by text: write other values as JSON text.")
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    cursor = 0
    for name in names:
        spec = tensors[name]
        end = cursor + spec.nbytes
        entries[name] = {"dtype": spec.dtype, "shape": [int(n) for n in spec.shape], "data_offsets": [cursor, end]}
        cursor = end
    try:
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise UsageError("A tensor's name or a metadata text holds a lone surrogate: write valid Unicode.") from None
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise UsageError(
            f"{len(entries)} tensors need a header of {len(text)} bytes and the format allows {MAX_HEADER_BYTES}: "
            "write several files."
        )
    return text


def _write_tensor(file: BinaryIO, name: str, spec: TensorSpec, progress: Callable[[int], None] | None) -> None:
    wanted, written = WRITABLE[spec.dtype], 0
    for chunk in spec.chunks:
        if chunk.dtype != np.uint8 and chunk.dtype.newbyteorder("=") != wanted.newbyteorder("="):
            raise UsageError(
                f"The tensor {shown(name)} was announced as {spec.dtype} and a chunk of it is {chunk.dtype}: "
                "convert the chunk."
            )
        stored = chunk if chunk.dtype == np.uint8 else chunk.astype(wanted, copy=False)
        data = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
        written += data.size
        if written > spec.nbytes:
            break
        file.write(data.data)
        if progress is not None:
            progress(data.size)
    if written != spec.nbytes:
        raise UsageError(
            f"The tensor {shown(name)} was announced with {spec.nbytes} bytes and its chunks have "
            f"{'at least ' if written > spec.nbytes else ''}{written}: announce the shape that is written."
        )


def _sync_folder(folder: Path) -> None:
    """Ask the disk to keep the folder's new entry."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
