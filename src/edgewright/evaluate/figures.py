"""Figures of predicted chunks against recorded actions: errors, smoothness, gripper, and intervals by resampling.

Errors are in the action's unit by dimension and step. Single figures are in parts of the range that a dimension covers
in the recordings, so that dimensions of different units can be averaged; a dimension that never changes is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: A gripper changes between open and closed when it passes the middle of its range by this part of it.
_HYSTERESIS = 0.1
RESAMPLES = 2000
#: Episodes from which on they are resampled instead of frames, which aren't independent within one.
_ENOUGH_EPISODES = 8
#: Numbers that are drawn at once.
_PORTION = 1 << 21


@dataclass(frozen=True)
class Interval:
    """A mean with the 2.5 % and 97.5 % points of its resampled distribution; `over` tells what was resampled."""

    mean: float
    low: float
    high: float
    over: str

    def to_json(self) -> dict[str, Any]:
        """Return the interval as JSON-compatible values."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "over": self.over}


def bootstrap(values: Sequence[float], episodes: Sequence[int], seed: int) -> Interval | None:
    """Return the mean of values with its interval, from 2,000 resamples of episodes (of frames when they are few).

    `episodes` tells the episode of each value. Paired differences as values give a paired interval. None without
    values. The percentile method of Efron and Tibshirani (An Introduction to the Bootstrap, 1993, chapter 13).
    """
    if not len(values):
        return None
    numbers, labels = np.asarray(values, np.float64), np.asarray(episodes)
    different = np.unique(labels)
    if len(different) >= _ENOUGH_EPISODES:
        over = "episodes"
        sums = np.array([numbers[labels == one].sum() for one in different])
        counts = np.array([(labels == one).sum() for one in different], np.float64)
    else:
        over, sums, counts = "frames", numbers, np.ones(len(numbers))
    rng = np.random.default_rng(np.random.SeedSequence([seed, len(numbers)]))
    units = len(sums)
    means = []
    portion = max(1, _PORTION // units)
    for start in range(0, RESAMPLES, portion):
        chosen = rng.integers(0, units, (min(portion, RESAMPLES - start), units))
        means.append(sums[chosen].sum(1) / counts[chosen].sum(1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Interval(float(numbers.mean()), float(low), float(high), over)


def is_open(values: Floats, low: float, high: float) -> npt.NDArray[np.bool_]:
    """Return for each step [steps] whether a gripper is in the upper half of [low, high], with hysteresis."""
    middle, margin = (low + high) / 2, _HYSTERESIS * (high - low)
    state, states = bool(values[0] > middle), []
    for value in values:
        state = bool(value > middle + (-margin if state else margin))
        states.append(state)
    return np.array(states)


@dataclass
class Mean:
    """A running mean and maximum; `value` is None as long as nothing was added."""

    total: float = 0.0
    count: int = 0
    largest: float | None = None

    def add(self, values: npt.ArrayLike) -> None:
        """Take all values."""
        array = np.asarray(values, np.float64)
        if array.size:
            self.total += float(array.sum())
            self.count += array.size
            self.largest = max(float(array.max()), self.largest if self.largest is not None else -np.inf)

    @property
    def value(self) -> float | None:
        """The mean."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True)
class Scale:
    """The recorded actions' `low` and `high` by dimension, and which dimensions are grippers."""

    low: Floats
    high: Floats
    grippers: tuple[int, ...]

    @property
    def width(self) -> Floats:
        """The range of each dimension."""
        return self.high - self.low

    @property
    def live(self) -> npt.NDArray[np.bool_]:
        """Which dimensions change at all."""
        return self.width > 0

    def shares(self, values: Floats) -> Floats:
        """Return values [..., dims] of the dimensions that change, in parts of their range."""
        return np.asarray(values[..., self.live] / self.width[self.live], np.float64)


@dataclass
class Score:
    """All sums over one predictor's chunks; `run` is how many actions of a chunk are executed."""

    scale: Scale
    horizon: int
    run: int
    absolute: Floats = field(init=False)
    square: Floats = field(init=False)
    largest: Floats = field(init=False)
    frames: npt.NDArray[np.int64] = field(init=False)
    by_frame: list[float] = field(default_factory=list)
    episodes: list[int] = field(default_factory=list)
    run_error: Mean = field(default_factory=Mean)
    jerk: Mean = field(default_factory=Mean)
    recorded_jerk: Mean = field(default_factory=Mean)
    jump: Mean = field(default_factory=Mean)
    agreement: Mean = field(default_factory=Mean)
    flips: Mean = field(default_factory=Mean)
    recorded_flips: Mean = field(default_factory=Mean)
    not_finite: int = 0
    _last: tuple[int, int, Floats] | None = None

    def __post_init__(self) -> None:
        dims = len(self.scale.low)
        self.absolute, self.square, self.largest = (np.zeros((self.horizon, dims)) for _ in range(3))
        self.frames = np.zeros(self.horizon, np.int64)

    def add(self, episode: int, step: int, chunk: Floats, recorded: Floats) -> None:
        """Take a chunk [horizon, dims] predicted at a step, and what was recorded from there [steps, dims] on.

        `recorded` is shorter than the chunk at the end of an episode: steps beyond are not compared. A chunk with a
        number that isn't finite counts in `not_finite` only.
        """
        if not np.isfinite(chunk).all():
            self.not_finite += 1
            self._last = None
            return
        valid = len(recorded)
        error = chunk[:valid] - recorded
        self.absolute[:valid] += np.abs(error)
        self.square[:valid] += error**2
        self.largest[:valid] = np.maximum(self.largest[:valid], np.abs(error))
        self.frames[:valid] += 1
        shares = np.abs(self.scale.shares(error))
        self.by_frame.append(float(shares.mean()) if shares.size else 0.0)
        self.episodes.append(episode)
        self.run_error.add(shares[: self.run])
        self._smoothness(episode, step, chunk, recorded)
        self._grippers(chunk[:valid], recorded)

    def _smoothness(self, episode: int, step: int, chunk: Floats, recorded: Floats) -> None:
        """Third differences over the steps that were recorded, and how far this chunk is from the one before."""
        for mean, actions in ((self.jerk, chunk[: len(recorded)]), (self.recorded_jerk, recorded)):
            mean.add(np.abs(np.diff(self.scale.shares(actions), 3, axis=0)))
        if self._last is not None and self._last[0] == episode and 0 < step - self._last[1] < self.horizon:
            self.jump.add(np.abs(self.scale.shares(chunk[0] - self._last[2][step - self._last[1]])))
        self._last = (episode, step, chunk)

    def _grippers(self, chunk: Floats, recorded: Floats) -> None:
        for dim in self.scale.grippers:
            limits = float(self.scale.low[dim]), float(self.scale.high[dim])
            mine, theirs = (is_open(actions[:, dim], *limits) for actions in (chunk, recorded))
            self.agreement.add(mine == theirs)
            self.flips.add([(mine[1:] != mine[:-1]).sum()])
            self.recorded_flips.add([(theirs[1:] != theirs[:-1]).sum()])

    def table(self, sums: Floats) -> Floats:
        """Return sums [horizon, dims] as means over frames; NaN for steps that no frame reached."""
        count = self.frames[:, None]
        return np.where(count > 0, sums / np.maximum(count, 1), np.nan)

    def shared(self, sums: Floats, power: int = 1) -> float | None:
        """Return the mean over all steps compared, and the dimensions that change, of sums in parts of their range."""
        live, width = self.scale.live, self.scale.width
        count = int(self.frames.sum()) * int(live.sum())
        return float((sums[:, live] / width[live] ** power).sum()) / count if count else None

    def figures(self, seed: int) -> dict[str, Any]:
        """Return the single figures; None where there is nothing to measure."""
        square = self.shared(self.square, 2)
        jerk, recorded = self.jerk.value, self.recorded_jerk.value
        interval = bootstrap(self.by_frame, self.episodes, seed) if self.scale.live.any() else None
        worst = self.scale.shares(self.largest)
        return {
            "mae": self.shared(self.absolute),
            "mae_by_frame": None if interval is None else interval.to_json(),
            "mse": square,
            "rmse": None if square is None else float(np.sqrt(square)),
            "max_error": float(worst.max()) if worst.size and self.by_frame else None,
            "run_mae": self.run_error.value,
            "jerk": jerk,
            "recorded_jerk": recorded,
            "jerk_ratio": jerk / recorded if jerk is not None and recorded else None,
            "jump": self.jump.value,
            "max_jump": self.jump.largest,
            "jumps": self.jump.count // max(1, int(self.scale.live.sum())),
            "gripper_agreement": self.agreement.value,
            "gripper_flips": self.flips.value,
            "recorded_gripper_flips": self.recorded_flips.value,
            "frames": len(self.by_frame),
            "not_finite": self.not_finite,
        }


@dataclass
class Pair:
    """The sums over the chunks of two predictors from the same frames and noise."""

    scale: Scale
    distance: Mean = field(default_factory=Mean)
    square: Mean = field(default_factory=Mean)
    run_distance: Mean = field(default_factory=Mean)
    by_dim: list[Mean] = field(default_factory=list)
    increase: list[float] = field(default_factory=list)
    by_frame: list[float] = field(default_factory=list)
    episodes: list[int] = field(default_factory=list)

    def add(self, episode: int, chunks: Sequence[Floats], recorded: Floats, run: int) -> None:
        """Take the two chunks [horizon, dims] of a frame; nothing when one isn't finite."""
        first, second = chunks
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            return
        if not self.by_dim:
            self.by_dim = [Mean() for _ in range(first.shape[1])]
        for dim, mean in enumerate(self.by_dim):
            mean.add(np.abs(second - first)[:, dim])
        shares = np.abs(self.scale.shares(second - first))
        self.distance.add(shares)
        self.square.add(shares**2)
        self.run_distance.add(shares[:run])
        errors = [np.abs(self.scale.shares(chunk[: len(recorded)] - recorded)) for chunk in chunks]
        if shares.size:
            self.increase.append(float(errors[1].mean() - errors[0].mean()))
            self.by_frame.append(float(shares.mean()))
            self.episodes.append(episode)

    def figures(self, seed: int) -> dict[str, Any]:
        """Return the figures: how far the second is from the first, and by how much its error is larger."""
        increase = bootstrap(self.increase, self.episodes, seed)
        distance = bootstrap(self.by_frame, self.episodes, seed)
        square = self.square.value
        return {
            "frames": len(self.increase),
            "difference": self.distance.value,
            "difference_by_frame": None if distance is None else distance.to_json(),
            "difference_rms": None if square is None else float(np.sqrt(square)),
            "max_difference": self.distance.largest,
            "run_difference": self.run_distance.value,
            "mae_increase": None if increase is None else increase.to_json(),
            "dimensions": [{"mean": mean.value, "max": mean.largest} for mean in self.by_dim],
        }
