"""Intervals of success rates: published values, symmetry, and how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgewright.evaluate.rates import paired, rate_of, wilson


def outcomes(both: int, only_first: int, only_second: int, neither: int) -> tuple[list[bool], list[bool]]:
    """Two policies' successes with these counts."""
    pairs = [(True, True)] * both + [(True, False)] * only_first + [(False, True)] * only_second
    pairs += [(False, False)] * neither
    return [one for one, _ in pairs], [two for _, two in pairs]


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
     (1, 29, 0.0061, 0.1718), (20, 20, 0.8389, 1.0)],
)  # fmt: skip
def test_wilson_has_the_published_values(successes: int, trials: int, low: float, high: float) -> None:
    """Those of 81, 15, 0 and 1 are of Newcombe (1998), table 1."""
    assert wilson(successes, trials) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_a_rate_of_nothing() -> None:
    assert rate_of([]) == {"episodes": 0, "successes": 0, "rate": None, "low": 0.0, "high": 1.0}
    assert paired([], [])["difference"] is None


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.83])
def test_wilson_holds_as_often_as_it_says(rate: float) -> None:
    trials = 40
    chance = 0.0
    for k in range(trials + 1):
        low, high = wilson(k, trials)
        chance += math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) * (low <= rate <= high)
    assert 0.925 < chance < 0.985


def test_a_difference_has_the_published_values() -> None:
    """The first example of Newcombe (1998) for paired data: 36, 12, 2 and 0 of 50."""
    found = paired(*outcomes(36, 2, 12, 0))
    assert found["difference"] == pytest.approx(0.2)
    assert (found["low"], found["high"]) == (pytest.approx(0.0569, abs=6e-5), pytest.approx(0.3404, abs=6e-5))
    assert found["p_value"] == pytest.approx(2 * (1 + 14 + 91) / 2**14)
    assert [found[key] for key in ("both", "only_first", "only_second", "neither")] == [36, 2, 12, 0]


def test_a_difference_turns_its_sign_with_the_order() -> None:
    first, second = outcomes(11, 7, 3, 9)
    there, back = paired(first, second), paired(second, first)
    assert there["difference"] == -back["difference"] == pytest.approx(-4 / 30)
    assert (there["low"], there["high"]) == (pytest.approx(-back["high"]), pytest.approx(-back["low"]))
    assert there["p_value"] == back["p_value"]


def test_policies_alike_in_every_episode_differ_by_nothing() -> None:
    found = paired(*outcomes(30, 0, 0, 20))
    assert found["difference"] == 0.0
    assert found["low"] < 0 < found["high"]
    assert found["p_value"] == 1.0
    apart = paired(*outcomes(15, 15, 15, 15))
    assert apart["high"] - apart["low"] > 3 * (found["high"] - found["low"])  # what pairing is for


@pytest.mark.parametrize("seed", [0, 1])
def test_the_difference_holds_as_often_as_it_says(seed: int) -> None:
    random, held, runs = np.random.default_rng(seed), 0, 400
    for _ in range(runs):
        scene = random.random(60)  # the same scene is hard for both
        first, second = ((scene + 0.15 * random.standard_normal(60) < bound) for bound in (0.7, 0.55))
        found = paired(first.tolist(), second.tolist())
        held += found["low"] <= -0.1475 <= found["high"]
    assert held / runs > 0.92
