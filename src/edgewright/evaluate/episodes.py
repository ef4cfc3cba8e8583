"""The episodes of a dataset and its tasks: `meta/episodes*` and `meta/tasks*` of both layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewright.checkpoint.text import MAX_JSON_BYTES, parse_json, shown
from edgewright.errors import CheckpointError, DatasetError
from edgewright.evaluate.info import INFO, Info, filled, located
from edgewright.evaluate.tables import Table

EPISODES_LINES, EPISODES_FOLDER = "meta/episodes.jsonl", "meta/episodes"
TASKS_LINES, TASKS_TABLE = "meta/tasks.jsonl", "meta/tasks.parquet"
_LONGEST = 1 << 32


@dataclass(frozen=True)
class Clip:
    """Where a camera's video of an episode is: a file of the dataset, and the time in it that the episode begins at."""

    file: str
    start_s: float


@dataclass(frozen=True)
class Episode:
    """One episode: its number, its frames, the number of its first frame in the dataset, its table and its videos."""

    index: int
    length: int
    start: int
    data: str
    clips: Mapping[str, Clip]


def read_tasks(folder: Path, info: Info) -> dict[int, str]:
    """Return the texts of the tasks by their number; raises DatasetError."""
    if not info.grouped:
        lines = list(_lines(folder, TASKS_LINES))
        tasks = {_whole(line, "task_index", TASKS_LINES): _task(line.get("task"), TASKS_LINES) for line in lines}
        if len(tasks) != len(lines):
            raise DatasetError(f"{TASKS_LINES} has a task_index twice: correct it.")
        return tasks
    table = Table(located(folder, TASKS_TABLE), TASKS_TABLE)
    try:
        texts = table.text_columns()  # the frame's index, under the name of its writer
        if "task_index" not in table.columns or len(texts) != 1:
            raise DatasetError(f"{TASKS_TABLE} has not a column task_index and one of texts: download it again.")
        found = table.records(["task_index", texts[0]])
    finally:
        table.close()
    if found["task_index"] != list(range(table.rows)):
        raise DatasetError(f"{TASKS_TABLE} does not number its tasks 0, 1, 2, ...: so their order is unclear.")
    return {index: _task(text, TASKS_TABLE) for index, text in enumerate(found[texts[0]])}


def _task(text: Any, where: str) -> str:
    if not isinstance(text, str) or any(0xD800 <= ord(c) < 0xE000 for c in text):
        raise DatasetError(f"{where} has the task {shown(text)}, which is no text: correct it.")
    return text


def read_episodes(folder: Path, info: Info) -> list[Episode]:
    """Return the episodes in their order; raises DatasetError when they aren't those that `meta/info.json` counts."""
    episodes = _from_tables(folder, info) if info.grouped else _from_lines(folder, info)
    if [episode.index for episode in episodes] != list(range(info.episodes)):
        raise DatasetError(
            f"{INFO} counts {info.episodes} episodes and {len(episodes)} are listed, or their numbers have gaps: "
            "download the dataset again."
        )
    frames = sum(episode.length for episode in episodes)
    if frames != info.frames:
        raise DatasetError(
            f"{INFO} counts {info.frames} frames and the episodes have {frames}: download the dataset again."
        )
    return episodes


def _cameras(info: Info) -> list[str]:
    """Return the cameras whose frames are videos; raises DatasetError when there is no path for them."""
    names = [name for name, feature in info.features.items() if feature.dtype == "video" and feature.is_camera]
    if names and info.video_path is None:
        raise DatasetError(f"{INFO} has cameras as videos and no video_path: correct it.")
    return names


def _from_lines(folder: Path, info: Info) -> list[Episode]:
    """Read v2: a line an episode, a table and a video a camera each."""
    found = {}
    for line in _lines(folder, EPISODES_LINES):
        index, length = _whole(line, "episode_index", EPISODES_LINES), _whole(line, "length", EPISODES_LINES)
        if index in found:
            raise DatasetError(f"{EPISODES_LINES} has the episode {index} twice: correct it.")
        found[index] = length
    episodes, start = [], 0
    for index, length in sorted(found.items()):
        fields = {"episode_chunk": index // info.chunk, "episode_index": index}
        clips = {name: Clip(filled(info.video_path or "", video_key=name, **fields), 0.0) for name in _cameras(info)}
        episodes.append(Episode(index, length, start, filled(info.data_path, **fields), clips))
        start += length
    return episodes


def _from_tables(folder: Path, info: Info) -> list[Episode]:
    """Read v3: tables with a row an episode, which name the files that hold it."""
    cameras = _cameras(info)
    paths = sorted((folder / EPISODES_FOLDER).glob("*/*.parquet"))
    if not paths:
        raise DatasetError(f"The dataset has no tables in {EPISODES_FOLDER}: download it again.")
    rows = [row for path in paths for row in _rows(folder, path, cameras)]
    rows.sort(key=lambda row: _whole(row, "episode_index", EPISODES_FOLDER))
    episodes, start = [], 0
    for row in rows:
        index, length = int(row["episode_index"]), _whole(row, "length", EPISODES_FOLDER)
        if (_whole(row, "dataset_from_index", EPISODES_FOLDER), row["dataset_to_index"]) != (start, start + length):
            raise DatasetError(
                f"{EPISODES_FOLDER} gives episode {index} the frames {row['dataset_from_index']} to "
                f"{row['dataset_to_index']}, and it has {length} from {start} on: download the dataset again."
            )
        clips = {name: _clip(info, row, name) for name in cameras}
        episodes.append(Episode(index, length, start, filled(info.data_path, **_place(row, "data")), clips))
        start += length
    return episodes


def _rows(folder: Path, path: Path, cameras: list[str]) -> Iterator[dict[str, Any]]:
    name = path.relative_to(folder).as_posix()
    table = Table(located(folder, name), name)
    wanted = [
        "episode_index",
        "length",
        "dataset_from_index",
        "dataset_to_index",
        "data/chunk_index",
        "data/file_index",
    ]
    for camera in cameras:
        wanted += [f"videos/{camera}/{key}" for key in ("chunk_index", "file_index", "from_timestamp")]
    try:
        columns = table.records(wanted)
    finally:
        table.close()
    for values in zip(*(columns[key] for key in wanted), strict=True):
        yield dict(zip(wanted, values, strict=True))


def _clip(info: Info, row: Mapping[str, Any], camera: str) -> Clip:
    start = row[f"videos/{camera}/from_timestamp"]
    if isinstance(start, bool) or not isinstance(start, int | float) or not 0 <= start < _LONGEST:
        raise DatasetError(f"{EPISODES_FOLDER} has the time {shown(start)} of {shown(camera)}: download it again.")
    fields = _place(row, f"videos/{camera}")
    return Clip(filled(info.video_path or "", video_key=camera, **fields), float(start))


def _place(row: Mapping[str, Any], part: str) -> dict[str, int]:
    return {key: _whole(row, f"{part}/{key}", EPISODES_FOLDER, key) for key in ("chunk_index", "file_index")}


def _whole(row: Mapping[str, Any], key: str, where: str, shown_as: str | None = None) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LONGEST:
        raise DatasetError(f"{where} has the {shown_as or key} {shown(value)}, and it must be a whole number.")
    return value


def _lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one a line."""
    path = located(folder, name)
    if path.stat().st_size > MAX_JSON_BYTES:
        raise DatasetError(f"{name} is larger than the {MAX_JSON_BYTES >> 20} MiB that are read: that can't be right.")
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = parse_json(line, f"Line {number} of {name}")
        except CheckpointError as error:
            raise DatasetError(str(error)) from None
        if not isinstance(value, dict):
            raise DatasetError(f"Line {number} of {name} holds no JSON object: write the file anew.")
        yield value
