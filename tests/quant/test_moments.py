"""Statistics of inputs: the same whatever the portions, right after scaling, and refused when they aren't finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.errors import CalibrationDataError
from edgewright.quant.moments import BINS, Moments


def inputs(seed: int, tokens: int = 301, width: int = 7) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((tokens, width)) * np.exp(rng.standard_normal(width)) + 0.3).astype(np.float32)


def seen(x: np.ndarray, *cuts: int, columns: bool = False) -> Moments:
    moments = Moments("m", x.shape[1], keep_columns=columns)
    for part in np.split(x, cuts):
        moments.add(part)
    return moments


@pytest.mark.parametrize("seed", [0, 1])
def test_sums_and_extremes_are_those_of_all_tokens(seed: int) -> None:
    x = inputs(seed)
    moments = seen(x, 40, 41, 250)
    assert moments.tokens == len(x)
    np.testing.assert_allclose(moments.mean, x.mean(axis=0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(moments.mean_magnitude, np.abs(x).mean(axis=0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(moments.largest, np.abs(x).max(axis=0))
    assert (moments.low, moments.high) == (x.min(), x.max())
    assert moments.second is not None
    np.testing.assert_allclose(moments.second, x.astype(np.float64).T @ x, rtol=1e-4, atol=1e-2)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60), st.integers(0, 60))
def test_the_histogram_counts_every_number_in_its_bin(values: list[float], cut: int) -> None:
    x = np.array(values, np.float32)[:, None]
    moments = seen(x, min(cut, len(x)))
    assert moments.histogram.sum() == len(x)
    assert moments.limit >= np.abs(x).max()
    width = moments.limit / BINS
    count = np.count_nonzero(moments.histogram[: BINS // 2])
    assert count <= len(x)
    half = moments.histogram[: BINS // 2].sum()
    near = np.count_nonzero(np.abs(np.abs(x) - moments.limit / 2) <= 1e-5 * moments.limit + width * 1e-3)
    assert abs(int(half) - np.count_nonzero(np.abs(x) < moments.limit / 2)) <= near


def test_one_sided_inputs_keep_their_side() -> None:
    moments = seen(np.abs(inputs(0)) + 1, 3)
    assert moments.low >= 1


def test_no_tokens_change_nothing() -> None:
    moments = Moments("m", 3)
    moments.add(np.zeros((0, 3), np.float32))
    assert moments.tokens == 0
    np.testing.assert_array_equal(moments.mean, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_names_the_module(bad: float) -> None:
    x = inputs(0)
    x[17, 2] = bad
    with pytest.raises(CalibrationDataError, match=r"input of layers\.3\.mlp is not finite"):
        Moments("layers.3.mlp", x.shape[1]).add(x)


def test_dead_columns_are_known() -> None:
    x = inputs(0)
    x[:, [1, 4]] = 0
    np.testing.assert_array_equal(np.flatnonzero(seen(x, 100).dead), [1, 4])


@pytest.mark.parametrize("seed", [0, 1])
def test_scaled_statistics_are_those_of_scaled_inputs(seed: int) -> None:
    x = inputs(seed, tokens=5000)
    x[:, 3] = 0
    factors = np.exp(np.random.default_rng(seed).standard_normal(7)).astype(np.float32)
    scaled, direct = seen(x, 999, columns=True).scaled(factors), seen(x * factors)
    np.testing.assert_allclose(scaled.mean, direct.mean, rtol=1e-5)
    np.testing.assert_allclose(scaled.largest, direct.largest, rtol=1e-6)
    np.testing.assert_allclose([scaled.low, scaled.high], [direct.low, direct.high], rtol=1e-6)
    assert scaled.second is not None
    assert direct.second is not None
    np.testing.assert_allclose(scaled.second, direct.second, rtol=1e-4, atol=1e-1)
    assert scaled.histogram.sum() == x.size
    for percent in (50, 90, 99, 99.9):
        edge = [np.searchsorted(np.cumsum(m.histogram) / x.size, percent / 100) * m.limit for m in (scaled, direct)]
        assert edge[0] == pytest.approx(edge[1], rel=0.04)  # a column's bin is a sixteenth of an octave


def test_without_columns_scaling_knows_no_histogram() -> None:
    assert not seen(inputs(0)).scaled(np.ones(7, np.float32)).histogram.any()


def test_output_error_is_the_energy_over_all_tokens() -> None:
    x, rng = inputs(0), np.random.default_rng(5)
    weight, error = rng.standard_normal((2, 11, 7)).astype(np.float32)
    moments = seen(x, 7)
    expected = np.square(x.astype(np.float64) @ error.T).sum()
    assert moments.output_error(error) == pytest.approx(expected, rel=1e-4)
    relative = expected / np.square(x.astype(np.float64) @ weight.T).sum()
    assert moments.output_error(error, weight) == pytest.approx(relative, rel=1e-4)
    assert moments.output_error(error, np.zeros_like(weight)) == 0
