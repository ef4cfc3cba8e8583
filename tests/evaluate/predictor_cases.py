"""Predictors whose actions are known: they find the recorded frame by its state and add a known error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from dataset_files import Written

from edgewright.evaluate import Predictor

HORIZON, DIMS, NOISE = 6, 5, (6, 8)
#: (episode, step, noise) -> an error [HORIZON, DIMS] that is added to the recorded actions.
ErrorOf = Callable[[int, int, np.ndarray], np.ndarray]


class Replay:
    """Predicts the recorded actions (the last one repeated beyond the end) plus an error; notes what it saw."""

    def __init__(self, written: Written, error: ErrorOf) -> None:
        self.written, self.error = written, error
        self.seen: list[tuple[int, int]] = []
        self.noise: list[np.ndarray] = []
        self.observations: list[Mapping[str, Any]] = []

    def __call__(self, observation: Mapping[str, Any], noise: np.ndarray) -> np.ndarray:
        episode, step = self.find(observation["state"])
        self.seen.append((episode, step))
        self.noise.append(noise.copy())
        self.observations.append(observation)
        chunk = chunk_of(self.written, episode, step) + self.error(episode, step, noise)
        noise[:] = 0  # what a predictor does to its noise must not reach the next one
        return chunk.astype(np.float32)

    def find(self, state: np.ndarray) -> tuple[int, int]:
        for episode, drawn in enumerate(self.written.episodes):
            found = np.flatnonzero((drawn.state == state).all(1))
            if len(found):
                return episode, int(found[0])
        raise AssertionError("a state that was never recorded")


def chunk_of(written: Written, episode: int, step: int) -> np.ndarray:
    """Return the recorded actions from a step on, float64 [HORIZON, DIMS], the last one repeated beyond the end."""
    actions = written.episodes[episode].action.astype(np.float64)
    return actions[np.minimum(np.arange(step, step + HORIZON), len(actions) - 1)]


def replay(written: Written, error: ErrorOf, name: str = "replay", **changes: Any) -> tuple[Predictor, Replay]:
    """Return a predictor and the function behind it."""
    function = Replay(written, error)
    settings: dict[str, Any] = {
        "name": name, "infer": function, "horizon": HORIZON, "dims": DIMS, "noise_shape": NOISE,
        "cameras": ("observation.images.top", "wrist", "extra"), "required": ("wrist",), "run": 3, "state_dims": 4,
    }  # fmt: skip
    return Predictor(**(settings | changes)), function
