"""Shards: what is written is read, padding stays out, and a folder that was changed is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibration_data import load
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from edgewright.calibration import read_shards, write_shards
from edgewright.errors import CalibrationDataError, CheckpointError, OutputError, UsageError
from edgewright.files import sha256_of


def rows_of(folder: Path) -> list[list[int]]:
    return [row.ids.tolist() for row in read_shards(folder).rows()]


def make(folder: Path, *files: dict[str, np.ndarray], counts: list[int], kind: str = "tokens") -> Path:
    """Write a folder of shards as another program would, with the safetensors package."""
    folder.mkdir()
    shards = []
    for number, (tensors, count) in enumerate(zip(files, counts, strict=True)):
        path = folder / f"part{number}.safetensors"
        save_file(tensors, path)
        shards.append({"file": path.name, "sha256": sha256_of(path), "count": count})
    index = {"schema": 1, "kind": kind, "shards": shards, "record": {}}
    (folder / "calibration.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "calibration.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    change(index)
    path.write_text(json.dumps(index), encoding="utf-8")


@given(
    rows=st.lists(hnp.arrays(np.int64, st.integers(0, 9), elements=st.integers(-(1 << 40), 1 << 40)), min_size=1),
    shard_bytes=st.integers(1, 400),
)
def test_rows_survive(rows: list[np.ndarray], shard_bytes: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any") / "set"
    written = write_shards(folder, rows, {"a": [1]}, shard_bytes=shard_bytes)
    assert written == read_shards(folder)
    assert written.count == len(rows)
    assert rows_of(folder) == [row.tolist() for row in rows]


fields = st.dictionaries(
    st.text(min_size=1, max_size=4),
    hnp.arrays(st.sampled_from([np.uint8, np.int64, np.float32]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)),
    min_size=1,
    max_size=3,
)


@given(samples=st.lists(fields, min_size=1, max_size=4), shard_bytes=st.integers(1, 400))
def test_arrays_survive(
    samples: list[dict[str, np.ndarray]], shard_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any") / "set"
    write_shards(folder, samples, {}, shard_bytes=shard_bytes)
    got = list(read_shards(folder).samples())
    assert len(got) == len(samples)
    for read, written in zip(got, samples, strict=True):
        assert read.keys() == written.keys()
        for name, array in written.items():
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)


def test_the_files_are_plain_safetensors(tmp_path: Path) -> None:
    write_shards(tmp_path / "set", [np.array([5, 6]), np.array([7])], {"seed": 3})
    index = json.loads((tmp_path / "set" / "calibration.json").read_text(encoding="utf-8"))
    stored = load_file(tmp_path / "set" / "shard-00000.safetensors")
    assert stored["values"].dtype == np.int32
    assert (stored["values"].tolist(), stored["lengths"].tolist()) == ([5, 6, 7], [2, 1])
    assert index["kind"] == "tokens"
    assert index["record"] == {"seed": 3}
    assert index["shards"][0]["count"] == 2


def test_samples_are_streamed(tmp_path: Path) -> None:
    """A shard is on the disk before the sample after it is asked for; the record is asked for last."""
    asked: list[int] = []

    def samples() -> Iterator[dict[str, np.ndarray]]:
        for number in range(6):
            written = len(list(tmp_path.rglob("shard-*.safetensors")))
            asked.append(written)
            yield {"image": np.full(100, number, np.uint8)}

    shards = write_shards(tmp_path / "set", samples(), lambda: {"asked": list(asked)}, shard_bytes=200)
    assert asked == [0, 0, 1, 1, 2, 2]
    assert shards.record == {"asked": asked}


def test_padding_is_dropped_from_either_end(tmp_path: Path) -> None:
    ids = np.array([[5, 6, 7, 0], [0, 0, 8, 9], [1, 2, 3, 4], [0, 0, 0, 0]])
    mask = np.array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    for number, kind in enumerate((np.int64, np.bool_, np.uint8, np.float32)):
        folder = make(
            tmp_path / str(number), {"input_ids": ids.astype(np.int32), "attention_mask": mask.astype(kind)}, counts=[4]
        )
        assert rows_of(folder) == [[5, 6, 7], [8, 9], [1, 2, 3, 4], []]
        assert [row.padding for row in read_shards(folder).rows()] == [1, 2, 0, 4]


def test_padding_never_reaches_a_set(tmp_path: Path) -> None:
    ids, mask = np.array([[5, 6, 7, 0, 0], [0, 0, 0, 8, 9], [0, 0, 0, 0, 4]]), np.ones((3, 5), np.int64)
    mask[0, 3:] = mask[1, :3] = mask[2, :4] = 0
    found = load(make(tmp_path / "set", {"input_ids": ids, "attention_mask": mask}, counts=[3]), None)
    assert [row.tolist() for row in found.rows] == [[5, 6, 7], [8, 9]]
    assert (found.record["padding_dropped"], found.record["too_short_dropped"]) == (9, 1)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"input_ids": np.ones((1, 3), np.int64)}, "padding can't be told from text without a mask"),
        ({"tokens": np.ones(3, np.int64)}, "holds 'tokens'; write values with lengths"),
        (
            {"input_ids": np.ones((1, 3), np.int64), "attention_mask": np.array([[1, 0, 1]])},
            "Sequence 1 of part0.safetensors has padding inside its text",
        ),
        ({"input_ids": np.ones((1, 3), np.int64), "attention_mask": np.array([[1, 2, 0]])}, "of 0 and 1 of that shape"),
        ({"input_ids": np.ones((1, 3), np.int64), "attention_mask": np.ones((1, 2), np.int64)}, "of that shape"),
        ({"input_ids": np.ones((1, 3)), "attention_mask": np.ones((1, 3))}, "input_ids in float64: token ids are int"),
        ({"values": np.ones(3, np.int64), "lengths": np.array([4, -1])}, "lengths that don't add up to its 3 values"),
        ({"values": np.ones(3, np.int64), "lengths": np.array([2])}, "lengths that don't add up"),
        ({"values": np.ones(3, np.int64), "lengths": np.array([[3]])}, "lengths that don't add up"),
        ({"values": np.ones(3, np.int64), "lengths": np.array([1, 1, 1])}, "holds 3 sequences and .* says 1"),
        ({"values": np.ones(3), "lengths": np.array([3])}, "values in float64"),
    ],
)
def test_shards_laid_out_wrong(tensors: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", tensors, counts=[1])
    with pytest.raises(CalibrationDataError, match=said):
        list(read_shards(folder).rows())


def test_arrays_laid_out_wrong(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", {"000001.image": np.ones(3, np.uint8)}, counts=[1], kind="arrays")
    with pytest.raises(CalibrationDataError, match=r"doesn't hold the 1 samples"):
        list(read_shards(folder).samples())


def test_a_set_of_the_other_kind(tmp_path: Path) -> None:
    write_shards(tmp_path / "arrays", [{"a": np.ones(2)}], {})
    with pytest.raises(CalibrationDataError, match="arrays holds arrays and tokens are needed"):
        rows_of(tmp_path / "arrays")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "set", [np.arange(9), np.arange(4)], {}, shard_bytes=70)
    assert len(list((tmp_path / "set").iterdir())) == 3
    return tmp_path / "set"


@pytest.mark.parametrize("at", [0, 9, 60, -1])
def test_a_changed_byte_is_found(folder: Path, at: int) -> None:
    path = folder / "shard-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(CalibrationDataError, match=r"'shard-00001\.safetensors' of set was changed or damaged"):
        read_shards(folder)


def test_a_missing_shard(folder: Path) -> None:
    (folder / "shard-00001.safetensors").unlink()
    with pytest.raises(CalibrationDataError, match=r"'shard-00001\.safetensors' of set is missing"):
        read_shards(folder)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors", "", "a\\b"])
def test_names_never_leave_the_folder(folder: Path, name: str) -> None:
    shutil.copy(folder / "shard-00000.safetensors", folder.parent / "outside.safetensors")
    edit(folder, lambda index: index["shards"][0].update(file=name))
    with pytest.raises(CalibrationDataError, match="leaves the folder, so it is refused"):
        read_shards(folder)


def test_a_link_that_leaves_the_folder(folder: Path) -> None:
    path = folder / "shard-00000.safetensors"
    path.rename(folder.parent / "outside.safetensors")
    path.symlink_to(folder.parent / "outside.safetensors")
    with pytest.raises(CalibrationDataError, match="leaves the folder"):
        read_shards(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index.update(schema=2), "has schema 2 and this version reads 1 to 1"),
        (lambda index: index.update(schema=True), "has schema True"),
        (lambda index: index.pop("schema"), "has schema None"),
        (lambda index: index.update(kind="pickle"), "lacks its kind, record or shards"),
        (lambda index: index.update(record=[]), "lacks its kind"),
        (lambda index: index.update(shards=[]), "lacks its kind"),
        (lambda index: index.update(shards=[3]), "a shard without file, sha256 and a count"),
        (lambda index: index["shards"][0].update(count=0), "a count of at least 1"),
        (lambda index: index["shards"][0].update(count=True), "a count of at least 1"),
        (lambda index: index["shards"].append(index["shards"][0]), "names the shard .* twice"),
    ],
)
def test_a_wrong_index(folder: Path, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    edit(folder, change)
    with pytest.raises(CalibrationDataError, match=said):
        read_shards(folder)


def test_an_index_that_is_no_json(folder: Path, tmp_path: Path) -> None:
    (folder / "calibration.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_shards(folder)
    with pytest.raises(CalibrationDataError, match=r"has no calibration\.json, so it is no calibration set"):
        read_shards(tmp_path)


def test_nothing_to_write_and_mixed_samples(tmp_path: Path) -> None:
    with pytest.raises(CalibrationDataError, match="The calibration set is empty"):
        write_shards(tmp_path / "set", [], {})
    for samples in ([np.arange(3), {"a": np.arange(3)}], [np.ones((2, 2), np.int64)], [np.ones(3)]):
        for shard_bytes in (1, 1 << 20):
            with pytest.raises(UsageError, match="A calibration set holds"):
                write_shards(tmp_path / "set", samples, {}, shard_bytes=shard_bytes)
    assert not list(tmp_path.iterdir())


def test_replacing_a_set(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="set exists already"):
        write_shards(folder, [np.arange(3)], {})
    write_shards(folder, [np.arange(3)], {}, force=True)
    assert rows_of(folder) == [[0, 1, 2]]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(OutputError, match="mine exists and is no calibration set, so it is not replaced"):
        write_shards(tmp_path / "mine", [np.arange(3)], {}, force=True)
