"""A LeRobot dataset, read an episode at a time: numbers of the episode, images of the frames that are asked for.

Memory follows one episode's numbers, one frame's images and, where images are inside tables, one page of a table (up to
1,024 rows, as pyarrow writes them), whatever the dataset's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from edgewright.errors import DatasetError
from edgewright.evaluate.episodes import Episode, read_episodes, read_tasks
from edgewright.evaluate.info import NUMBERS, Feature, Info, located, read_info
from edgewright.evaluate.pictures import Image, Video, decoded
from edgewright.evaluate.tables import EPISODE, Table

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
_TIME, _STEP, _TASK = "timestamp", "frame_index", "task_index"
Floats = npt.NDArray[np.float32]
_T = TypeVar("_T", np.float32, np.float64)


@dataclass(frozen=True)
class Recording:
    """The numbers of an episode: `state` [frames, dims] (None without one) and `action` [frames, dims] float32,
    `seconds` float64 [frames] since its begin, `tasks` a text a frame."""

    episode: Episode
    state: Floats | None
    action: Floats
    seconds: npt.NDArray[np.float64]
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """One frame: `step` counts in its episode, `index` in the dataset; `images` are uint8 [height, width, 3]."""

    episode: int
    step: int
    index: int
    seconds: float
    task: str
    state: Floats | None
    action: Floats
    images: Mapping[str, Image]


class Dataset:
    """An open dataset; a context manager. `state` and `action` are the features that hold the robot's numbers.

    Not to be shared by threads: tables and videos are read forward.
    """

    def __init__(self, folder: Path, info: Info, *, state: str = STATE, action: str = ACTION) -> None:
        self.folder, self.info = folder, info
        self.action = _vector(info, action)
        self.state = _vector(info, state) if state in info.features or state != STATE else None
        self.cameras = {name: feature for name, feature in info.features.items() if feature.is_camera}
        self.tasks = read_tasks(folder, info)
        self.episodes = read_episodes(folder, info)
        self._table: Table | None = None
        self._videos: dict[str, Video] = {}
        self._pictures: dict[str, tuple[int, Iterator[tuple[int, bytes | str]] | None]] = {}

    @property
    def notes(self) -> list[str]:
        """What was left out, in words."""
        depth = [name for name, feature in self.info.features.items() if feature.depth]
        return [f"depth cameras are left out: {', '.join(depth)}"] if depth else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._pictures.clear()
        if self._table is not None:
            self._table.close()
        for video in self._videos.values():
            video.close()
        self._table, self._videos = None, {}

    def episode(self, index: int) -> Episode:
        """Return an episode; raises DatasetError when there is none of that number."""
        if not 0 <= index < len(self.episodes):
            raise DatasetError(f"The dataset has the episodes 0 to {len(self.episodes) - 1}, and not {index}.")
        return self.episodes[index]

    def recording(self, index: int) -> Recording:
        """Return the numbers of an episode.

        Raises DatasetError when columns lack or have other lengths, steps aren't 0, 1, 2, ..., times don't follow
        `fps`, a task isn't known, or a number isn't finite.
        """
        episode = self.episode(index)
        table = self._opened(episode)
        table.require([EPISODE, _STEP, _TIME, _TASK])
        rows = table.rows_of(index, episode.length)

        def column(name: str) -> npt.NDArray[np.float64]:
            values = table.numbers(Feature(name, "float64", (1,), ()), rows, np.float64)[:, 0]
            return _finite(values, name, index)

        if not np.array_equal(column(_STEP), np.arange(episode.length)):
            raise DatasetError(f"Episode {index} has a frame_index that doesn't count 0, 1, 2, ...: repair it.")
        seconds = column(_TIME)
        if np.any(np.abs(np.diff(seconds) * self.info.fps - 1) > 0.25):
            raise DatasetError(f"Episode {index} has timestamps that don't follow {self.info.fps:g} frames a second.")
        numbers = [int(number) for number in column(_TASK)]
        if lacking := sorted(set(numbers) - self.tasks.keys()):
            raise DatasetError(f"Episode {index} has the task {lacking[0]}, which the dataset doesn't list.")
        return Recording(
            episode,
            None if self.state is None else _finite(table.numbers(self.state, rows), self.state.name, index),
            _finite(table.numbers(self.action, rows), self.action.name, index),
            seconds,
            tuple(self.tasks[number] for number in numbers),
        )

    def frame(self, recording: Recording, step: int, cameras: Iterable[str] | None = None) -> Frame:
        """Return a frame with the images of `cameras` (all when None); forward steps are cheap.

        Raises DatasetError for a step or a camera that isn't there, and for damaged images.
        """
        episode = recording.episode
        if not 0 <= step < episode.length:
            raise DatasetError(f"Episode {episode.index} has the steps 0 to {episode.length - 1}, and not {step}.")
        wanted = list(self.cameras) if cameras is None else list(cameras)
        return Frame(
            episode.index,
            step,
            episode.start + step,
            float(recording.seconds[step]),
            recording.tasks[step],
            None if recording.state is None else recording.state[step],
            recording.action[step],
            {name: self._image(name, recording, step) for name in wanted},
        )

    def frames(self, episodes: Sequence[int] | None = None, cameras: Iterable[str] | None = None) -> Iterator[Frame]:
        """Yield the frames of some episodes (all when None) in order, one in memory at a time."""
        names = None if cameras is None else list(cameras)
        for index in range(len(self.episodes)) if episodes is None else episodes:
            recording = self.recording(index)
            for step in range(recording.episode.length):
                yield self.frame(recording, step, names)

    def _opened(self, episode: Episode) -> Table:
        if self._table is None or self._table.name != episode.data:
            path = located(self.folder, episode.data)
            self._pictures.clear()
            if self._table is not None:
                self._table.close()
            self._table = Table(path, episode.data)
        return self._table

    def _image(self, camera: str, recording: Recording, step: int) -> Image:
        feature = self.cameras.get(camera)
        if feature is None:
            known = ", ".join(self.cameras) or "none"
            raise DatasetError(f"The dataset has no color camera {camera}; it has {known}.")
        what = f"The image of {camera} at step {step} of episode {recording.episode.index}"
        if feature.dtype == "video":
            image = self._video(camera, recording, step)
        else:
            image = self._picture(camera, recording, step, what)
        if len(feature.shape) != 3 or image.shape[:2] != feature.shape[:2]:
            raise DatasetError(
                f"{what} has {image.shape[0]} x {image.shape[1]} pixels and the description says "
                f"{' x '.join(map(str, feature.shape))}: they don't fit each other."
            )
        return image

    def _video(self, camera: str, recording: Recording, step: int) -> Image:
        clip = recording.episode.clips[camera]
        video = self._videos.get(camera)
        if video is None or video.name != clip.file:
            path = located(self.folder, clip.file)
            if video is not None:
                video.close()
            video = self._videos[camera] = Video(path, clip.file, self.info.fps)
        return video.at(clip.start_s + float(recording.seconds[step]))

    def _picture(self, camera: str, recording: Recording, step: int, what: str) -> Image:
        """Return an image of a table: the column is read on within a row group, or from the begin of the group."""
        table = self._opened(recording.episode)
        rows = table.rows_of(recording.episode.index, recording.episode.length)
        row = rows[step]
        last, pictures = self._pictures.pop(camera, (-1, None))
        if pictures is None or not table.group_start(row) <= last < row:
            pictures = None  # lets go of what it holds before the next one reads
            pictures = table.pictures(camera, range(row, table.rows))
        value: bytes | str | None = None
        for at, value in pictures:  # noqa: B007 - the last one is wanted
            if at == row:
                break
        self._pictures[camera] = (row, pictures)
        if value is None:
            raise DatasetError(f"{what} is not in its table: download the dataset again.")
        return decoded(located(self.folder, value).read_bytes() if isinstance(value, str) else value, what)


def _vector(info: Info, name: str) -> Feature:
    feature = info.features.get(name)
    if feature is None or feature.dtype not in NUMBERS:
        found = ", ".join(key for key, one in info.features.items() if one.dtype in NUMBERS)
        raise DatasetError(f"The dataset has no numbers under {name}; it has {found}: name the feature to use.")
    return feature


def _finite(values: npt.NDArray[_T], name: str, episode: int) -> npt.NDArray[_T]:
    if not np.isfinite(values).all():
        step = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))[0])
        raise DatasetError(f"Episode {episode} has a {name} at step {step} that isn't finite: repair the dataset.")
    return values


def open_dataset(folder: str | Path, *, state: str = STATE, action: str = ACTION) -> Dataset:
    """Open the dataset in a folder; the features `state` (may lack under its usual name) and `action` hold numbers.

    Raises DatasetError when it can't be read or its description breaks its layout's rules, MissingExtraError without
    the packages of the extra `evaluate`.
    """
    path = Path(folder)
    return Dataset(path, read_info(path), state=state, action=action)
