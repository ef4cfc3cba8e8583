"""Scripted policies of the reacher: one that looks and reaches, one that moves at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgewright.evaluate.tasks.reacher import PIXELS, REACH_M

UPPER_M, FORE_M = 0.1, 0.11
HORIZON, RUN = 10, 4


@dataclass
class Chunk:
    """What a policy returns."""

    actions: np.ndarray
    timings: Mapping[str, Any] = field(default_factory=lambda: {"total": 1.0})
    notes: tuple[str, ...] = ()


def seen_target(image: np.ndarray) -> np.ndarray | None:
    """Return where the middle of the red pixels is, in meters, None where there are none."""
    levels = image.astype(np.float64)
    red = levels[..., 0] - levels[..., 1:].max(axis=-1)
    weights = np.where(red > 60, red, 0.0)
    if not weights.any():
        return None
    rows, columns = ((weights.sum(axis=axis) * (np.arange(PIXELS) + 0.5)).sum() / weights.sum() for axis in (1, 0))
    return np.array([columns, PIXELS - rows]) * (2 * REACH_M / PIXELS) - REACH_M


def angles_to(target: np.ndarray) -> np.ndarray:
    """Return joint angles whose fingertip is at the target, or nearest to it: the textbook's inverse kinematics."""
    x, y = target
    cosine = (x * x + y * y - UPPER_M**2 - FORE_M**2) / (2 * UPPER_M * FORE_M)
    elbow = np.arccos(np.clip(cosine, np.cos(2.99), 1.0))
    return np.array([np.arctan2(y, x) - np.arctan2(FORE_M * np.sin(elbow), UPPER_M + FORE_M * np.cos(elbow)), elbow])


def tip_of(angles: np.ndarray) -> np.ndarray:
    both = angles[0] + angles[1]
    return np.array(
        [UPPER_M * np.cos(angles[0]) + FORE_M * np.cos(both), UPPER_M * np.sin(angles[0]) + FORE_M * np.sin(both)]
    )


TOLD: dict[str, Any] = {
    "kind": "scripted", "cameras": ["top"], "required_cameras": ["top"], "state_dim": 4, "action_dim": 2,
    "horizon": HORIZON, "steps_to_run": RUN,
}  # fmt: skip


class Looks:
    """Sees the target in the image, or remembers where it was seen last, and goes there."""

    def __init__(self, plan: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None, **told: Any) -> None:
        self.metadata: Mapping[str, Any] = TOLD | told
        self.plan = plan or (lambda state, target: np.tile(angles_to(target), (HORIZON, 1)))
        self.target = np.zeros(2)
        self.calls = 0
        self.prompts: set[str] = set()
        self.cameras: set[str] = set()

    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        self.calls += 1
        self.prompts.add(observation["prompt"])
        self.cameras |= set(observation["images"])
        (image,) = observation["images"].values()
        seen = seen_target(np.asarray(image))
        self.target = self.target if seen is None else seen
        return Chunk(self.plan(np.asarray(observation["state"], np.float64), self.target).astype(np.float32))


def pushes(state: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return one action of torques that moves the joints to the target's angles."""
    return np.clip(1.1 * (angles_to(target) - state[:2]) - 0.145 * state[2:], -1, 1)[None]


class Wanders:
    """Goes to random angles."""

    metadata: Mapping[str, Any] = TOLD

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def begin(self, random: np.random.Generator) -> None:
        self.random = random

    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        return Chunk(np.tile(self.random.uniform(-3, 3, 2), (HORIZON, 1)).astype(np.float32))
