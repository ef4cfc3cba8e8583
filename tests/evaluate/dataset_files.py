"""Small robot datasets in LeRobot's layouts v2.1 and v3.0, drawn and written here, for tests and demonstrations.

    python tests/evaluate/dataset_files.py FOLDER --layout v3.0 --episodes 3 --length 20 --seed 0

The state follows smooth curves, the action is the next state and a gripper that opens and closes; the camera `wrist`
is stored as PNG images in the tables, `top` as H.264 video (lossless, so that its pixels are known).
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq

TASKS = ("push the block", "open the drawer slowly")
TOP, WRIST = (48, 64), (11, 17)
FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32"},
    "action": {"dtype": "float32"},
    "observation.images.wrist": {"dtype": "image", "shape": [*WRIST, 3], "names": ["height", "width", "channels"]},
    "observation.images.top": {"dtype": "video", "shape": [3, *TOP], "names": ["channels", "height", "width"]},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}
DATA = {
    "v2.1": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "v3.0": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEO = {
    "v2.1": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "v3.0": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}


@dataclass
class Drawn:
    """One drawn episode: numbers by feature, images [frames, height, width, 3], and the task of each frame."""

    state: np.ndarray
    action: np.ndarray
    wrist: np.ndarray
    top: np.ndarray
    tasks: list[int]


@dataclass
class Written:
    """A written dataset: its folder and what is in it."""

    folder: Path
    layout: str
    fps: int
    episodes: list[Drawn] = field(default_factory=list)


def draw(length: int, rng: np.random.Generator, tasks: list[int], dims: tuple[int, int] = (4, 5)) -> Drawn:
    """Draw an episode: curves with three frequencies, a gripper that changes twice, images that tell the frame."""
    time = np.arange(length + 1)[:, None]
    waves = rng.normal(size=(3, dims[0])) / np.array([[1], [2], [4]])
    phase = rng.uniform(0, 6, (3, dims[0]))
    curve = sum(waves[k] * np.sin(0.1 * (k + 1) * time + phase[k]) for k in range(3))
    gripper = np.where((time[1:, 0] > length / 3) & (time[1:, 0] < 2 * length / 3), 1.0, 0.0)
    action = np.concatenate([curve[1:, : dims[1] - 1], gripper[:, None]], 1).astype(np.float32)
    top = np.repeat(np.repeat(rng.integers(0, 256, (length, 6, 8, 3), np.uint8), 8, 1), 8, 2)
    return Drawn(curve[:-1].astype(np.float32), action, rng.integers(0, 256, (length, *WRIST, 3), np.uint8), top, tasks)


def write_dataset(
    folder: Path,
    layout: str = "v3.0",
    lengths: Sequence[int] = (9, 5, 12),
    seed: int = 0,
    fps: int = 10,
    together: int = 2,
    dims: tuple[int, int] = (4, 5),
) -> Written:
    """Write a dataset in the place of an old one; in v3.0 `together` episodes share a file, and all one video.

    `dims` count the numbers of state and action, of which the last is a gripper.
    """
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(seed)
    written = Written(folder, layout, fps)
    for number, length in enumerate(lengths):
        tasks = [number % 2] * length
        if number == 2:
            tasks[length // 2 :] = [1] * (length - length // 2)  # the task changes within an episode
        written.episodes.append(draw(length, rng, tasks, dims))
    (folder / "meta").mkdir(parents=True)
    _write_info(written)
    if layout == "v3.0":
        _write_grouped(written, together)
    else:
        _write_single(written)
    return written


def _write_info(written: Written) -> None:
    lengths = [len(one.tasks) for one in written.episodes]
    info = {
        "codebase_version": written.layout,
        "robot_type": "drawn",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": written.fps,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": DATA[written.layout],
        "video_path": VIDEO[written.layout],
        "features": _features(written),
    }
    (written.folder / "meta/info.json").write_text(json.dumps(info, indent=4))


def _features(written: Written) -> dict[str, Any]:
    """Return the features with the sizes and names of state and action."""
    features = {name: dict(feature) for name, feature in FEATURES.items()}
    state, action = written.episodes[0].state.shape[1], written.episodes[0].action.shape[1]
    letters = [chr(ord("a") + index) for index in range(state)]
    features["observation.state"] |= {"shape": [state], "names": letters}
    features["action"] |= {"shape": [action], "names": {"motors": [*letters[: action - 1], "Gripper"]}}
    return features


def _write_single(written: Written) -> None:
    meta, start = written.folder / "meta", 0
    lines = [{"task_index": index, "task": task} for index, task in enumerate(TASKS)]
    (meta / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (meta / "episodes.jsonl").open("w") as file:
        for index, one in enumerate(written.episodes):
            names = sorted({TASKS[task] for task in one.tasks})
            file.write(json.dumps({"episode_index": index, "tasks": names, "length": len(one.tasks)}) + "\n")
            place = {"episode_chunk": 0, "episode_index": index}
            write_table(written.folder / DATA["v2.1"].format(**place), [rows_of(one, index, start, written.fps)])
            video = VIDEO["v2.1"].format(video_key="observation.images.top", **place)
            write_video(written.folder / video, one.top, written.fps)
            start += len(one.tasks)


def _write_grouped(written: Written, together: int) -> None:
    meta, rows, start = written.folder / "meta", [], 0
    index_name = {"task_index": pa.array([0, 1]), "__index_level_0__": pa.array(TASKS)}
    pq.write_table(pa.table(index_name), meta / "tasks.parquet")
    tables: dict[int, list[pa.Table]] = {}
    for index, one in enumerate(written.episodes):
        length = len(one.tasks)
        tables.setdefault(index // together, []).append(rows_of(one, index, start, written.fps))
        rows.append(
            {
                "episode_index": index, "tasks": [TASKS[task] for task in set(one.tasks)], "length": length,
                "data/chunk_index": 0, "data/file_index": index // together,
                "dataset_from_index": start, "dataset_to_index": start + length,
                "videos/observation.images.top/chunk_index": 0, "videos/observation.images.top/file_index": 0,
                "videos/observation.images.top/from_timestamp": start / written.fps,
                "videos/observation.images.top/to_timestamp": (start + length) / written.fps,
                "stats/action/mean": [0.0] * one.action.shape[1],
            }
        )  # fmt: skip
        start += length
    for number, parts in tables.items():
        write_table(written.folder / DATA["v3.0"].format(chunk_index=0, file_index=number), parts)
    (meta / "episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), meta / "episodes/chunk-000/file-000.parquet")
    video = VIDEO["v3.0"].format(video_key="observation.images.top", chunk_index=0, file_index=0)
    write_video(written.folder / video, np.concatenate([one.top for one in written.episodes]), written.fps)


def rows_of(one: Drawn, index: int, start: int, fps: int) -> pa.Table:
    """Return the table of an episode."""
    length = len(one.tasks)
    steps = np.arange(length)
    return pa.table(
        {
            "observation.state": vectors(one.state),
            "action": vectors(one.action),
            "observation.images.wrist": pa.array([{"bytes": png(image), "path": None} for image in one.wrist]),
            "timestamp": pa.array((steps / fps).astype(np.float32)),
            "frame_index": pa.array(steps),
            "episode_index": pa.array(np.full(length, index)),
            "index": pa.array(steps + start),
            "task_index": pa.array(one.tasks),
        }
    )


def vectors(values: np.ndarray) -> pa.Array:
    """Return rows of numbers as a column of lists of one length."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def png(image: np.ndarray) -> bytes:
    """Return an image as the bytes of a PNG file."""
    buffer = io.BytesIO()
    PIL.Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def write_table(path: Path, parts: Sequence[pa.Table]) -> None:
    """Write tables with a common schema as row groups of one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)


def write_video(path: Path, images: np.ndarray, fps: int) -> None:
    """Write images as lossless H.264 in RGB, a key frame every five."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264rgb", rate=fps, options={"qp": "0", "g": "5", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = images.shape[2], images.shape[1], "rgb24"
        for image in images:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode())


def main() -> None:
    """Write a dataset from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=list(DATA), default="v3.0")
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--dims", type=int, nargs=2, default=(4, 5), metavar=("STATE", "ACTION"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_dataset(args.folder, args.layout, [args.length] * args.episodes, args.seed, dims=tuple(args.dims))


if __name__ == "__main__":
    main()
