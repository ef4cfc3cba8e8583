"""Figures of small made-up numbers: grippers with hysteresis, intervals by resampling, means."""

from __future__ import annotations

import numpy as np
import pytest

from edgewright.evaluate.figures import RESAMPLES, Mean, Scale, Score, bootstrap, is_open


def test_a_gripper_has_hysteresis() -> None:
    values = np.array([0.0, 0.45, 0.55, 0.45, 0.61, 0.45, 0.41, 0.39, 0.55, 1.0])
    wanted = [False, False, False, False, True, True, True, False, False, True]
    assert is_open(values, 0.0, 1.0).tolist() == wanted
    assert is_open(values * 3 - 7, -7.0, -4.0).tolist() == wanted
    assert is_open(np.array([0.55, 0.45, 0.55]), 0.0, 1.0).tolist() == [True, True, True]
    assert is_open(np.array([0.45, 0.55]), 0.0, 1.0).tolist() == [False, False]


@pytest.mark.parametrize("seed", [0, 1])
def test_intervals_have_the_width_that_theory_gives(seed: int) -> None:
    values = np.random.default_rng(seed).normal(3.0, 2.0, 400)
    found = bootstrap(list(values), [0] * 400, seed)
    assert found is not None
    assert found.over == "frames"
    assert found.mean == pytest.approx(values.mean())
    error = values.std() / 20
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.25 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.25 * error)


def test_many_episodes_are_resampled_as_a_whole() -> None:
    """Frames of one episode are alike: an interval over frames would be far too narrow."""
    rng = np.random.default_rng(2)
    levels = rng.normal(size=12)
    lengths = rng.integers(5, 40, 12)
    values = np.concatenate([np.full(n, level) for n, level in zip(lengths, levels, strict=True)])
    episodes = np.repeat(np.arange(12), lengths)
    over_episodes = bootstrap(values, episodes, 0)
    over_frames = bootstrap(values, np.zeros(len(values), int), 0)
    assert over_episodes is not None
    assert over_frames is not None
    assert (over_episodes.over, over_frames.over) == ("episodes", "frames")
    assert over_episodes.mean == over_frames.mean == pytest.approx(values.mean())
    assert over_episodes.high - over_episodes.low > 2.5 * (over_frames.high - over_frames.low)
    plain = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(0, 12, 12)
        plain.append((lengths[chosen] * levels[chosen]).sum() / lengths[chosen].sum())
    low, high = np.quantile(plain, (0.025, 0.975))
    width = high - low
    assert over_episodes.low == pytest.approx(low, abs=0.1 * width)
    assert over_episodes.high == pytest.approx(high, abs=0.1 * width)


def test_intervals_of_little() -> None:
    assert bootstrap([], [], 0) is None
    one = bootstrap([1.5], [3], 0)
    assert one is not None
    assert (one.mean, one.low, one.high) == (1.5, 1.5, 1.5)
    assert bootstrap([1.0, 2.0, 4.0], [0, 0, 1], 5) == bootstrap([1.0, 2.0, 4.0], [0, 0, 1], 5)


def test_means_add_up() -> None:
    mean = Mean()
    assert mean.value is None
    mean.add([])
    assert mean.value is None
    mean.add([[1.0, 2.0], [6.0, -1.0]])
    mean.add(4.0)
    assert (mean.value, mean.largest, mean.count) == (pytest.approx(2.4), 6.0, 5)


def test_a_jump_needs_chunks_that_overlap() -> None:
    """Not across episodes, not back, not beyond the chunk, not over a chunk that isn't finite."""
    scale = Scale(np.array([0.0]), np.array([2.0]), ())
    recorded = np.zeros((3, 1))

    def jumps(*places: tuple[int, int, float]) -> Mean:
        score = Score(scale, 3, 3)
        for episode, step, value in places:
            score.add(episode, step, np.array([[value], [value + 1], [value + 2]]), recorded)
        return score.jump

    assert jumps((0, 0, 1.0), (0, 1, 5.0)).value == pytest.approx(abs(5 - 2) / 2)
    assert jumps((0, 0, 1.0), (0, 2, 5.0)).value == pytest.approx(abs(5 - 3) / 2)
    for places in (
        [(0, 0, 1.0), (0, 3, 5.0)],
        [(0, 0, 1.0), (1, 1, 5.0)],
        [(0, 1, 1.0), (0, 0, 5.0)],
        [(0, 0, 1.0), (0, 1, np.nan), (0, 2, 5.0)],
    ):
        assert jumps(*places).count == 0
