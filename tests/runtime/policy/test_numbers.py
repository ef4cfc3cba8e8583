"""Normalizing, discretizing and relative actions, against the formulas and at their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import spec_of

from edgewright.errors import BundleError
from edgewright.runtime.policy.committed import model_actions
from edgewright.runtime.policy.numbers import (
    absolute,
    check_statistics,
    discretize,
    normalize,
    pad,
    robot_actions,
    unnormalize,
)
from edgewright.runtime.policy.spec import Convention, Norm, Statistics

F32 = np.float32


def drawn(size: int, seed: int = 3, constant: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    middle, spread = rng.normal(0, 2, size), rng.uniform(0.1, 3, size)
    spread[list(constant)] = 0
    vectors = {"mean": middle, "std": spread / 3, "q01": middle - spread, "q99": middle + spread * 1.2}
    return vectors | {"min": middle - 2 * spread, "max": middle + 1.7 * spread}


def written(values: np.ndarray, s: dict[str, np.ndarray], norm: Norm, convention: Convention) -> np.ndarray:
    """The formula of a project as its documentation has it, in its precision."""
    if convention == "openpi":
        if norm == "mean-std":
            return (values - s["mean"]) / (s["std"] + 1e-6)
        return (values - s["q01"]) / (s["q99"] - s["q01"] + 1e-6) * 2.0 - 1.0
    t = {name: vector.astype(F32) for name, vector in s.items()}
    if norm == "mean-std":
        return (values - t["mean"]) / (t["std"] + F32(1e-8))
    low, high = ("q01", "q99") if norm == "quantile" else ("min", "max")
    width = np.where(t[high] == t[low], F32(1e-8), t[high] - t[low])
    return 2 * (values - t[low]) / width - 1


WAYS: list[tuple[Norm, Convention]] = [
    ("quantile", "openpi"),
    ("mean-std", "openpi"),
    ("quantile", "lerobot"),
    ("mean-std", "lerobot"),
    ("min-max", "lerobot"),
]


@pytest.mark.parametrize(("norm", "convention"), WAYS)
@pytest.mark.parametrize("seed", [0, 1])
def test_normalize(norm: Norm, convention: Convention, seed: int) -> None:
    statistics = drawn(7, seed, constant=(2,))
    values = np.random.default_rng(seed + 10).normal(0, 2, (5, 7)).astype(F32)
    values[0, 2] = statistics["mean"][2]
    found = normalize(values, statistics, norm, convention)
    np.testing.assert_allclose(found, written(values, statistics, norm, convention), rtol=1e-7, atol=0)
    assert found.dtype == (np.float64 if convention == "openpi" else F32)


@pytest.mark.parametrize(("norm", "convention"), WAYS)
def test_there_and_back(norm: Norm, convention: Convention) -> None:
    statistics = drawn(6, 5)
    values = np.random.default_rng(8).normal(0, 2, (4, 6)).astype(F32)
    there = normalize(values, statistics, norm, convention)
    assert np.abs(there - values).max() > 0.5
    back = unnormalize(there, statistics, norm, convention)
    np.testing.assert_allclose(back, values, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("convention", ["openpi", "lerobot"])
def test_degenerate_dimensions(convention: Convention) -> None:
    """Where a dimension never moved, its own value is normalized to -1 (quantile) or 0, and comes back as it was."""
    statistics = {name: v.astype(F32).astype(np.float64) for name, v in drawn(3, 1, constant=(0, 1, 2)).items()}
    values = statistics["mean"].astype(F32)
    for norm, expected in (("quantile", -1.0), ("mean-std", 0.0)):
        there = normalize(values, statistics, norm, convention)  # type: ignore[arg-type]
        np.testing.assert_array_equal(there, np.full(3, expected))
        far = normalize(values + F32(0.5), statistics, norm, convention)  # type: ignore[arg-type]
        assert (far > (4e5 if convention == "openpi" else 4e7)).all()
        back = unnormalize(there, statistics, norm, convention)  # type: ignore[arg-type]
        np.testing.assert_allclose(back, values, rtol=1e-7)
    # An action of a dimension that never moved stays where it is, whatever the model says.
    moved = unnormalize(np.full(3, 5.0, F32), statistics, "quantile", convention)
    np.testing.assert_allclose(moved, values, atol=1e-5)


def test_lerobot_has_no_epsilon_on_the_way_back() -> None:
    statistics = drawn(4, 2)
    one = np.ones(4, F32)
    expected = statistics["std"].astype(F32) + statistics["mean"].astype(F32)
    np.testing.assert_array_equal(unnormalize(one, statistics, "mean-std", "lerobot"), expected)
    openpi = unnormalize(one, statistics, "mean-std", "openpi")
    np.testing.assert_allclose(openpi, statistics["std"] + 1e-6 + statistics["mean"], rtol=1e-14)


def test_float64_values_stay_float64() -> None:
    statistics = drawn(4, 2)
    values = np.linspace(-1, 1, 4)
    found = normalize(values, statistics, "mean-std", "lerobot")
    np.testing.assert_allclose(found, (values - statistics["mean"]) / (statistics["std"] + 1e-8), rtol=1e-14)
    assert found.dtype == np.float64


def test_identity_changes_nothing() -> None:
    values = np.array([1.5, -2.25], F32)
    for convention in ("openpi", "lerobot"):
        np.testing.assert_array_equal(normalize(values, {}, "identity", convention), values)  # type: ignore[arg-type]
        np.testing.assert_array_equal(unnormalize(values, {}, "identity", convention), values)  # type: ignore[arg-type]


def test_openpi_takes_statistics_of_another_length() -> None:
    """Longer: cut. Shorter: what is beyond passes through (quantile), or has mean 0 and deviation 1 (mean-std)."""
    statistics = drawn(5, 4)
    values = np.random.default_rng(1).normal(0, 1, (2, 8)).astype(F32)
    longer = normalize(values[:, :3], statistics, "quantile", "openpi")
    np.testing.assert_array_equal(longer, normalize(values[:, :5], statistics, "quantile", "openpi")[:, :3])
    quantile = unnormalize(values, statistics, "quantile", "openpi")
    np.testing.assert_array_equal(quantile[:, 5:], values[:, 5:])
    np.testing.assert_array_equal(quantile[:, :5], unnormalize(values[:, :5], statistics, "quantile", "openpi"))
    deviated = unnormalize(values, statistics, "mean-std", "openpi")
    np.testing.assert_array_equal(deviated[:, 5:], values[:, 5:].astype(np.float64) * (1 + 1e-6))


@pytest.mark.parametrize(
    ("statistics", "norm", "convention", "message"),
    [
        ({"mean": np.zeros(3)}, "mean-std", "openpi", "lack std, which mean-std normalization needs"),
        ({}, "quantile", "lerobot", "lack q01 and q99"),
        (drawn(2), "quantile", "openpi", "of 2 numbers, but 3 are to be normalized, so they are of another robot"),
        (drawn(4), "quantile", "lerobot", "of 4 numbers, but 3 are"),
        (drawn(3), "min-max", "openpi", "openpi has none"),
    ],
)
def test_statistics_that_do_not_fit(statistics: Any, norm: Norm, convention: Convention, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        normalize(np.zeros(3, F32), statistics, norm, convention)


def test_statistics_are_checked_before_the_first_observation() -> None:
    good = Statistics(drawn(8), drawn(7))
    check_statistics(spec_of("pi05"), good)
    check_statistics(spec_of("pi05_libero"), Statistics(drawn(32), drawn(32)))
    check_statistics(spec_of("pi05", state_dim=0), Statistics({}, drawn(7)))
    for spec, wrong in (
        (spec_of("pi05"), Statistics(drawn(7), drawn(7))),
        (spec_of("pi05"), Statistics(drawn(8), drawn(14))),
        (spec_of("pi05_libero"), Statistics(drawn(6), drawn(7))),
    ):
        with pytest.raises(BundleError, match="another robot"):
            check_statistics(spec, wrong)
    with pytest.raises(BundleError, match="statistics of actions lack q01 and q99"):
        check_statistics(spec_of("pi05_libero"), Statistics(drawn(8), {"mean": np.zeros(7), "std": np.ones(7)}))


def test_bins_at_every_edge() -> None:
    edges = np.arange(-128, 128) / 128
    np.testing.assert_array_equal(discretize(edges), np.arange(256))
    np.testing.assert_array_equal(discretize(np.nextafter(edges, -9)), np.arange(-1, 255))
    np.testing.assert_array_equal(discretize(edges.astype(F32)), np.arange(256))
    np.testing.assert_array_equal(discretize(np.nextafter(edges.astype(F32), F32(-9))), np.arange(-1, 255))
    outside = np.array([-1e9, -1.0000001, 1.0, 1e9, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(discretize(outside), [-1, -1, 255, 255, 255, -1, 255])
    np.testing.assert_array_equal(discretize(np.array([-1.0, -0.1, 0.0, 0.99]), 4), [0, 1, 2, 3])


def test_absolute_adds_the_state_where_the_mask_says() -> None:
    rng = np.random.default_rng(2)
    actions, state = rng.normal(size=(5, 7)).astype(F32), rng.normal(size=8).astype(F32)
    before = actions.copy()
    found = absolute(actions, state, (True, False, True))
    expected = before + np.array([state[0], 0, state[2], 0, 0, 0, 0], F32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(actions, before)
    np.testing.assert_array_equal(absolute(actions, state, ()), before)
    np.testing.assert_allclose(absolute(found, -state, (True, False, True)), before, atol=1e-6)
    batch = absolute(np.stack([actions, actions]), np.stack([state, -state]), (True, True))
    np.testing.assert_array_equal(batch[1], absolute(actions, -state, (True, True)))


def test_pad() -> None:
    np.testing.assert_array_equal(pad(np.array([[1.5, 2.0]]), 4), np.array([[1.5, 2, 0, 0]], F32))
    assert pad(np.ones(3), 3).dtype == F32


@pytest.mark.parametrize("name", ["pi05", "pi05_libero", "pi0", "smolvla"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_actions_come_back_to_the_model(name: str, seed: int) -> None:
    """What real-time chunking hands back to the model is what the model gave, relative to a later state."""
    spec = spec_of(name, delta_mask=(True,) * 5 + (False,))
    statistics = Statistics(drawn(spec.state_dim, seed), drawn(spec.action_dim, seed + 1))
    rng = np.random.default_rng(seed)
    state = rng.normal(size=spec.state_dim).astype(F32)
    inside = rng.normal(size=(spec.horizon, 32)).astype(F32)
    inside[:, spec.action_dim :] = 0
    actions = robot_actions(spec, statistics, inside, state)
    assert actions.shape == (spec.horizon, spec.action_dim)
    np.testing.assert_allclose(model_actions(spec, statistics, actions, state), inside, atol=2e-4)
    later = model_actions(spec, statistics, actions, state + F32(0.5))
    np.testing.assert_allclose(robot_actions(spec, statistics, later, state + F32(0.5)), actions, atol=2e-5)
