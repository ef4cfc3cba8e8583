"""Which frames are evaluated, and the noise that each of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgewright.errors import DatasetError, UsageError
from edgewright.evaluate.dataset import Dataset


@dataclass(frozen=True)
class FrameChoice:
    """Episodes by number, all when None; `count` of their frames at even distances, all when None, or every `every`-th.

    `seed` moves the spread and decides the noise. The same choice of the same dataset gives the same frames.
    """

    episodes: Sequence[int] | None = None
    count: int | None = 64
    every: int | None = None
    seed: int = 0

    def of(self, dataset: Dataset) -> list[tuple[int, list[int]]]:
        """Return (episode, steps) in order, episodes without a chosen frame left out.

        Raises DatasetError for an episode that isn't there or when there are no frames, UsageError for counts below 1.
        """
        if self.seed < 0 or any(value is not None and value < 1 for value in (self.count, self.every)):
            raise UsageError("The seed must be at least 0, the number of frames and their distance at least 1.")
        numbers = range(len(dataset.episodes)) if self.episodes is None else sorted(set(self.episodes))
        episodes = [dataset.episode(number) for number in numbers]
        total = sum(episode.length for episode in episodes)
        if not total:
            raise DatasetError("The chosen episodes have no frames: choose others.")
        if self.every is not None:
            return [
                (episode.index, list(range(0, episode.length, self.every))) for episode in episodes if episode.length
            ]
        chosen = _spread(total, min(self.count or total, total), self.seed)
        found, first = [], 0
        for episode in episodes:
            inside = chosen[(chosen >= first) & (chosen < first + episode.length)] - first
            if len(inside):
                found.append((episode.index, [int(step) for step in inside]))
            first += episode.length
        return found


def _spread(total: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return `count` different numbers below `total` at even distances, moved by a part that the seed decides."""
    shift = np.random.default_rng(np.random.SeedSequence([seed])).random()
    places = np.floor((np.arange(count) + shift) * (total / count))
    return np.asarray(np.minimum(places, total - 1), np.int64)


def noise_of(seed: int, index: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return the noise of the dataset's frame `index`: float32 [horizon, dims], standard normal, always the same."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, index]))
    return generator.standard_normal(shape, dtype=np.float32)
