"""Safetensors files written in chunks, read back by this package's reader and by the safetensors package."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.safetensors_writer import (
    WRITABLE,
    TensorSpec,
    array_spec,
    file_order,
    write_safetensors,
)
from edgewright.errors import OutputError, UsageError

#: What the safetensors package can load into NumPy.
PLAIN = [name for name, dtype in WRITABLE.items() if dtype.kind != "V" and not name.startswith("F8")]
EIGHT_BITS = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E8M0": ml_dtypes.float8_e8m0fnu}


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + size]))


@pytest.mark.parametrize("dtype", PLAIN)
def test_every_plain_dtype_is_read_by_the_safetensors_package(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(dtype))
    values = rng.integers(0, 2, (7, 5, 3)).astype(WRITABLE[dtype])
    values[3] = values[3] * 0 if dtype == "BOOL" else values[3] * 101
    path = tmp_path / "file.safetensors"
    write_safetensors(path, {"a": array_spec(values)})
    assert header_of(path)["a"]["dtype"] == dtype
    got = load_file(path)["a"]
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_small_floats_keep_every_bit_pattern(dtype: str, tmp_path: Path) -> None:
    codes = np.arange(256, dtype=np.uint8)
    codes = np.repeat(codes, WRITABLE[dtype].itemsize)
    path = tmp_path / "file.safetensors"
    write_safetensors(path, {"codes": array_spec(codes.view(EIGHT_BITS[dtype]))})
    entry = header_of(path)["codes"]
    assert entry["dtype"] == dtype
    assert path.read_bytes()[-codes.size :] == codes.tobytes()


def test_the_file_is_the_one_of_the_safetensors_package(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    arrays = {f"w{i}": rng.normal(size=(i + 1, 3)).astype(np.float32) for i in range(4)}
    arrays |= {"codes": rng.integers(0, 255, 5).astype(np.uint8), "ids": np.arange(3), "scalar": np.array(2.5)}
    save_file(arrays, tmp_path / "theirs", metadata={"format": "pt"})
    write_safetensors(tmp_path / "ours", {n: array_spec(a) for n, a in arrays.items()}, {"format": "pt"})
    theirs, ours = load_file(tmp_path / "theirs"), load_file(tmp_path / "ours")
    assert theirs.keys() == ours.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values)
    assert header_of(tmp_path / "ours")["__metadata__"] == {"format": "pt"}


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@given(data=st.data(), names=st.lists(st.text(max_size=5), min_size=0, max_size=5, unique=True))
def test_whatever_is_written_is_read(data: st.DataObject, names: list[str], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "file.safetensors"
    dtypes = st.sampled_from([np.float32, np.int64, np.uint8, np.bool_, np.int16])
    arrays = {name: data.draw(hnp.arrays(data.draw(dtypes), data.draw(shapes))) for name in names}
    specs = {name: array_spec(array) for name, array in arrays.items()}
    write_safetensors(path, specs)
    got = read_safetensors(path)
    assert got.keys() == arrays.keys()
    assert [name for name in got if got[name].nbytes] == [name for name in file_order(specs) if specs[name].nbytes]
    for name, array in arrays.items():
        assert got[name].shape == array.shape
        assert got[name].raw(0, got[name].row_count).tobytes() == array.tobytes()


def test_the_file_does_not_depend_on_the_order_of_the_names(tmp_path: Path) -> None:
    arrays = {name: np.full(3, i, np.float32) for i, name in enumerate("cab")} | {"half": np.ones(3, np.float16)}
    files = set()
    for i, names in enumerate(itertools.permutations(arrays)):
        write_safetensors(tmp_path / str(i), {name: array_spec(arrays[name]) for name in names}, {"b": "1", "a": "2"})
        files.add((tmp_path / str(i)).read_bytes())
    assert len(files) == 1


def test_every_tensor_begins_at_a_multiple_of_its_element_size(tmp_path: Path) -> None:
    arrays = {"a": np.ones(3, np.uint8), "b": np.ones(3, np.float16), "c": np.ones(1, np.int64), "d": np.ones(5, "<f4")}
    path = tmp_path / "file"
    write_safetensors(path, {name: array_spec(array) for name, array in arrays.items()})
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert start % 8 == 0
    header = header_of(path)
    for name, array in arrays.items():
        assert (start + header[name]["data_offsets"][0]) % array.itemsize == 0


def test_chunks_come_lazily_and_one_at_a_time(tmp_path: Path) -> None:
    """A tensor is never asked for before the one in front of it is written, nor a chunk before its turn."""
    told: list[tuple[str, int]] = []
    written: list[int] = []

    def chunks(name: str, rows: int) -> Iterator[np.ndarray]:
        for row in range(rows):
            told.append((name, row))
            assert len(written) == len(told) - 1
            yield np.full((1, 3), row, np.float32)

    specs = {name: TensorSpec("F32", (rows, 3), chunks(name, rows)) for name, rows in (("b", 2), ("a", 3))}
    write_safetensors(tmp_path / "file", specs, progress=written.append)
    assert told == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert written == [12] * 5
    np.testing.assert_array_equal(load_file(tmp_path / "file")["a"], np.repeat(np.arange(3.0), 3).reshape(3, 3))


def test_strided_and_big_endian_chunks_and_bytes(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    specs = {
        "strided": TensorSpec("F32", (4, 3), [values.T]),
        "big": TensorSpec("F32", (3, 4), [values.astype(">f4")]),
        "bytes": TensorSpec("BF16", (2,), [np.array([0x80, 0x3F, 0, 0x40], np.uint8)]),
        "empty": TensorSpec("I8", (0, 7), []),
    }
    write_safetensors(tmp_path / "file", specs)
    got = read_safetensors(tmp_path / "file")
    np.testing.assert_array_equal(got["strided"].read(), values.T)
    np.testing.assert_array_equal(got["big"].read(), values)
    np.testing.assert_array_equal(got["bytes"].read(), [1.0, 2.0])
    assert got["empty"].read().shape == (0, 7)


@pytest.mark.parametrize(
    ("specs", "metadata", "said"),
    [
        ({"a": TensorSpec("F32", (3,), [np.ones(2, np.float32)])}, {}, "announced with 12 bytes and its chunks have 8"),
        ({"a": TensorSpec("F32", (3,), [np.ones(2, np.float32)] * 2)}, {}, "have at least 16"),
        ({"a": TensorSpec("F32", (3,), [np.ones(3)])}, {}, "announced as F32 and a chunk of it is float64"),
        ({"a": TensorSpec("F4", (3,), [])}, {}, "has the dtype 'F4', which can't be written"),
        ({"a": TensorSpec("F32", (-1,), [])}, {}, "non-negative sizes"),
        ({"__metadata__": array_spec(np.ones(3))}, {}, "can't be named '__metadata__'"),
        ({"\ud800": array_spec(np.ones(3))}, {}, "lone surrogate"),
        ({}, {"a": 1}, "texts by text"),
    ],
)
def test_wrong_specs_leave_nothing_behind(
    specs: dict[str, TensorSpec], metadata: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        write_safetensors(tmp_path / "file", specs, metadata)
    assert not list(tmp_path.iterdir())


def test_a_dtype_that_the_format_lacks() -> None:
    with pytest.raises(UsageError, match="complex128"):
        array_spec(np.ones(3, np.complex128))


def test_a_failure_on_the_way_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_safetensors(path, {"a": array_spec(np.ones(3))})
    before = path.read_bytes()

    def chunks() -> Iterator[np.ndarray]:
        yield np.ones(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors(path, {"a": TensorSpec("F64", (4,), chunks())})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"Writing file\.safetensors failed"):
        write_safetensors(tmp_path / "no" / "file.safetensors", {"a": array_spec(np.ones(3))})
