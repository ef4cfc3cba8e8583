"""The safetensors reader against the safetensors package, and against files that break each rule."""

from __future__ import annotations

import json
import re
import sys
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import assert_one_sentence, entry, safetensors_bytes
from safetensors.numpy import save_file

from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.errors import (
    CheckpointError,
    MalformedHeaderError,
    TensorLayoutError,
    TruncatedFileError,
    UnsupportedFormatError,
    UsageError,
)


@pytest.mark.parametrize("seed", [0, 1])
def test_reads_what_safetensors_wrote(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {
        "f64": rng.normal(size=(3, 5)),
        "f32": rng.normal(size=(7, 3)).astype(np.float32),
        "f16": rng.normal(size=(2, 3, 5)).astype(np.float16),
        "bf16": rng.normal(size=(5, 3)).astype(ml_dtypes.bfloat16),
        "i64": rng.integers(-(1 << 60), 1 << 60, size=(4,)),
        "i32": rng.integers(-(1 << 30), 1 << 30, size=(3, 3)).astype(np.int32),
        "i16": rng.integers(-999, 999, size=(3,)).astype(np.int16),
        "i8": rng.integers(-128, 127, size=(5,)).astype(np.int8),
        "u8": rng.integers(0, 255, size=(5, 1)).astype(np.uint8),
        "bool": rng.integers(0, 2, size=(7,)).astype(np.bool_),
        "scalar": np.asarray(rng.normal(), np.float32),
        "empty": np.zeros((0, 6), np.float32),
    }
    save_file(arrays, tmp_path / "a.safetensors", metadata={"format": "pt"})
    tensors = read_safetensors(tmp_path / "a.safetensors")
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        wide = array.dtype.kind in "fV"  # ml_dtypes are of kind V
        expected = array.astype(np.float32) if wide else array
        tensor = tensors[name]
        got = tensor.read()
        assert (tensor.shape, got.dtype, got.flags.c_contiguous) == (array.shape, expected.dtype, True), name
        np.testing.assert_array_equal(got, expected)
        assert tensor.raw(0, tensor.row_count).tobytes() == array.tobytes()
        assert tensor.nbytes == array.nbytes
        if array.ndim and len(array) > 2:
            np.testing.assert_array_equal(tensor.rows(1, 3), expected[1:3])


@pytest.mark.parametrize(("name", "dtype"), [("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2)])
def test_reads_all_float8_codes(tmp_path: Path, name: str, dtype: type) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    path = tmp_path / "f8.safetensors"
    path.write_bytes(safetensors_bytes({"w": entry(name, (16, 16), (0, 256))}, codes.tobytes()))
    got = read_safetensors(path)["w"].read()
    np.testing.assert_array_equal(got.view(np.uint32), codes.view(dtype).astype(np.float32).view(np.uint32))


def test_bfloat16_keeps_every_bit(tmp_path: Path) -> None:
    codes = np.arange(65536, dtype=np.uint16)
    path = tmp_path / "bf.safetensors"
    path.write_bytes(safetensors_bytes({"w": entry("BF16", (65536,), (0, 131072))}, codes.tobytes()))
    got = read_safetensors(path)["w"].read()
    np.testing.assert_array_equal(got.view(np.uint32), codes.astype(np.uint32) << 16)


def test_rows_outside_the_tensor_are_refused(tmp_path: Path) -> None:
    save_file({"w": np.zeros((3, 2), np.float32)}, tmp_path / "a.safetensors")
    tensor = read_safetensors(tmp_path / "a.safetensors")["w"]
    for start, stop in ((-1, 2), (0, 4), (2, 1)):
        with pytest.raises(UsageError):
            tensor.rows(start, stop)
        with pytest.raises(UsageError):
            tensor.raw(start, stop)


GOOD = {"a": entry()}
HUGE = 1 << 62
HOSTILE = {
    "empty file": (b"", TruncatedFileError),
    "7 bytes": (b"\0" * 7, TruncatedFileError),
    "header over 100 MB": ((100_000_001).to_bytes(8, "little") + b"{}", MalformedHeaderError),
    "header of 2^64 - 1": (b"\xff" * 8 + b"{}", MalformedHeaderError),
    "header beyond the file": ((50).to_bytes(8, "little") + b"{}", TruncatedFileError),
    "empty header": (safetensors_bytes(""), MalformedHeaderError),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), MalformedHeaderError),
    "not JSON": (safetensors_bytes('{"a": '), MalformedHeaderError),
    "header is a list": (safetensors_bytes("[]"), MalformedHeaderError),
    "leading space": (safetensors_bytes(" {}"), MalformedHeaderError),
    "deep nesting": (safetensors_bytes('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), MalformedHeaderError),
    "duplicate tensors": (
        safetensors_bytes('{"a": %s, "a": %s}' % ((json.dumps(entry()),) * 2), b"\0" * 8),
        MalformedHeaderError,
    ),
    "duplicate fields": (
        safetensors_bytes('{"a": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', b"\0" * 8),
        MalformedHeaderError,
    ),
    "metadata not strings": (safetensors_bytes({"__metadata__": {"a": 1}}), MalformedHeaderError),
    "metadata not an object": (safetensors_bytes({"__metadata__": "x"}), MalformedHeaderError),
    "entry is a number": (safetensors_bytes({"a": 3}), MalformedHeaderError),
    "field missing": (safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}), MalformedHeaderError),
    "field too many": (safetensors_bytes({"a": entry() | {"x": 1}}, b"\0" * 8), MalformedHeaderError),
    "unknown dtype": (safetensors_bytes({"a": entry("F4")}, b"\0" * 8), UnsupportedFormatError),
    "dtype is a list": (safetensors_bytes({"a": entry(["F32"])}, b"\0" * 8), UnsupportedFormatError),
    "negative size": (safetensors_bytes({"a": entry(shape=(-2,))}, b"\0" * 8), TensorLayoutError),
    "float size": (safetensors_bytes({"a": entry(shape=(2.0,))}, b"\0" * 8), TensorLayoutError),
    "bool size": (safetensors_bytes({"a": entry("U8", (True,), (0, 1))}, b"\0"), TensorLayoutError),
    "string size": (safetensors_bytes({"a": entry(shape=("2",))}, b"\0" * 8), TensorLayoutError),
    "shape is a number": (safetensors_bytes({"a": entry(shape=2)}, b"\0" * 8), TensorLayoutError),
    "huge size": (safetensors_bytes({"a": entry(shape=(1 << 70,))}, b"\0" * 8), TensorLayoutError),
    "5,000 digits": (safetensors_bytes('{"a": {"dtype": "F32", "shape": [' + "9" * 5000 + "]}}"), MalformedHeaderError),
    "NaN size": (
        safetensors_bytes('{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}'),
        MalformedHeaderError,
    ),
    "overflowing product": (safetensors_bytes({"a": entry(shape=(HUGE, 8))}, b"\0" * 8), TensorLayoutError),
    "overflow beside a zero": (
        safetensors_bytes({"a": entry(shape=(HUGE, HUGE, 0), offsets=(0, 0))}),
        TensorLayoutError,
    ),
    "too many dimensions": (
        safetensors_bytes({"a": entry(shape=(1,) * 33, offsets=(0, 4))}, b"\0" * 4),
        TensorLayoutError,
    ),
    "shape and bytes differ": (safetensors_bytes({"a": entry(shape=(3,))}, b"\0" * 8), TensorLayoutError),
    "dtype and bytes differ": (safetensors_bytes({"a": entry("F16")}, b"\0" * 8), TensorLayoutError),
    "offsets swapped": (safetensors_bytes({"a": entry(offsets=(8, 0))}, b"\0" * 8), TensorLayoutError),
    "offsets past the end": (safetensors_bytes({"a": entry()}, b"\0" * 7), TensorLayoutError),
    "negative offset": (safetensors_bytes({"a": entry(offsets=(-8, 0))}, b"\0" * 8), TensorLayoutError),
    "three offsets": (safetensors_bytes({"a": entry(offsets=(0, 8, 8))}, b"\0" * 8), TensorLayoutError),
    "float offsets": (safetensors_bytes({"a": entry(offsets=(0, 8.0))}, b"\0" * 8), TensorLayoutError),
    "overlap": (safetensors_bytes({"a": entry(), "b": entry(offsets=(4, 12))}, b"\0" * 12), TensorLayoutError),
    "same bytes twice": (safetensors_bytes({"a": entry(), "b": entry()}, b"\0" * 8), TensorLayoutError),
    "hole": (safetensors_bytes({"a": entry(), "b": entry(offsets=(12, 20))}, b"\0" * 20), TensorLayoutError),
    "hole at the start": (safetensors_bytes({"a": entry(offsets=(4, 12))}, b"\0" * 12), TensorLayoutError),
    "trailing bytes": (safetensors_bytes(GOOD, b"\0" * 9), TensorLayoutError),
    "a header of brackets": (safetensors_bytes('{"a":[' + "[]," * 2_000_000 + "[]]}"), MalformedHeaderError),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    content, error = HOSTILE[case]
    path = tmp_path / "evil.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.type is error, caught.value
    assert_one_sentence(caught.value, "evil.safetensors")
    assert peak < 16 * len(content) + (1 << 20)


def test_mutated_files_raise_named_errors_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    arrays = {f"t{index}": rng.normal(size=(index + 1, 3)).astype(np.float32) for index in range(5)}
    path = tmp_path / "fuzz.safetensors"
    save_file(arrays, path)
    original = path.read_bytes()
    header_end = 8 + int.from_bytes(original[:8], "little")
    refused = 0
    started = time.monotonic()
    for _ in range(600):
        mutated = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            mutated[rng.integers(0, header_end)] = rng.integers(0, 256)
        if rng.random() < 0.2:
            del mutated[rng.integers(0, len(mutated)) :]
        path.write_bytes(mutated)
        try:
            for tensor in read_safetensors(path).values():
                tensor.read()
        except CheckpointError as error:
            refused += 1
            assert_one_sentence(error, "fuzz.safetensors")
    assert refused > 300
    assert time.monotonic() - started < 10


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
@pytest.mark.parametrize("step", [2048, 31])
def test_what_was_read_of_a_mapped_file_does_not_stay_in_memory(tmp_path: Path, step: int) -> None:
    def resident() -> int:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(re.search(r"RssFile:\s+(\d+) kB", status)[1]) // 1024  # type: ignore[index]

    values = np.arange(24 << 20, dtype=np.float32).reshape(-1, 1024)  # 96 MB
    save_file({"w": values}, tmp_path / "w.safetensors")
    tensor = read_safetensors(tmp_path / "w.safetensors")["w"]
    before = resident()
    for start in range(0, len(values), step):
        stop = min(len(values), start + step)
        np.testing.assert_array_equal(tensor.rows(start, stop), values[start:stop])
    assert resident() - before < 30
