"""Robot observations for calibration, by the feature names of LeRobot.

A folder of safetensors files: each holds one sample, or a frame a row along the first axis, of

- `observation.state` and other `observation.NAME`: numbers [dimensions],
- `observation.images.NAME`: uint8, [height, width, channels] or [channels, height, width],
- `action`: numbers [dimensions], or [steps, dimensions] for a chunk of actions.

Frames are told by `observation.state` (or any other vector of an observation) having two axes; without one, by
images having four. What is told to do stands in `NAME.json` beside `NAME.safetensors`, as `task`: a text, or one text
for each frame. All samples have the same fields in the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.calibration.arrays import INPUT_IDS, TEXT, ArraySamples, Sample, text_array
from edgewright.calibration.documents import file_record, list_files
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.tensor import FLOATING, StoredTensor
from edgewright.checkpoint.text import read_json_object, shown
from edgewright.errors import CalibrationDataError
from edgewright.runtime.text import Tokenizer

STATE = "observation.state"
IMAGES = "observation.images."
ACTION = "action"
#: How many channels an image may have: colours before grey and transparency.
_CHANNELS = ((3,), (1, 4))


@dataclass(frozen=True)
class _File:
    """An episode or a single sample: its tensors by feature, its tasks, whether it has an axis of frames."""

    name: str
    tensors: Mapping[str, StoredTensor]
    framed: bool
    tasks: list[str] | None
    ignored: list[str]
    frames: int = 1
    sources: list[dict[str, Any]] = field(default_factory=list)


def is_observations(path: Path) -> bool:
    """Whether a path is a folder that holds safetensors files."""
    return path.is_dir() and bool(list_files(path, (".safetensors",)))


def read_observations(
    folder: Path,
    tokenizer: Tokenizer | None = None,
    *,
    sequences: int | None = None,
    length: int | None = None,
    seed: int = 0,
) -> ArraySamples:
    """Open a folder of observations; headers are read and compared, samples come when they are asked for.

    A sample has the features above by their names (vectors float32, images uint8 [height, width, channels]), `text`
    (the task's UTF-8 bytes) where there are tasks and, with a tokenizer, its `input_ids` int64, at most `length`.
    Raises CalibrationDataError when a camera or another field is missing in some, or shapes or dtypes differ.
    """
    paths = list_files(folder, (".safetensors",))
    files = [_open(name, path) for name, path in paths]
    if not files:
        raise CalibrationDataError(f"{folder} holds no .safetensors files: put observations there.")
    _check_agreement(files)
    layouts = {name: _layout(name, files[0]) for name in files[0].tensors if name.startswith(IMAGES)}
    places = [(file, frame) for file in files for frame in range(file.frames)]
    has_tasks = files[0].tasks is not None
    kinds = {name: "image" if name in layouts else "vector" for name in files[0].tensors}
    kinds |= {INPUT_IDS: "tokens"} if has_tasks and tokenizer else {}

    def load(index: int) -> Sample:
        file, frame = places[index]
        sample = {name: _read(file, name, frame, layouts.get(name)) for name in file.tensors}
        if file.tasks is not None:
            task = file.tasks[frame]
            sample[TEXT] = text_array(task)
            if tokenizer is not None:
                sample[INPUT_IDS] = np.array(tokenizer.encode(task)[:length], np.int64)
        return sample

    return ArraySamples(
        "observations",
        [record for file in files for record in file.sources],
        kinds,
        len(places),
        load,
        sequences=sequences,
        seed=seed,
        notes=_notes(files, has_tasks=has_tasks),
    )


def _notes(files: list[_File], *, has_tasks: bool) -> list[str]:
    ignored = sorted({name for file in files for name in file.ignored})
    return [
        *([f"left out, neither observation nor action: {', '.join(map(shown, ignored))}"] if ignored else []),
        *([] if has_tasks else ["there are no tasks, so text is not exercised"]),
        *([] if any(name.startswith(IMAGES) for name in files[0].tensors) else ["there are no cameras"]),
    ]


def _open(name: str, path: Path) -> _File:
    stored = read_safetensors(path)
    tensors = {key: stored[key] for key in sorted(stored) if key.startswith("observation.") or key == ACTION}
    if not any(key.startswith("observation.") for key in tensors):
        raise CalibrationDataError(
            f"{name} holds no observation (it has {shown(', '.join(sorted(stored)))}): name features as LeRobot does, "
            f"{STATE} and {IMAGES}NAME."
        )
    framed = _is_framed(tensors)
    axes = {key: len(t.shape) - framed for key, t in tensors.items()}
    for key, count in axes.items():
        _check_feature(name, key, tensors[key], count)
    rows = {t.shape[0] for t in tensors.values()} if framed else {1}
    if len(rows) != 1 or 0 in rows:
        raise CalibrationDataError(f"{name} has features of {sorted(rows)} frames: give each as many, at least one.")
    frames = rows.pop()
    beside = path.with_suffix(".json")
    sources = [file_record(name, path)]
    if beside.is_file():
        sources.append(file_record(str(Path(name).with_suffix(".json").as_posix()), beside))
    tasks = _tasks(name, beside, frames)
    return _File(name, tensors, framed, tasks, sorted(stored.keys() - tensors.keys()), frames, sources)


def _is_framed(tensors: Mapping[str, StoredTensor]) -> bool:
    vectors = [t for key, t in tensors.items() if key != ACTION and not key.startswith(IMAGES)]
    if vectors:
        return len(tensors.get(STATE, vectors[0]).shape) > 1
    return any(len(t.shape) == 4 for key, t in tensors.items() if key.startswith(IMAGES))


def _check_feature(name: str, key: str, tensor: StoredTensor, axes: int) -> None:
    """Raise CalibrationDataError unless a feature has the axes, apart from frames, and the dtype of its kind."""
    allowed = (3,) if key.startswith(IMAGES) else (1, 2) if key == ACTION else (1,)
    if axes not in allowed or 0 in tensor.shape:
        wanted = {3: "three axes a frame", 2: "one or two axes a frame", 1: "one axis a frame"}[max(allowed)]
        raise CalibrationDataError(f"{name} has {shown(key)} of shape {list(tensor.shape)}: it needs {wanted}.")
    if key.startswith(IMAGES) and tensor.dtype != "uint8":
        raise CalibrationDataError(f"{name} has {shown(key)} in {tensor.dtype}: store pixels as uint8 from 0 to 255.")
    if tensor.dtype not in FLOATING and not tensor.dtype.startswith(("int", "uint", "bool")):
        raise CalibrationDataError(f"{name} has {shown(key)} in {tensor.dtype}: store numbers.")


def _tasks(name: str, path: Path, frames: int) -> list[str] | None:
    if not path.is_file():
        return None
    task = read_json_object(path).get("task")
    tasks = [task] * frames if isinstance(task, str) else task
    if not isinstance(tasks, list) or len(tasks) != frames or not all(isinstance(item, str) for item in tasks):
        raise CalibrationDataError(
            f"{path.name} has a task that is neither a text nor one text for each of the {frames} frames of {name}: "
            "correct it."
        )
    if any(0xD800 <= ord(c) < 0xE000 for item in tasks for c in item):
        raise CalibrationDataError(f"{path.name} has a task with a lone surrogate: write valid Unicode.")
    return tasks


def _check_agreement(files: list[_File]) -> None:
    """Raise CalibrationDataError naming the first file whose fields, shapes, dtypes or tasks differ from the others."""
    everything = sorted({name for file in files for name in file.tensors})
    for name in everything:
        lacking = [file.name for file in files if name not in file.tensors]
        if lacking:
            what = "camera" if name.startswith(IMAGES) else "field"
            raise CalibrationDataError(
                f"The {what} {name} is missing in {lacking[0]} ({len(lacking)} of {len(files)} files): give "
                "samples that all have it, or remove it from all."
            )
        first = files[0]
        wanted = (first.tensors[name].shape[first.framed :], first.tensors[name].dtype)
        for file in files:
            found = (file.tensors[name].shape[file.framed :], file.tensors[name].dtype)
            if found != wanted:
                raise CalibrationDataError(
                    f"{name} is {found[1]} {list(found[0])} in {file.name} and {wanted[1]} {list(wanted[0])} in "
                    f"{first.name}: calibrate with samples of one kind."
                )
    told = [file.tasks is not None for file in files]
    if any(told) and not all(told):
        name = files[told.index(False)].name
        beside = f"{name.removesuffix('.safetensors')}.json"
        raise CalibrationDataError(f"{name} has no task beside it and other files have one: write {beside}.")


def _layout(name: str, file: _File) -> str:
    """Return `HWC` or `CHW`; raises CalibrationDataError when the shape fits neither or both."""
    shape = file.tensors[name].shape[file.framed :]
    for channels in _CHANNELS:
        if (shape[0] in channels) != (shape[-1] in channels):
            return "HWC" if shape[-1] in channels else "CHW"
    raise CalibrationDataError(
        f"{name} has the shape {list(shape)}, in which the axis of 1, 3 or 4 channels can't be told: give "
        "[height, width, channels]."
    )


def _read(file: _File, name: str, frame: int, layout: str | None) -> npt.NDArray[Any]:
    tensor = file.tensors[name]
    values = tensor.rows(frame, frame + 1)[0] if file.framed else tensor.read()
    if layout is None:
        return values.astype(np.float32)
    return np.ascontiguousarray(values.transpose(1, 2, 0)) if layout == "CHW" else values
