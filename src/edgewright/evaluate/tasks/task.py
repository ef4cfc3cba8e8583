"""What a task is: a robot in a simulator, what it sees and feels, what it is sent, and when it has succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Image = npt.NDArray[np.uint8]
#: How camera images are made: by the simulator's renderer, which needs OpenGL, or by a few lines of NumPy.
View = Literal["rendered", "drawn"]
VIEWS: tuple[str, ...] = get_args(View)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task by its numbers.

    `state` and `action` name the robot's numbers; the control rate is `rate_hz`, and an episode has at most `steps`
    actions. It succeeds when `distance` is below `tolerance` (both in `unit`) after each of `hold` actions in a row.
    """

    name: str
    what: str
    prompt: str
    cameras: tuple[str, ...]
    state: tuple[str, ...]
    action: tuple[str, ...]
    rate_hz: float
    steps: int
    distance: str
    unit: str
    tolerance: float
    hold: int

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON-compatible values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


class Task(Protocol):
    """A task that is open. The same seed and actions give the same states, to the bit on one machine."""

    @property
    def spec(self) -> TaskSpec:
        """Its numbers."""

    @property
    def view(self) -> View:
        """How its images are made."""

    def reset(self, seed: int) -> None:
        """Begin an episode; `seed` decides where the robot and its target are."""

    def observe(self) -> dict[str, Any]:
        """Return the observation: `images` {camera: uint8 [height, width, 3]}, `state` float32 [dims], `prompt`."""

    def rest(self) -> Floats:
        """Return the action [dims] that leaves the robot where it is."""

    def act(self, action: npt.ArrayLike) -> None:
        """Execute one action [dims] for one period of the control rate."""

    def distance(self) -> float:
        """Return how far the robot is from its target."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the simulator's packages."""

    def close(self) -> None:
        """Free what the simulator holds."""
