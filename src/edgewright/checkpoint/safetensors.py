"""The safetensors file format, read from a mapping, every rule of its spec enforced.

Layout: 8 bytes little-endian header length n; n bytes of JSON, `{name: {dtype, shape, data_offsets}}` and an optional
`__metadata__` object of strings; then the data, which the tensors cover without holes or overlaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint.tensor import DTYPES, Bytes, MappedTensor
from edgewright.checkpoint.text import REMAKE, parse_json, shown
from edgewright.errors import MalformedHeaderError, TensorLayoutError, TruncatedFileError, UnsupportedFormatError

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 32
_SMALL_HEADER_BYTES = 4 << 20
_SAFE_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def read_safetensors(path: Path) -> dict[str, MappedTensor]:
    """Return the tensors of a safetensors file by name, in file order; only the header is read.

    Raises TruncatedFileError, MalformedHeaderError, TensorLayoutError or UnsupportedFormatError.
    """
    data = map_file(path, 8)
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise MalformedHeaderError(
            f"{path} announces a header of {header_bytes} bytes, but the format allows {MAX_HEADER_BYTES}; {REMAKE}."
        )
    if 8 + header_bytes > data.size:
        raise TruncatedFileError(
            f"{path} announces a header of {header_bytes} bytes but has only {data.size} bytes; {REMAKE}."
        )
    header = _parse_header(data[8 : 8 + header_bytes].tobytes(), path)
    payload = data[8 + header_bytes :]
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, MappedTensor] = {}
    for name, entry in header.items():
        dtype, shape, begin, end = _parse_entry(name, entry, payload.size, path)
        spans.append((begin, end, name))
        tensors[name] = MappedTensor(name, shape, dtype, payload[begin:end])
    spans.sort()
    _check_cover(spans, payload.size, path)
    return {name: tensors[name] for _, _, name in spans}


def map_file(path: Path, least: int) -> Bytes:
    """Return the file's bytes as a read-only mapping, uint8 [size]; raises TruncatedFileError below `least` bytes."""
    size = path.stat().st_size
    if size < least:
        raise TruncatedFileError(f"{path} has {size} bytes, too few for a header of this format; {REMAKE}.")
    mapped = np.memmap(path, np.uint8, "r")
    return mapped.view(np.ndarray)


def _parse_header(text: bytes, path: Path) -> dict[str, Any]:
    where = f"the header of {path}"
    if not text.startswith(b"{"):
        raise MalformedHeaderError(f"{where} does not start with an opening brace; {REMAKE}.")
    # A big header of tiny lists would take many times its size in memory; a tensor's entry has 3 brackets in 45 bytes.
    if len(text) > _SMALL_HEADER_BYTES and text.count(b"[") + text.count(b"{") > len(text) // 12:
        raise MalformedHeaderError(f"{where} holds more brackets than tensor entries can have; {REMAKE}.")
    header = parse_json(text, where, constants=False)
    if not isinstance(header, dict):
        raise MalformedHeaderError(f"{where} is not a JSON object; {REMAKE}.")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedHeaderError(f"{where} has a __metadata__ that is not an object of strings; {REMAKE}.")
    return header


def _parse_entry(name: str, entry: Any, payload_bytes: int, path: Path) -> tuple[str, tuple[int, ...], int, int]:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise MalformedHeaderError(f"{where} is not described by dtype, shape and data_offsets alone; {REMAKE}.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _SAFE_DTYPES:
        raise UnsupportedFormatError(
            f"{where} has the dtype {shown(dtype)}, which can't be read; convert it to one of"
            f" {', '.join(_SAFE_DTYPES)}."
        )
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise TensorLayoutError(
            f"{where} has the shape {shown(shape)}, not at most {MAX_DIMENSIONS} non-negative integers; {REMAKE}."
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise TensorLayoutError(
            f"{where} has the data_offsets {shown(offsets)}, not two non-negative integers; {REMAKE}."
        )
    itemsize = DTYPES[_SAFE_DTYPES[dtype]].itemsize
    if math.prod(size or 1 for size in shape) * itemsize >= 1 << 63:
        raise TensorLayoutError(f"{where} has the shape {shown(shape)}, whose size overflows 64 bits; {REMAKE}.")
    begin, end = offsets
    if not begin <= end <= payload_bytes:
        raise TensorLayoutError(
            f"{where} has the data_offsets {begin} to {end}, outside the {payload_bytes} bytes of data; {REMAKE}."
        )
    if end - begin != math.prod(shape) * itemsize:
        raise TensorLayoutError(
            f"{where} takes {end - begin} bytes, but {dtype} of shape {shown(shape)} needs"
            f" {math.prod(shape) * itemsize}; {REMAKE}."
        )
    return _SAFE_DTYPES[dtype], tuple(shape), begin, end


def _are_sizes(values: Any) -> bool:
    """Whether `values` is a list of integers that fit 63 bits (a JSON true is not an integer)."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _check_cover(spans: list[tuple[int, int, str]], payload_bytes: int, path: Path) -> None:
    """Raise TensorLayoutError unless the sorted spans cover the data exactly once."""
    reached = 0
    for begin, end, name in spans:
        if begin < reached:
            raise TensorLayoutError(
                f"{path}: tensor {shown(name)} starts at byte {begin} of the data, inside the tensor before it;"
                f" {REMAKE}."
            )
        if begin > reached:
            raise TensorLayoutError(
                f"{path} has {begin - reached} bytes that belong to no tensor before {shown(name)}; {REMAKE}."
            )
        reached = end
    if reached != payload_bytes:
        raise TensorLayoutError(
            f"{path} has {payload_bytes - reached} bytes after its last tensor that belong to nothing; {REMAKE}."
        )
