"""`meta/info.json` of a LeRobot dataset: its layout, its features, and where its files are.

Layouts v2.0 and v2.1 (a parquet file and a video a camera for each episode) and v3.0 (files that hold several
episodes) are read. Facts from lerobot 0.3.3 (v2.1) and 0.6.1 (v3.0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewright.checkpoint.text import read_json_object, shown
from edgewright.errors import CheckpointError, DatasetError

INFO = "meta/info.json"
#: The layouts that are read; what they differ in is told by `Info.grouped`.
LAYOUTS = ("v2.0", "v2.1", "v3.0")
#: Dtypes of features that are arrays of numbers.
NUMBERS = frozenset(
    {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}
)
_FIELD = re.compile(r"\{(\w+)(?::0(\d)d)?\}")
_MOST_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Feature:
    """A column or a camera: `dtype` is a NumPy name, `image`, `video` or another word; `names` are of dimensions."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    depth: bool = False

    @property
    def is_camera(self) -> bool:
        """Whether this is a camera of color images."""
        return self.dtype in ("image", "video") and not self.depth

    @property
    def size(self) -> int:
        """How many numbers a frame has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Info:
    """The description of a dataset: `fps` frames per second, features by name, counts, path templates."""

    layout: str
    fps: float
    features: Mapping[str, Feature]
    episodes: int
    frames: int
    chunk: int
    data_path: str
    video_path: str | None
    robot: str | None

    @property
    def grouped(self) -> bool:
        """Whether files hold several episodes each (v3.0)."""
        return self.layout == "v3.0"


def read_info(folder: Path) -> Info:
    """Return the description of the dataset in `folder`.

    Raises DatasetError when there is none, its layout isn't known, or a value has another form than LeRobot writes.
    """
    if not (folder / INFO).is_file():
        raise DatasetError(f"{folder} has no {INFO}, so it is no LeRobot dataset: give the folder that holds meta/.")
    try:
        data = read_json_object(folder / INFO)
    except CheckpointError as error:
        raise DatasetError(str(error)) from None
    layout = data.get("codebase_version")
    if layout not in LAYOUTS:
        raise DatasetError(
            f"The dataset has the layout {shown(layout)} (codebase_version), and {', '.join(LAYOUTS)} are read: "
            "convert it with LeRobot's scripts."
        )
    features = data.get("features")
    if not isinstance(features, dict) or not features:
        raise DatasetError(f"{INFO} has no features: write the file anew.")
    video_path = data.get("video_path")
    robot = data.get("robot_type")
    fps = data.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 100_000:
        raise DatasetError(f"{INFO} has fps {shown(fps)}, and it must be a number above 0: correct it.")
    return Info(
        layout=str(layout),
        fps=float(fps),
        features={name: _feature(name, value) for name, value in features.items()},
        episodes=_count(data, "total_episodes"),
        frames=_count(data, "total_frames"),
        chunk=max(1, _count(data, "chunks_size")),
        data_path=_text(data, "data_path"),
        video_path=None if video_path is None else _text(data, "video_path"),
        robot=robot if isinstance(robot, str) else None,
    )


def _count(data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 48:
        raise DatasetError(f"{INFO} has {key} {shown(value)}, and it must be a whole number: correct it.")
    return value


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise DatasetError(f"{INFO} has {key} {shown(value)}, and it must be a path: correct it.")
    return value


def _feature(name: str, value: Any) -> Feature:
    """Return a feature; a shape of channels first is turned to height, width, channels."""
    dtype = value.get("dtype") if isinstance(value, dict) else None
    shape = value.get("shape") if isinstance(value, dict) else None
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise DatasetError(f"The feature {shown(name)} of {INFO} has no dtype and shape: write the file anew.")
    if math.prod(shape) > _MOST_NUMBERS:
        raise DatasetError(f"The feature {shown(name)} has {math.prod(shape):,} numbers a frame: that can't be right.")
    details = [value.get(key) for key in ("info", "video_info")]
    marks = [one.get(key) for one in details if isinstance(one, dict) for key in ("is_depth_map", "video.is_depth_map")]
    names = _names(value.get("names"))
    if dtype in ("image", "video") and len(shape) == 3 and names[:1] in (("channel",), ("channels",)):
        shape, names = [*shape[1:], shape[0]], (*names[1:], names[0])
    return Feature(name, dtype, tuple(shape), names, depth=True in marks)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _names(value: Any) -> tuple[str, ...]:
    """Return names given as a list, or as the lists that a mapping groups."""
    if isinstance(value, dict):
        return tuple(name for part in value.values() for name in _names(part))
    return tuple(str(name) for name in value) if isinstance(value, list) else ()


def filled(template: str, **fields: int | str) -> str:
    """Return a path template such as `data/chunk-{chunk_index:03d}/...` with its fields filled in.

    Raises DatasetError for a field that isn't among `fields`, or another use of braces.
    """

    def one(match: re.Match[str]) -> str:
        name, width = match[1], match[2]
        value = fields.get(name)
        if value is None or (width and not isinstance(value, int)):
            raise DatasetError(f"The path {shown(template)} of {INFO} has the unknown field {shown(name)}: correct it.")
        return f"{value:0{width}d}" if width else str(value)

    if "{" in _FIELD.sub("", template) or "}" in _FIELD.sub("", template):
        raise DatasetError(f"The path {shown(template)} of {INFO} has braces that name no field: correct it.")
    return _FIELD.sub(one, template)


def located(folder: Path, name: str) -> Path:
    """Return the file `name` of a dataset.

    A link may lead into the folder, or to where the Hugging Face cache keeps a snapshot's files. Raises DatasetError
    when the path would leave the folder otherwise, or nothing is there.
    """
    parts = name.split("/")
    if (
        name.startswith("/")
        or "\\" in name
        or "\0" in name
        or not name
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise DatasetError(f"The dataset names the file {shown(name)}, which points outside its folder: refused.")
    path = folder.joinpath(*parts)
    real, homes = path.resolve(), [folder.resolve()]
    if folder.absolute().parent.name == "snapshots":
        homes.append((folder.absolute().parents[1] / "blobs").resolve())
    if not any(real.is_relative_to(home) for home in homes):
        raise DatasetError(f"The dataset's file {shown(name)} is a link that leaves its folder: refused.")
    if not path.is_file():
        raise DatasetError(f"The dataset's file {shown(name)} is not there: download the dataset again.")
    return path
