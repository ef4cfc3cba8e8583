"""What is evaluated: anything that turns an observation and noise into a chunk of actions, a policy among others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgewright.bundle import read_manifest
from edgewright.checkpoint.text import shown
from edgewright.errors import BundleError, DatasetError, GenerationError, UsageError
from edgewright.evaluate.dataset import IMAGES, Dataset, Frame
from edgewright.runtime.policy.policy import Policy
from edgewright.runtime.policy.spec import PolicySpec

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Predictor:
    """A policy as it is evaluated.

    `infer` takes an observation {"images": {camera: uint8 [height, width, 3]}, "state": float32 [dims] (where the
    dataset has one), "prompt": text} and noise, float32 of `noise_shape`, and gives absolute actions [`horizon`,
    `dims`] in the dataset's unit; it raises GenerationError where it has none that are finite. `cameras` are the
    images it takes, by its own names, `required` those it can't do without; of a chunk the first `run` actions are
    meant to be executed. `state_dims` 0: any state, or none. `notes` says what was done to observations that nobody
    may have expected, each once, as far as it has inferred.
    """

    name: str
    infer: Callable[[Mapping[str, Any], npt.NDArray[np.float32]], Array]
    horizon: int
    dims: int
    noise_shape: tuple[int, int]
    cameras: tuple[str, ...]
    required: tuple[str, ...]
    run: int
    state_dims: int = 0
    notes: dict[str, None] = field(default_factory=dict, compare=False)


class RunsPolicy(Protocol):
    """What is used of a loaded policy: `infer`, which gives something with `actions` [horizon, dims], maybe `notes`."""

    def infer(self, observation: Mapping[str, Any], *, noise: npt.NDArray[np.float32]) -> Any: ...


def predictor_of(name: str, spec: PolicySpec, policy: RunsPolicy) -> Predictor:
    """Return a loaded policy with its spec as a predictor; `name` is what it is called in reports."""
    notes: dict[str, None] = {}

    def infer(observation: Mapping[str, Any], noise: npt.NDArray[np.float32]) -> Array:
        chunk = policy.infer(left_out(spec.cameras, observation), noise=noise)
        notes.update(dict.fromkeys(getattr(chunk, "notes", ())))
        return np.asarray(chunk.actions)

    return Predictor(
        name=name,
        infer=infer,
        horizon=spec.horizon,
        dims=spec.action_dim,
        noise_shape=(spec.horizon, spec.model_action_dim),
        cameras=spec.cameras,
        required=spec.required_cameras,
        run=spec.steps_to_run,
        state_dims=spec.state_dim,
        notes=notes,
    )


def left_out(cameras: Sequence[str], observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation that says of every camera without an image that it is meant to have none."""
    missing = {camera: False for camera in cameras if camera not in observation["images"]}
    return {**observation, "image_mask": missing} if missing else dict(observation)


def load_predictor(name: str, bundle: str | Path, threads: int | None = None) -> Predictor:
    """Load a policy's bundle as a predictor; `threads` is the number of cores to use.

    Raises BundleError when the bundle holds no policy, and whatever loading it raises.
    """
    if read_manifest(Path(bundle)).model.get("policy") is None:
        raise BundleError(f"{bundle} holds no robot policy, and only policies are evaluated: see `edgewright quality`.")
    policy = Policy.load(bundle, threads=threads)
    return predictor_of(name, policy.spec, policy)


def by_name(given: Mapping[str, str], cameras: Sequence[str]) -> dict[str, str]:
    """Return what `given` maps, by the policy's own names of its cameras; those it hasn't stay as they are.

    A name holds with or without LeRobot's `observation.images.`. Raises UsageError for two names of one camera.
    """
    found: dict[str, str] = {}
    for name, there in given.items():
        own = same_camera(name, cameras) or name
        if own in found:
            raise UsageError(f"The camera {shown(own)} is given twice: give each camera once.")
        found[own] = there
    return found


def same_camera(name: str, cameras: Sequence[str]) -> str | None:
    """Return the one of `cameras` that a name means, with or without `observation.images.`, or None."""
    short = name.removeprefix(IMAGES)
    return next((one for one in (name, IMAGES + short, short) if one in cameras), None)


def match_cameras(predictor: Predictor, dataset: Dataset, given: Mapping[str, str]) -> dict[str, str]:
    """Return the dataset's camera for each of the predictor's.

    `given` maps the predictor's names to the dataset's; what it doesn't name is matched by equal names. All names hold
    with or without LeRobot's `observation.images.`. Raises UsageError for a camera the predictor or the dataset hasn't,
    DatasetError when one that the predictor can't do without is not found.
    """
    found, given = {}, by_name(given, predictor.cameras)
    if unknown := [name for name in given if name not in predictor.cameras]:
        raise UsageError(
            f"{predictor.name} has no camera {shown(unknown[0])}; it has {', '.join(predictor.cameras) or 'none'}."
        )
    for camera in predictor.cameras:
        there = same_camera(given.get(camera, camera), list(dataset.cameras))
        if camera in given and there is None:
            raise UsageError(
                f"The dataset has no camera {shown(given[camera])}; it has {', '.join(dataset.cameras) or 'none'}."
            )
        if there is not None:
            found[camera] = there
    if lacking := [camera for camera in predictor.required if camera not in found]:
        raise DatasetError(
            f"{predictor.name} needs the camera {lacking[0]}, which the dataset has not under this name (it has "
            f"{', '.join(dataset.cameras) or 'none'}): say which is meant with --camera {lacking[0]}=NAME."
        )
    return found


def check_dims(predictor: Predictor, dataset: Dataset) -> None:
    """Raise DatasetError when the dataset is of a robot with other numbers than the predictor's."""
    if predictor.dims != dataset.action.size:
        raise DatasetError(
            f"{predictor.name} gives {predictor.dims} numbers an action and the dataset's {dataset.action.name} has "
            f"{dataset.action.size}: evaluate on data of the same robot."
        )
    state = 0 if dataset.state is None else dataset.state.size
    if predictor.state_dims and predictor.state_dims != state:
        raise DatasetError(
            f"{predictor.name} takes a state of {predictor.state_dims} numbers and the dataset has {state}: evaluate "
            "on data of the same robot."
        )


def check_pair(predictors: Sequence[Predictor]) -> None:
    """Raise UsageError unless all predictors take the same noise and give chunks of one length."""
    first = predictors[0]
    for other in predictors[1:]:
        mine, theirs = (first.noise_shape, first.horizon), (other.noise_shape, other.horizon)
        if mine != theirs:
            raise UsageError(
                f"{first.name} takes noise {list(first.noise_shape)} for {first.horizon} actions and {other.name} "
                f"{list(other.noise_shape)} for {other.horizon}: only policies of one shape can be put side by side."
            )


def observation_of(frame: Frame, cameras: Mapping[str, str]) -> dict[str, Any]:
    """Return a frame as the observation that a predictor with these cameras takes."""
    observation: dict[str, Any] = {
        "images": {camera: frame.images[name] for camera, name in cameras.items()},
        "prompt": frame.task,
    }
    if frame.state is not None:
        observation["state"] = frame.state
    return observation


def predict(predictor: Predictor, observation: Mapping[str, Any], noise: npt.NDArray[np.float32]) -> Array:
    """Return a chunk of actions, float64 [horizon, dims], all NaN where the predictor refuses to give any.

    The runtime's policies refuse so when actions aren't finite. Raises UsageError when another shape is given.
    """
    try:
        actions = np.asarray(predictor.infer(observation, noise.copy()), np.float64)
    except GenerationError:
        return np.full((predictor.horizon, predictor.dims), np.nan)
    if actions.shape != (predictor.horizon, predictor.dims):
        raise UsageError(
            f"{predictor.name} gave actions of shape {list(actions.shape)} instead of "
            f"{[predictor.horizon, predictor.dims]}: its description is wrong."
        )
    return actions
