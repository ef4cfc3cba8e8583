"""What a closed loop drives: a policy to be served, with the limits its robot is guarded by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint.text import shown
from edgewright.errors import ObservationError, UsageError
from edgewright.evaluate.dataset import IMAGES
from edgewright.evaluate.predictors import by_name, left_out, same_camera
from edgewright.evaluate.tasks import TaskSpec
from edgewright.runtime.policy.policy import Chunk, Policy
from edgewright.runtime.policy.spec import Limits
from edgewright.serve import Infers


@dataclass(frozen=True)
class Contender:
    """A policy as it is evaluated in a closed loop.

    `policy` is anything that a server serves. `limits` are those of its actions. `begin` is called before every
    episode with random numbers that depend on the seed and the episode alone, where the policy wants some.
    """

    name: str
    policy: Infers
    limits: Limits = field(default_factory=Limits)
    begin: Callable[[np.random.Generator], None] | None = None


class _Seeded:
    """A bundle's policy whose noise is decided by the episode, not by what was inferred before."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._shape = (policy.spec.horizon, policy.spec.model_action_dim)
        self._random = np.random.default_rng(0)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._policy.metadata

    def begin(self, random: np.random.Generator) -> None:
        self._random = random

    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        noise = self._random.standard_normal(self._shape, dtype=np.float32)
        return self._policy.infer(left_out(self._policy.spec.cameras, observation), noise=noise)


def load_contender(name: str, bundle: str | Path, threads: int | None = None) -> Contender:
    """Load a policy's bundle; `threads` is the number of cores to use. Raises what `Policy.load` raises."""
    policy = Policy.load(bundle, threads=threads)
    seeded = _Seeded(policy)
    return Contender(name, seeded, policy.spec.limits, seeded.begin)


def match_cameras(name: str, told: Mapping[str, Any], task: TaskSpec, given: Mapping[str, str]) -> dict[str, str]:
    """Return the task's camera for each of a policy's, from what its server told; see `match_cameras` of datasets.

    A server that tells no cameras gets those in `given`, or all of the task's. Names hold with or without LeRobot's
    `observation.images.`. Raises UsageError for a camera that the
    task or the policy hasn't, ObservationError when the task has none of a policy's, or not one that it needs.
    """
    cameras = _texts(told.get("cameras"))
    if cameras is None:
        cameras = list(given or task.cameras)
    given = {camera: same_camera(there, task.cameras) or there for camera, there in by_name(given, cameras).items()}
    if unknown := [camera for camera in given if camera not in cameras]:
        raise UsageError(f"{name} has no camera {shown(unknown[0])}; it has {', '.join(cameras) or 'none'}.")
    if unknown := [camera for camera in given.values() if camera not in task.cameras]:
        raise UsageError(f"The task {task.name} has no camera {shown(unknown[0])}; it has {', '.join(task.cameras)}.")
    wanted = {camera: given.get(camera, camera.removeprefix(IMAGES)) for camera in cameras}
    found = {camera: there for camera, there in wanted.items() if there in task.cameras}
    needed = _texts(told.get("required_cameras")) or ([] if found else cameras)
    if lacking := [camera for camera in needed if camera not in found]:
        raise ObservationError(
            f"{name} needs the camera {lacking[0]}, which the task {task.name} has not under this name (it has "
            f"{', '.join(task.cameras)}): say which is meant with --camera {lacking[0]}=NAME."
        )
    return found


def check_numbers(name: str, told: Mapping[str, Any], task: TaskSpec) -> None:
    """Raise ObservationError when a policy, from what its server told, is of a robot with other numbers."""
    for key, wanted, what in (("state_dim", task.state, "takes a state of"), ("action_dim", task.action, "gives")):
        value = told.get(key)
        if isinstance(value, int) and value != len(wanted) and not (key == "state_dim" and value == 0):
            raise ObservationError(
                f"{name} {what} {value} numbers{'' if key == 'state_dim' else ' an action'}, and the robot of the task "
                f"{task.name} has {len(wanted)} ({', '.join(wanted)}): evaluate a policy of this robot."
            )


def observation_of(seen: Mapping[str, Any], cameras: Mapping[str, str], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's observation with the policy's names of the cameras, without the state where it takes none."""
    observation = {**seen, "images": {camera: seen["images"][there] for camera, there in cameras.items()}}
    if told.get("state_dim") == 0:
        del observation["state"]
    return observation


def _texts(value: Any) -> list[str] | None:
    return [str(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else None
