"""The GGUF container, versions 2 and 3, little endian: metadata and tensor table from a mapping, every count checked.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version u32, tensor count u64, pair count
u64; the key/value pairs; per tensor name, dimensions (fastest first), type and offset; padding; the data. No count is
believed before the bytes it stands for are known to be in the file.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.gguf_blocks import BLOCK_FORMATS
from edgewright.checkpoint.safetensors import map_file
from edgewright.checkpoint.tensor import DTYPES, Bytes
from edgewright.checkpoint.text import REMAKE, shown
from edgewright.errors import MalformedHeaderError, TensorLayoutError, TruncatedFileError, UnsupportedFormatError

MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 65535
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS: dict[int, np.dtype[Any]] = {
    0: DTYPES["uint8"],
    1: DTYPES["int8"],
    2: DTYPES["uint16"],
    3: DTYPES["int16"],
    4: DTYPES["uint32"],
    5: DTYPES["int32"],
    6: DTYPES["float32"],
    7: DTYPES["uint8"],  # bool; its values are checked
    10: DTYPES["uint64"],
    11: DTYPES["int64"],
    12: DTYPES["float64"],
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PLAIN_TYPES = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
_BLOCK_TYPES = {
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
}
_OTHER_TYPES = {
    **{9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S"},
    **{22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}


class Strings:
    """An array of strings in a mapped file; `offsets` are where each string's bytes start, after its length."""

    def __init__(self, data: Bytes, offsets: npt.NDArray[np.int64]):
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def as_bytes(self) -> list[bytes]:
        """Return all strings as stored."""
        if not len(self):
            return []
        base = int(self._offsets[0]) - 8
        last = int(self._offsets[-1])
        size = int(self._data[last - 8 : last].view(np.uint64)[0])
        buffer = self._data[base : last + size].tobytes()
        starts = (self._offsets - base).tolist()
        ends = [start - 8 for start in starts[1:]] + [len(buffer)]
        return [buffer[start:end] for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class GgufTensor:
    """An entry of the tensor table: `shape` rows first, `data` the stored bytes uint8 [nbytes]."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Bytes


@dataclass(frozen=True)
class GgufFile:
    """A parsed GGUF file: metadata values are int, float, bool, str, a NumPy array or Strings."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Return metadata and tensor table of a GGUF file; tensor data is mapped, not read.

    Raises TruncatedFileError, MalformedHeaderError, TensorLayoutError or UnsupportedFormatError.
    """
    return _Reader(path).read()


class _Reader:
    """A cursor over the mapped file that never steps past its end."""

    def __init__(self, path: Path):
        self.path = path
        self.data = map_file(path, 24)
        self.view = memoryview(self.data)  # type: ignore[arg-type]  # NumPy arrays are buffers
        self.at = 0

    def read(self) -> GgufFile:
        version = self._read_version()
        tensor_count, pair_count = self.u64(), self.u64()
        self.check_count(pair_count, 14, MAX_PAIRS, "metadata pairs")
        self.check_count(tensor_count, 24, MAX_TENSORS, "tensors")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self.text("a metadata key", MAX_NAME_BYTES)
            if key in metadata:
                self.refuse(f"has the metadata key {shown(key)} twice, so its meaning is unclear")
            metadata[key] = self.value(key)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 30 or alignment & (alignment - 1):
            self.refuse(f"has the alignment {shown(alignment)}, which is not a power of two")
        table = [self.table_entry() for _ in range(tensor_count)]
        return GgufFile(self.path, version, metadata, self.locate(table, alignment))

    def _read_version(self) -> int:
        if bytes(self.view[:4]) != b"GGUF":
            self.refuse(f"does not start with GGUF but with {shown(bytes(self.view[:4]))}, so it is no GGUF file")
        self.at = 4
        version = self.u32()
        if version in (2, 3):
            return version
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped < 1 << 16:
            raise UnsupportedFormatError(
                f"{self.path} is a big-endian GGUF file (version {swapped}), but only little-endian ones can be read;"
                " convert"
                " it with gguf-convert-endian."
            )
        raise UnsupportedFormatError(
            f"{self.path} is a GGUF file of version {version}, but versions 2 and 3 can be read; convert the"
            " model again with"
            " a current llama.cpp."
        )

    def refuse(self, what: str) -> NoReturn:
        raise MalformedHeaderError(f"{self.path} {what}; {REMAKE}.")

    def need(self, size: int, what: str) -> None:
        if size > len(self.view) - self.at:
            raise TruncatedFileError(
                f"{self.path} ends inside {what} ({size} bytes announced at byte {self.at} of {len(self.view)});"
                f" {REMAKE}."
            )

    def check_count(self, count: int, least_bytes: int, most: int, what: str) -> None:
        """Refuse a count whose smallest encoding wouldn't fit into the rest of the file."""
        self.need(count * least_bytes, f"its {count} {what}")
        if count > most:
            self.refuse(f"announces {count} {what}, more than the {most} that are read")

    def u32(self) -> int:
        self.need(4, "a 32-bit number")
        value: int = _U32.unpack_from(self.view, self.at)[0]
        self.at += 4
        return value

    def u64(self) -> int:
        self.need(8, "a 64-bit number")
        value: int = _U64.unpack_from(self.view, self.at)[0]
        self.at += 8
        return value

    def text(self, what: str, most: int | None = None) -> str:
        size = self.u64()
        self.need(size, what)
        if most is not None and size > most:
            self.refuse(f"has {what} of {size} bytes, more than the {most} that are read")
        raw = bytes(self.view[self.at : self.at + size])
        self.at += size
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.refuse(f"has {what} that is not UTF-8 ({shown(raw)})")

    def value(self, key: str) -> Any:
        kind = self.u32()
        if kind == _STRING:
            return self.text(f"the value of {shown(key)}")
        if kind == _ARRAY:
            return self.array(key)
        return self.numbers(kind, 1, key).tolist()[0]

    def array(self, key: str) -> Any:
        kind, count = self.u32(), self.u64()
        if kind == _ARRAY:
            raise UnsupportedFormatError(
                f"{self.path} has an array of arrays as {shown(key)}, which no known model uses; remove that key."
            )
        return self.strings(count, key) if kind == _STRING else self.numbers(kind, count, key)

    def numbers(self, kind: int, count: int, key: str) -> npt.NDArray[Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            self.refuse(f"has a value of the unknown type {kind} as {shown(key)}")
        self.need(count * dtype.itemsize, f"the value of {shown(key)}")
        size = count * dtype.itemsize
        values = self.data[self.at : self.at + size].view(dtype)
        self.at += size
        if kind == _BOOL:
            if count and int(values.max()) > 1:
                self.refuse(f"has a bool that is neither 0 nor 1 as {shown(key)}")
            return values.view(np.bool_)
        return values

    def strings(self, count: int, key: str) -> Strings:
        self.need(count * 8, f"the {count} strings of {shown(key)}")
        offsets = np.empty(count, np.int64)
        view, at, end, unpack = self.view, self.at, len(self.view), _U64.unpack_from
        for index in range(count):
            if at + 8 > end:
                self.at = at
                self.need(8, f"the strings of {shown(key)}")
            (size,) = unpack(view, at)
            at += 8
            if size > end - at:
                self.at = at
                self.need(size, f"the strings of {shown(key)}")
            offsets[index] = at
            at += size
        self.at = at
        return Strings(self.data, offsets)

    def table_entry(self) -> tuple[str, tuple[int, ...], str, int]:
        """Read one tensor's entry: name, shape (rows first), dtype, offset in the data."""
        name = self.text("a tensor name", MAX_NAME_BYTES)
        where = f"{self.path}: tensor {shown(name)}"
        dimensions = self.u32()
        if dimensions > 4:
            raise TensorLayoutError(f"{where} has {dimensions} dimensions, but GGUF allows 4; {REMAKE}.")
        sizes = [self.u64() for _ in range(dimensions)]
        if 0 in sizes:
            raise TensorLayoutError(f"{where} has the dimensions {shown(sizes)}, one of them empty; {REMAKE}.")
        if math.prod(sizes) >= 1 << 60:
            raise TensorLayoutError(
                f"{where} has the dimensions {shown(sizes)}, whose size overflows 64 bits; {REMAKE}."
            )
        kind, offset = self.u32(), self.u64()
        dtype = _PLAIN_TYPES.get(kind) or _BLOCK_TYPES.get(kind)
        if dtype is None:
            readable = ", ".join([*_PLAIN_TYPES.values(), *_BLOCK_TYPES.values()])
            label = _OTHER_TYPES.get(kind, f"number {kind}")
            raise UnsupportedFormatError(
                f"{where} has the type {label}, which can't be read; quantize the model to one of {readable}."
            )
        if dtype in BLOCK_FORMATS and (len(sizes) < 2 or sizes[0] % BLOCK_FORMATS[dtype].block_size):
            raise TensorLayoutError(
                f"{where} has the dimensions {shown(sizes)}, not rows of whole {dtype} blocks of"
                f" {BLOCK_FORMATS[dtype].block_size}; {REMAKE}."
            )
        return name, tuple(reversed(sizes)), dtype, offset

    def locate(self, table: list[tuple[str, tuple[int, ...], str, int]], alignment: int) -> dict[str, GgufTensor]:
        """Return the tensors of the table, each inside the file, aligned and apart from the others."""
        base = -(-self.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        spans: list[tuple[int, int, str]] = []
        for name, shape, dtype, offset in table:
            where = f"{self.path}: tensor {shown(name)}"
            if name in tensors:
                raise MalformedHeaderError(f"{where} is listed twice; {REMAKE}.")
            size = stored_bytes(shape, dtype)
            if offset % alignment:
                raise TensorLayoutError(
                    f"{where} starts at {offset}, not a multiple of the alignment {alignment}; {REMAKE}."
                )
            begin = base + offset
            if begin + size > len(self.view):
                raise TruncatedFileError(
                    f"{where} ends at byte {begin + size}, but the file has {len(self.view)} bytes; {REMAKE}."
                )
            spans.append((begin, begin + size, name))
            tensors[name] = GgufTensor(name, shape, dtype, self.data[begin : begin + size])
        reached = 0
        for begin, end, name in sorted(spans):
            if begin < reached:
                raise TensorLayoutError(f"{self.path}: tensor {shown(name)} overlaps the tensor before it; {REMAKE}.")
            reached = end
        return tensors


def stored_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return how many bytes a tensor takes in the file."""
    count = math.prod(shape)
    if dtype in BLOCK_FORMATS:
        return count // BLOCK_FORMATS[dtype].block_size * BLOCK_FORMATS[dtype].block_bytes
    return count * DTYPES[dtype].itemsize
