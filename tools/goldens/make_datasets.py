"""Write tests/goldens/datasets/: small robot datasets as LeRobot itself writes them, and what its reader gives back.

    python make_datasets.py     # once in an environment with lerobot==0.3.3 (layout v2.1, Python 3.11), once with
                                # lerobot==0.6.1 (layout v3.0, Python 3.12); torch and torchvision: CPU builds

The layout is the one the installed LeRobot writes. Each folder has one camera as PNG inside parquet and one as video,
three episodes of odd lengths, and two tasks; in the last episode the task changes on the way. The v3.0 folder is
written with a tiny limit for data files, so that its episodes lie in several files; its video holds all episodes.
`expected.json` holds the versions and the texts, `expected.safetensors` the numbers: `state`, `action`, `timestamp`,
`episode`, and, of the frames in `pictured`, `wrist` uint8 [frames, height, width, 3] and every third pixel of `top`.
LeRobot 0.3.3 decodes videos with a class that torchvision has no longer: PyAV takes its place here.
"""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from lerobot.datasets import lerobot_dataset
from safetensors.numpy import save_file

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "datasets"
FPS = 10
LENGTHS = (7, 4, 9)
TASKS = ("pick up the red cube", "put the cube into the box")
STATE, ACTION = 5, 3
WRIST, TOP = (13, 18), (64, 96)
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (STATE,), "names": [f"joint{i}" for i in range(STATE)]},
    "action": {"dtype": "float32", "shape": (ACTION,), "names": ["x", "y", "gripper"]},
    "observation.images.wrist": {"dtype": "image", "shape": (*WRIST, 3), "names": ["height", "width", "channels"]},
    "observation.images.top": {"dtype": "video", "shape": (*TOP, 3), "names": ["height", "width", "channels"]},
    "observation.force": {"dtype": "float64", "shape": (2,), "names": None},
}
PICTURED = (0, 3, 6, 7, 10, 11, 15, 19)


def frame(episode: int, step: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return one frame: random numbers, a noisy image, and a video image of blocks that move."""
    top = np.zeros((*TOP, 3), np.uint8)
    top[..., 0], top[..., 1] = 40 + 60 * episode, 20 * step
    top[16:48, 4 + 8 * step : 20 + 8 * step] = (250, 240, 20)
    return {
        "observation.state": rng.normal(size=STATE).astype(np.float32),
        "action": rng.uniform(-2, 2, ACTION).astype(np.float32),
        "observation.images.wrist": rng.integers(0, 256, (*WRIST, 3), np.uint8),
        "observation.images.top": top,
        "observation.force": rng.normal(size=2),
    }


def write(folder: Path, version: str) -> Any:
    """Write the dataset and return it as LeRobot opens it."""
    options: dict[str, Any] = {} if version == "v2.1" else {"data_files_size_in_mb": 1}
    shutil.rmtree(folder, ignore_errors=True)
    made = lerobot_dataset.LeRobotDataset.create(
        "local/golden", FPS, FEATURES, root=folder, robot_type="drawn", video_backend="pyav", **options
    )
    if version != "v2.1":
        made.meta.info.data_files_size_in_mb = 0.008  # about one episode
    rng = np.random.default_rng(5)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            task = TASKS[1] if episode == 2 and step >= 4 else TASKS[episode % 2]
            values = frame(episode, step, rng)
            made.add_frame(values, task=task) if version == "v2.1" else made.add_frame({**values, "task": task})
        made.save_episode()
    if hasattr(made, "finalize"):
        made.finalize()
    shutil.rmtree(folder / "images", ignore_errors=True)
    return lerobot_dataset.LeRobotDataset("local/golden", root=folder, video_backend="pyav")


def decoded(path: Path, timestamps: list[float], *_: Any) -> torch.Tensor:
    """Return the video's frames nearest to some times, float32 [frames, 3, height, width] from 0 to 1."""
    with av.open(str(path)) as video:
        frames = [(float(one.pts * one.time_base), one.to_ndarray(format="rgb24")) for one in video.decode(video=0)]
    nearest = [min(frames, key=lambda one: abs(one[0] - wanted))[1] for wanted in timestamps]
    return torch.from_numpy(np.stack(nearest).transpose(0, 3, 1, 2).copy()).float() / 255


def main() -> None:
    """Write the folder of the installed version's layout."""
    version = lerobot_dataset.CODEBASE_VERSION
    folder = OUT / {"v2.1": "v21", "v3.0": "v30"}[version]
    if version == "v2.1":
        lerobot_dataset.decode_video_frames = decoded
    opened = write(folder, version)
    items = [opened[index] for index in range(sum(LENGTHS))]
    arrays = {
        "state": np.stack([item["observation.state"].numpy() for item in items]),
        "action": np.stack([item["action"].numpy() for item in items]),
        "timestamp": np.array([item["timestamp"].item() for item in items], np.float32),
        "episode": np.array([item["episode_index"].item() for item in items], np.int64),
        "pictured": np.array(PICTURED, np.int64),
    }
    for camera in ("wrist", "top"):
        pixels = [items[i][f"observation.images.{camera}"].numpy().transpose(1, 2, 0) for i in PICTURED]
        arrays[camera] = np.round(np.stack(pixels) * 255).astype(np.uint8)
    arrays["top"] = arrays["top"][:, ::3, ::3]
    save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, folder / "expected.safetensors")
    names = ("lerobot", "datasets", "pyarrow", "av", "numpy")
    versions = {name: metadata.version(name) for name in names}
    facts = {"layout": version, "versions": versions, "tasks": [item["task"] for item in items], "fps": FPS}
    (folder / "expected.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
