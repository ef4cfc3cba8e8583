"""A damaged or hostile dataset ends in one sentence that names what is wrong, and no path of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import DATA, Written, png, write_dataset, write_video

from edgewright.errors import DatasetError, MissingExtraError
from edgewright.evaluate import open_dataset
from edgewright.evaluate.info import filled

TOP, WRIST = "observation.images.top", "observation.images.wrist"
NOISY = png(np.random.default_rng(0).integers(0, 256, (11, 17, 3), np.uint8))
Change = Callable[[Path], None]


def read_all(folder: Path) -> None:
    with open_dataset(folder) as dataset:
        for _ in dataset.frames():
            pass


def info(**changes: Any) -> Change:
    """Change keys of meta/info.json; None removes one."""

    def change(folder: Path) -> None:
        path = folder / "meta/info.json"
        data = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))

    return change


def feature(name: str, **changes: Any) -> Change:
    """Change what meta/info.json says of a feature."""

    def change(folder: Path) -> None:
        path = folder / "meta/info.json"
        data = json.loads(path.read_text())
        data["features"][name] |= changes
        path.write_text(json.dumps(data))

    return change


def column(name: str, values: Callable[[pa.Table], Any] | None) -> Change:
    """Replace a column of the first data file, or remove it."""

    def change(folder: Path) -> None:
        path = min((folder / "data").rglob("*.parquet"))
        table = pq.read_table(path)
        at = table.column_names.index(name)
        table = table.remove_column(at) if values is None else table.set_column(at, name, values(table))
        pq.write_table(table, path)

    return change


def cell(name: str, row: int, value: Any) -> Change:
    """Change one number of a scalar column of the first data file."""

    def values(table: pa.Table) -> Any:
        listed = table.column(name).to_pylist()
        listed[row] = value
        return pa.array(listed, table.column(name).type)

    return column(name, values)


def cut(pattern: str, share: float = 0.5) -> Change:
    """Keep the first part of a file."""

    def change(folder: Path) -> None:
        path = min(folder.rglob(pattern))
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return change


def removed(pattern: str) -> Change:
    return lambda folder: min(folder.rglob(pattern)).unlink()


def text(name: str, content: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_text(content)

    return change


def link(pattern: str) -> Change:
    """Put a link to a file outside in the place of a file."""

    def change(folder: Path) -> None:
        path = min(folder.rglob(pattern))
        path.rename(folder.parent / "outside")
        path.symlink_to(folder.parent / "outside")

    return change


def video(frames: int, size: tuple[int, int] = (48, 64)) -> Change:
    """Write another video in the place of the first."""

    def change(folder: Path) -> None:
        write_video(min(folder.rglob("*.mp4")), np.zeros((frames, *size, 3), np.uint8), 10)

    return change


def vectors(width: Callable[[int], int], number: float = 0.5) -> Callable[[pa.Table], Any]:
    return lambda table: pa.array([[number] * width(row) for row in range(table.num_rows)], pa.list_(pa.float32()))


def images(picture: Any) -> Callable[[pa.Table], Any]:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return lambda table: pa.array([picture] * table.num_rows, kind)


BOTH: dict[str, tuple[Change, str]] = {
    "no info": (removed("info.json"), "no meta/info.json"),
    "info cut": (cut("info.json"), "not valid JSON"),
    "info a list": (text("meta/info.json", "[]"), "not an object"),
    "info twice": (text("meta/info.json", '{"fps": 1, "fps": 2}'), "twice"),
    "info deep": (text("meta/info.json", "[" * 100_000), "too deeply"),
    "old layout": (info(codebase_version="v1.6"), "layout 'v1.6'"),
    "new layout": (info(codebase_version="v4.0"), "layout 'v4.0'"),
    "no layout": (info(codebase_version=None), "layout None"),
    "layout a list": (info(codebase_version=["v3.0"]), "layout"),
    "fps 0": (info(fps=0), "fps 0"),
    "fps nan": (info(fps=float("nan")), "fps nan"),
    "fps a text": (info(fps="10"), "fps '10'"),
    "no features": (info(features={}), "no features"),
    "feature a text": (info(features={"action": "float32"}), "no dtype and shape"),
    "shape negative": (feature("action", shape=[-5]), "no dtype and shape"),
    "shape huge": (feature("action", shape=[1 << 20, 1 << 20]), "can't be right"),
    "frames a float": (info(total_frames=26.0), "total_frames"),
    "frames too many": (info(total_frames=27), "counts 27 frames"),
    "episodes too many": (info(total_episodes=4), "counts 4 episodes"),
    "path up": (info(data_path="../data/{episode_index:06d}.parquet"), "outside its folder|unknown field"),
    "path up within": (info(data_path="data/../../x.parquet"), "outside its folder"),
    "path absolute": (info(data_path="/etc/passwd"), "outside its folder"),
    "path backslash": (info(data_path="..\\x.parquet"), "outside its folder"),
    "path attribute": (info(data_path="{episode_index.__class__}"), "braces"),
    "path unknown field": (info(data_path="data/{secret}"), "unknown field 'secret'"),
    "path open brace": (info(data_path="data/{"), "braces"),
    "path a number": (info(data_path=3), "data_path 3"),
    "no video path": (info(video_path=None), "no video_path"),
    "video path up": (info(video_path="videos/../../{video_key}.mp4"), "outside its folder"),
    "data a link out": (link("data/**/*.parquet"), "link that leaves"),
    "video a link out": (link("*.mp4"), "link that leaves"),
    "data gone": (removed("data/**/*.parquet"), "not there"),
    "data cut": (cut("data/**/*.parquet"), "can't be read as parquet"),
    "data empty": (cut("data/**/*.parquet", 0.0), "can't be read as parquet"),
    "video gone": (removed("*.mp4"), "not there"),
    "video cut": (cut("*.mp4"), "can't be decoded as a video|has no frame"),
    "video empty": (cut("*.mp4", 0.0), "can't be decoded as a video"),
    "video short": (video(4), "no frame at"),
    "video small": (video(26, (32, 32)), "32 x 32 pixels"),
    "no action": (info(features={"x": {"dtype": "float32", "shape": [1]}}), "no numbers under action"),
    "action a text": (feature("action", dtype="string"), "no numbers under action"),
    "column gone": (column("action", None), "lacks the columns action"),
    "times gone": (column("timestamp", None), "lacks the columns timestamp"),
    "images gone": (column(WRIST, None), "lacks the columns observation.images.wrist"),
    "vectors short": (column("action", vectors(lambda row: 4)), "not of 5 numbers"),
    "vectors ragged": (column("action", vectors(lambda row: {0: 4, 1: 6}.get(row, 5))), "not of 5 numbers"),
    "vectors long": (column("action", vectors(lambda row: 100_000)), "not of 5 numbers"),
    "vectors of text": (column("action", lambda t: pa.array([["x"] * 5] * t.num_rows)), "numbers are needed"),
    "vectors flat": (column("action", lambda t: pa.array([1.0] * t.num_rows)), "not of 5 numbers"),
    "vector empty": (column("action", lambda t: pa.array([None, *[[1.0] * 5] * (t.num_rows - 1)])), "not of 5"),
    "not finite": (column("observation.state", lambda t: vectors(lambda row: 4, float("nan"))(t)), "isn't finite"),
    "infinite": (column("action", lambda t: vectors(lambda row: 5, float("inf"))(t)), "isn't finite"),
    "shape other": (feature("observation.state", shape=[6]), "not of 6 numbers"),
    "steps twice": (cell("frame_index", 3, 2), "doesn't count"),
    "step empty": (cell("frame_index", 3, None), "without a value"),
    "times jump": (cell("timestamp", 4, 3.0), "don't follow 10 frames"),
    "episode moved": (cell("episode_index", 4, 1), "rows of episode 0"),
    "task unknown": (cell("task_index", 2, 9), "task 9"),
    "image cut": (column(WRIST, images({"bytes": NOISY[:300]})), "can't be decoded"),
    "image other": (column(WRIST, images({"bytes": png(np.zeros((5, 7, 3), np.uint8))})), "5 x 7 pixels"),
    "image GIF": (column(WRIST, images({"bytes": b"GIF89a" + bytes(60)})), "can't be decoded"),
    "image nowhere": (column(WRIST, images({"bytes": None, "path": "x.png"})), "not there"),
    "image outside": (column(WRIST, images({"bytes": None, "path": "../../x.png"})), "outside its folder"),
    "image absolute": (column(WRIST, images({"bytes": None, "path": "/etc/hostname"})), "outside its folder"),
    "image empty": (column(WRIST, images(None)), "without an image"),
    "image numbers": (column(WRIST, lambda t: pa.array([1] * t.num_rows)), "without an image"),
}  # fmt: skip
SINGLE: dict[str, tuple[Change, str]] = {
    "no tasks": (removed("tasks.jsonl"), "not there"),
    "tasks cut": (cut("tasks.jsonl", 0.7), "not valid JSON"),
    "tasks a number": (text("meta/tasks.jsonl", "3\n"), "no JSON object"),
    "task a number": (text("meta/tasks.jsonl", '{"task_index": 0, "task": 3}\n'), "no text"),
    "task surrogate": (text("meta/tasks.jsonl", '{"task_index": 0, "task": "\\ud800"}\n'), "no text"),
    "task twice": (text("meta/tasks.jsonl", '{"task_index": 0, "task": "a"}\n' * 2), "twice"),
    "no episodes": (removed("episodes.jsonl"), "not there"),
    "episode twice": (text("meta/episodes.jsonl", '{"episode_index": 0, "length": 3}\n' * 3), "twice"),
    "length huge": (text("meta/episodes.jsonl", '{"episode_index": 0, "length": 1e99}\n'), "whole number"),
    "length negative": (text("meta/episodes.jsonl", '{"episode_index": 0, "length": -3}\n'), "whole number"),
    "not UTF-8": (lambda f: (f / "meta/episodes.jsonl").write_bytes(b'{"\xff": 1}') and None, "UTF-8"),
}  # fmt: skip


def episodes(name: str, value: Any) -> Change:
    """Change the first row of the table of episodes."""

    def change(folder: Path) -> None:
        path = folder / "meta/episodes/chunk-000/file-000.parquet"
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            row[name] = value if row["episode_index"] == 0 else row[name]
        pq.write_table(pa.Table.from_pylist(rows), path)

    return change


def tasks(table: dict[str, list[Any]]) -> Change:
    return lambda folder: pq.write_table(pa.table(table), folder / "meta/tasks.parquet")


GROUPED: dict[str, tuple[Change, str]] = {
    "no tasks": (removed("tasks.parquet"), "not there"),
    "tasks cut": (cut("tasks.parquet"), "can't be read as parquet"),
    "tasks out of order": (tasks({"task_index": [1, 0], "task": ["a", "b"]}), "does not number"),
    "tasks without text": (tasks({"task_index": [0, 1]}), "has not a column"),
    "no episodes": (removed("meta/episodes/**/*.parquet"), "no tables"),
    "episodes cut": (cut("meta/episodes/**/*.parquet"), "can't be read as parquet"),
    "length other": (episodes("length", 8), "frames"),
    "begin other": (episodes("dataset_from_index", 1), "frames 1 to 9"),
    "file elsewhere": (episodes("data/file_index", 1), "rows of episode 0"),
    "file unknown": (episodes("data/file_index", 77), "not there"),
    "file negative": (episodes("data/file_index", -1), "file_index -1"),
    "video unknown": (episodes(f"videos/{TOP}/file_index", 5), "not there"),
    "video later": (episodes(f"videos/{TOP}/from_timestamp", 60.0), "no frame at"),
    "video never": (episodes(f"videos/{TOP}/from_timestamp", float("nan")), "time nan"),
    "video between": (episodes(f"videos/{TOP}/from_timestamp", 0.05), "no frame at"),
}  # fmt: skip


def spoilt(layout: str, change: Change, folder: Path) -> Written:
    written = write_dataset(folder / "set", layout, (9, 5, 12))
    change(written.folder)
    return written


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
@pytest.mark.parametrize("case", BOTH)
def test_both_layouts(layout: str, case: str, tmp_path: Path) -> None:
    check(layout, *BOTH[case], tmp_path)


@pytest.mark.parametrize("case", SINGLE)
def test_layout_v21(case: str, tmp_path: Path) -> None:
    check("v2.1", *SINGLE[case], tmp_path)


@pytest.mark.parametrize("case", GROUPED)
def test_layout_v30(case: str, tmp_path: Path) -> None:
    check("v3.0", *GROUPED[case], tmp_path)


def check(layout: str, change: Change, message: str, folder: Path) -> None:
    written = spoilt(layout, change, folder)
    with pytest.raises(DatasetError, match=message) as caught:
        read_all(written.folder)
    said = str(caught.value).replace(str(written.folder / "meta"), "")  # the one file that is named by its whole path
    assert said.endswith("."), said
    assert len(said) < 500
    if "is no LeRobot dataset" not in said:
        assert str(folder) not in said


def test_depth_cameras_are_left_out_and_refused(tmp_path: Path) -> None:
    written = spoilt("v2.1", feature(TOP, info={"video.is_depth_map": True}), tmp_path)
    with open_dataset(written.folder) as dataset:
        assert list(dataset.cameras) == [WRIST]
        assert dataset.notes == [f"depth cameras are left out: {TOP}"]
        with pytest.raises(DatasetError, match=r"no color camera observation\.images\.top"):
            dataset.frame(dataset.recording(0), 0, [TOP])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    written = write_dataset(tmp_path / "set", "v2.1", (3,))
    with open_dataset(written.folder) as dataset:
        with pytest.raises(DatasetError, match="episodes 0 to 0, and not 1"):
            dataset.recording(1)
        with pytest.raises(DatasetError, match="steps 0 to 2, and not 3"):
            dataset.frame(dataset.recording(0), 3)
    with pytest.raises(DatasetError, match=r"no numbers under states; it has observation\.state, action"):
        open_dataset(written.folder, state="states")
    with pytest.raises(DatasetError, match="is no LeRobot dataset"):
        open_dataset(tmp_path)


def test_any_cut_of_any_file_is_read_or_refused(tmp_path: Path) -> None:
    """Bytes cut off or changed anywhere: frames or a DatasetError, nothing else."""
    rng = np.random.default_rng(11)
    refused = 0
    for layout in DATA:
        written = write_dataset(tmp_path / layout, layout, (4, 3), 2)
        for path in sorted(path for path in written.folder.rglob("*") if path.is_file()):
            data = path.read_bytes()
            for _ in range(6):
                broken = bytearray(data[: rng.integers(len(data))] if rng.random() < 0.4 else data)
                for _ in range(min(len(broken), int(rng.integers(1, 9)))):
                    broken[rng.integers(len(broken))] = rng.integers(256)
                path.write_bytes(broken)
                try:
                    read_all(written.folder)
                except DatasetError:
                    refused += 1
            path.write_bytes(data)
        read_all(written.folder)
    assert refused > 30


def test_templates_take_their_fields_only() -> None:
    assert filled("a/{x:03d}-{y}.z", x=7, y="k{x}") == "a/007-k{x}.z"
    with pytest.raises(DatasetError, match="unknown field"):
        filled("{y:03d}", y="text")


@pytest.mark.parametrize("package", ["pyarrow", "av", "PIL.Image"])
def test_a_package_that_is_missing_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_dataset(tmp_path / "set", "v2.1", (3,))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgewright\[host,evaluate\]'"):
        read_all(written.folder)
