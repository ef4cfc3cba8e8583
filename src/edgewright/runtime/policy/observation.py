"""From a robot's observation to the arrays that a policy's stages take; every bad input is an ObservationError.

An observation is a mapping in one of three spellings, which may be mixed as long as nothing is said twice:

- neutral: `images` {camera: image}, `state`, `prompt`, and `image_mask` {camera: bool} for cameras to leave out;
- LeRobot: `observation.images.NAME`, `observation.state`, `task`;
- openpi: `observation/image`, `observation/wrist_image`, `observation/state`, `prompt`, ... as its clients send them
  for LIBERO and DROID.

A camera is named by the policy's own name of it (`base_0_rgb`, `observation.images.top`) or by the last part of that
(`top`). A key that is not known is refused; those that datasets carry besides (time, index, action) have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.errors import ObservationError
from edgewright.runtime.policy.images import Image, Pixels, resize
from edgewright.runtime.policy.numbers import Floats, normalize, pad
from edgewright.runtime.policy.prompt import TokenIds, token_ids
from edgewright.runtime.policy.spec import PolicySpec, Statistics, Vector
from edgewright.runtime.text import Tokenizer

#: What openpi's robots call the cameras of its models.
_OPENPI_CAMERAS = {
    "image": "base_0_rgb",
    "exterior_image_1_left": "base_0_rgb",
    "wrist_image": "left_wrist_0_rgb",
    "wrist_image_left": "left_wrist_0_rgb",
}
_PREFIXES = ("observation.images.", "observation/images/", "observation.", "observation/")
_STATE_KEYS = ("state", "observation.state", "observation/state")
#: DROID's client sends the state in two parts.
_STATE_PARTS = ("observation/joint_position", "observation/gripper_position")
_PROMPT_KEYS = ("prompt", "task")
_MASK_KEYS = ("image_mask", "image_masks")
_WITHOUT_EFFECT = frozenset(
    {"action", "actions", "timestamp", "frame_index", "episode_index", "index", "task_index", "robot_type"}
)
#: LeRobot's names of image slots that no camera fills.
_NEVER_THERE = "empty_camera_"
#: How far from 0..1 rounding may have moved a float image.
_ROUNDING = 1e-6
#: Ranges beyond the range, and deviations, from which on a state is noted as one that was never seen.
_FAR_RANGES, _FAR_DEVIATIONS = 3.0, 10.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """What a policy's stages take of one observation.

    `images` float32 [views, 3, height, width] holds the cameras there are, -1 to 1, in the order of the spec's;
    `camera_mask` bool [cameras] says which those are. `token_ids` int64 [tokens] has no padding. `state` float32
    [model_state_dim] is normalized and padded with zeros, `raw_state` [state_dim] is what the robot sent. `notes` say
    what was done to the input that its sender may not expect.
    """

    images: Image
    camera_mask: npt.NDArray[np.bool_]
    token_ids: TokenIds
    state: npt.NDArray[np.float32]
    raw_state: Floats
    notes: tuple[str, ...] = ()


def prepare(spec: PolicySpec, statistics: Statistics, tokenizer: Tokenizer, observation: Mapping[str, Any]) -> Prepared:
    """Return the arrays of an observation.

    Images are [height, width, 3] or [3, height, width], uint8 or float from 0 to 1; a batch dimension of 1 is taken
    off images and state. Raises ObservationError for everything that isn't what the policy takes, and BundleError if
    the statistics are missing or of another robot.
    """
    found = _sort(spec, observation)
    notes: list[str] = []
    images, camera_mask = _images(spec, found.images, found.mask, notes)
    raw_state = _state(spec, found, notes)
    normalized, state = _normalized(spec, statistics, raw_state)
    if far := _far(statistics.state, raw_state):
        notes.append(
            f"the state is far outside what the policy was trained on at {', '.join(map(str, far))}: check the robot's "
            "units, and the order of the numbers"
        )
    prompt = _prompt(found)
    if not prompt.strip():
        notes.append("the prompt is empty: the policy isn't told what to do")
    ids, cut = token_ids(spec, tokenizer, prompt, normalized if spec.state_dim else None)
    return Prepared(
        images=images,
        camera_mask=camera_mask,
        token_ids=ids,
        state=state,
        raw_state=raw_state,
        notes=(*notes, *cut),
    )


@dataclass
class _Found:
    """The parts of an observation, by what they are, each with the key it came under."""

    images: dict[str, tuple[str, Any]]
    mask: dict[str, bool]
    state: tuple[str, Any] | None = None
    prompt: tuple[str, Any] | None = None


def _sort(spec: PolicySpec, observation: Any) -> _Found:
    """Tell the parts of an observation apart; refuse what is said twice and what isn't known."""
    if not isinstance(observation, Mapping):
        raise ObservationError(
            f"An observation is a mapping of images, state and prompt, but this is {_type(observation)}: send one."
        )
    found = _Found({}, {})
    for key, value in observation.items():
        if not isinstance(key, str):
            raise ObservationError(f"The observation has a key that is no text, {_type(key)}: name every entry.")
        if value is None or key in _STATE_PARTS:
            continue
        if key == "images":
            for name, image in _mapping(key, value).items():
                _add_image(spec, found, str(name), f"images[{name!r}]", image)
        elif key in _MASK_KEYS:
            for name, there in _mapping(key, value).items():
                found.mask[_camera(spec, str(name))] = _flag(f"{key}[{name!r}]", there)
        elif key in _STATE_KEYS:
            found.state = _once("state", found.state, key, value)
        elif key in _PROMPT_KEYS:
            found.prompt = _once("prompt", found.prompt, key, value)
        elif key not in _WITHOUT_EFFECT and not key.startswith("next.") and not key.endswith("_is_pad"):
            _add_image(spec, found, key, key, value)
    parts = [observation[key] for key in _STATE_PARTS if observation.get(key) is not None]
    if parts:
        found.state = _once("state", found.state, _STATE_PARTS[0], _joined(parts))
    return found


def _add_image(spec: PolicySpec, found: _Found, name: str, key: str, value: Any) -> None:
    camera = _camera(spec, name)
    if value is None:
        return
    found.images[camera] = _once(f"image of camera {camera}", found.images.get(camera), key, value)


def _once(what: str, before: tuple[str, Any] | None, key: str, value: Any) -> tuple[str, Any]:
    if before is not None:
        raise ObservationError(
            f"The observation has the {what} twice, as {before[0]} and as {key}, so it can't be told which one holds:"
            " send one."
        )
    return key, value


def _camera(spec: PolicySpec, name: str) -> str:
    """Return the policy's camera of a name, or refuse the name."""
    names = {camera: camera for camera in spec.cameras}
    short = {_short(camera): camera for camera in spec.cameras}
    if name in names:
        return name
    last = _short(name)
    if last in short:
        return short[last]
    if spec.convention == "openpi" and _OPENPI_CAMERAS.get(last) in names:
        return _OPENPI_CAMERAS[last]
    raise ObservationError(
        f"The observation's {name} is neither a camera of this policy nor anything else it takes: its cameras are"
        f" {', '.join(spec.cameras) or 'none'}; besides them send state and prompt only."
    )


def _short(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)


def _images(
    spec: PolicySpec, given: Mapping[str, tuple[str, Any]], mask: Mapping[str, bool], notes: list[str]
) -> tuple[Image, npt.NDArray[np.bool_]]:
    """Return the scaled images of the cameras there are, and which those are."""
    there = {camera: image for camera, image in given.items() if mask.get(camera, True)}
    missing = [name for name in spec.required_cameras if name not in there and mask.get(name, True)]
    blank = [name for name, used in mask.items() if used and name not in given and name not in missing]
    if missing or blank:
        raise ObservationError(
            f"The observation has no image of {', '.join([*missing, *blank])}, which the policy needs; it has"
            f" {', '.join(key for key, _ in given.values()) or 'no image at all'}: send every camera's image."
        )
    if spec.cameras and not there:
        raise ObservationError(
            f"The observation has no image that isn't masked, but the policy acts on what it sees: send at least one of"
            f" {', '.join(spec.cameras)}."
        )
    order = [camera for camera in spec.cameras if camera in there]
    notes += [
        f"no image of {camera}: it is masked"
        for camera in spec.cameras
        if camera not in {**given, **mask} and not _short(camera).startswith(_NEVER_THERE)
    ]
    images = np.empty((len(order), 3, *spec.image_size), np.float32)
    for index, camera in enumerate(order):
        key, value = there[camera]
        images[index] = resize(_pixels(key, value, notes), spec)
    return images, np.array([camera in there for camera in spec.cameras], np.bool_)


def _pixels(key: str, value: Any, notes: list[str]) -> Pixels:
    """Return an image as [height, width, 3], uint8 or float from 0 to 1; refuse everything else."""
    image = _array(key, value)
    if image.ndim == 4 and image.shape[0] == 1:
        image = image[0]
    if image.dtype != np.uint8 and image.dtype.kind != "f":
        raise ObservationError(
            f"The image {key} is {image.dtype}, but images are uint8 from 0 to 255 or float from 0 to 1: convert it."
        )
    channels = [axis for axis in (0, 2) if image.ndim == 3 and image.shape[axis] == 3]
    if len(channels) != 1 or 0 in image.shape:
        raise ObservationError(
            f"The image {key} has the shape {list(image.shape)}, which is not one RGB picture: send"
            " [height, width, 3] or [3, height, width]."
        )
    if channels == [0]:
        image = image.transpose(1, 2, 0)
    _check_range(key, image, notes)
    return image


def _check_range(key: str, image: Pixels, notes: list[str]) -> None:
    least, most = float(image.min()), float(image.max())
    if image.dtype == np.uint8:
        if most == 1:
            notes.append(f"the uint8 image {key} has no level above 1: is it a float image that was cast to uint8?")
        return
    if not np.isfinite(least) or not np.isfinite(most):
        raise ObservationError(
            f"The image {key} has values that are no number (NaN or infinite), so no action can follow from it: check"
            " the camera."
        )
    if least < -_ROUNDING or most > 1.0 + _ROUNDING:
        raise ObservationError(
            f"The float image {key} goes from {least:.6g} to {most:.6g}, but float images are from 0 to 1: send uint8"
            " for levels up to 255, or scale it."
        )


def _state(spec: PolicySpec, found: _Found, notes: list[str]) -> Floats:
    """Return the robot's state [state_dim] in its own unit and, where it is a float array, its own dtype."""
    if not spec.state_dim:
        if found.state is not None:
            notes.append(f"the policy takes no state: {found.state[0]} has no effect")
        return np.empty(0, np.float32)
    if found.state is None:
        raise ObservationError(
            f"The observation has no state, but the policy takes {spec.state_dim} numbers: send them as state."
        )
    key, value = found.state
    state = _array(key, value)
    if state.ndim == 2 and state.shape[0] == 1:
        state = state[0]
    if state.dtype.kind not in "fiu":
        raise ObservationError(f"{_the_state(key)} is {state.dtype}, but a state is numbers: send a float array.")
    if state.shape != (spec.state_dim,):
        raise ObservationError(
            f"{_the_state(key)} has the shape {list(state.shape)}, but the policy was trained on"
            f" {spec.state_dim} numbers: send [{spec.state_dim}], without padding."
        )
    wrong = np.flatnonzero(~np.isfinite(state)).tolist()
    if wrong:
        raise ObservationError(
            f"{_the_state(key)} is NaN or infinite at {', '.join(map(str, wrong))}, so no action can follow from it:"
            " check the robot's sensors."
        )
    if isinstance(value, np.ndarray) and state.dtype.kind == "f":
        return state
    return state.astype(np.float64 if spec.convention == "openpi" else np.float32)


def _normalized(spec: PolicySpec, statistics: Statistics, raw_state: Floats) -> tuple[Floats, npt.NDArray[np.float32]]:
    """Return the normalized state [state_dim], and as the model takes it [model_state_dim]."""
    norm = spec.state_norm if spec.state_dim else "identity"
    with np.errstate(over="ignore"):
        normalized = normalize(raw_state, statistics.state, norm, spec.convention)
        state = pad(normalized, spec.model_state_dim)
    if not np.isfinite(state).all():
        raise ObservationError(
            "The state is so far from what the policy was trained on that it has no place in float32: check the"
            " robot's sensors and units."
        )
    return normalized, state


def _the_state(key: str) -> str:
    return "The state" if key == "state" else f"The state {key}"


def _far(known: Mapping[str, Vector], state: Floats) -> list[int]:
    """Return which numbers of a state [state_dim] are far from the data, by the statistics there are.

    Far is more than 3 times the range beyond it (quantiles, else extremes), or 10 deviations from the mean; what never
    moved in the data has no range and isn't measured.
    """
    for low, high in (("q01", "q99"), ("min", "max"), ("mean", "std")):
        if not state.size or any(name not in known or known[name].size < state.size for name in (low, high)):
            continue
        deviations = low == "mean"
        first, second = known[low][: state.size], known[high][: state.size]
        width, above = (second, first) if deviations else (second - first, second)
        values = state.astype(np.float64)
        beyond = np.maximum(first - values, values - above)
        far = (width > 0) & (beyond > (_FAR_DEVIATIONS if deviations else _FAR_RANGES) * width)
        return [int(index) for index in np.flatnonzero(far)]
    return []


def _prompt(found: _Found) -> str:
    if found.prompt is None:
        raise ObservationError("The observation has no prompt: send the instruction as prompt (or task).")
    key, value = found.prompt
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise ObservationError(f"The prompt {key} is not UTF-8 text: send a string.") from error
    if not isinstance(value, str):
        raise ObservationError(f"The prompt {key} is {_type(value)}, but an instruction is a text: send one string.")
    return str(value)


def _array(key: str, value: Any) -> Pixels:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ObservationError(
            f"The observation's {key} is {_type(value)}, which is no array: send numbers."
        ) from error
    if array.dtype.kind not in "fiub":
        raise ObservationError(f"The observation's {key} is {_type(value)}, not numbers: send an array of numbers.")
    return array


def _joined(parts: list[Any]) -> Any:
    """Return the parts of a state as one; what is no array of numbers stays as it is and is refused as such later."""
    arrays = [np.atleast_1d(_array(key, part)) for key, part in zip(_STATE_PARTS, parts, strict=False)]
    return np.concatenate([array.reshape(-1) for array in arrays])


def _mapping(key: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ObservationError(f"The observation's {key} is {_type(value)}: send a mapping by camera name.")
    return value


def _flag(key: str, value: Any) -> bool:
    array = _array(key, value)
    if array.size != 1 or array.dtype.kind not in "biu" or array.item() not in (0, 1):
        raise ObservationError(f"The observation's {key} is not true or false: send one of them for each camera.")
    return bool(array.item())


def _type(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
