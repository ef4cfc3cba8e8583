"""Factors of SmoothQuant and AWQ: their formulas, dead columns, ties between heads, and what the search must find."""

from __future__ import annotations

import numpy as np
import pytest

from edgewright.formats import IntFormat
from edgewright.quant.algorithms import awq_factors, damped, for_outputs, smoothing_factors, tied_by_head
from edgewright.quant.moments import Moments

FMT = IntFormat(4, 32, False)


def case(seed: int, width: int = 96) -> tuple[list[np.ndarray], Moments]:
    rng = np.random.default_rng(seed)
    moments = Moments("m", width)
    moments.add((rng.standard_normal((500, width)) * np.exp(1.5 * rng.standard_normal(width))).astype(np.float32))
    return [rng.standard_normal((rows, width)).astype(np.float32) for rows in (40, 24)], moments


def rounder(weight: np.ndarray, second: np.ndarray) -> np.ndarray:
    return FMT.decode(for_outputs(weight, FMT, damped(second, 0.02), {}), weight.shape[1])


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8])
def test_smoothing_follows_its_formula(alpha: float) -> None:
    weights, moments = case(0)
    factors = smoothing_factors(weights, moments, alpha)
    largest = np.maximum(np.abs(weights[0]).max(axis=0), np.abs(weights[1]).max(axis=0))
    expected = moments.largest**alpha / largest ** (1 - alpha)
    np.testing.assert_allclose(factors / factors[0], expected / expected[0], rtol=1e-5)
    assert factors.max() * factors.min() == pytest.approx(1, rel=1e-5)


def test_dead_columns_keep_one() -> None:
    weights, moments = case(1)
    dead = [0, 50]
    moments.lows[dead] = moments.highs[dead] = moments.magnitude[dead] = 0
    assert moments.second is not None
    moments.second[dead, :] = moments.second[:, dead] = 0
    for factors in (
        smoothing_factors(weights, moments, 0.5),
        awq_factors(weights, moments, [rounder] * 2, [32, 32])[0],
    ):
        np.testing.assert_array_equal(factors[dead], 1)
        assert np.isfinite(factors).all()


def test_all_columns_dead_leave_everything() -> None:
    weights, _ = case(0)
    moments = Moments("m", 96)
    moments.add(np.zeros((4, 96), np.float32))
    np.testing.assert_array_equal(awq_factors(weights, moments, [rounder] * 2, [32, 32])[0], 1)
    np.testing.assert_array_equal(smoothing_factors(weights, moments, 0.5), 1)


def test_a_column_of_zero_weights_is_borne() -> None:
    weights, moments = case(2)
    for weight in weights:
        weight[:, 7] = 0
    for factors in (
        smoothing_factors(weights, moments, 0.0),
        awq_factors(weights, moments, [rounder] * 2, [32, 32])[0],
    ):
        assert np.isfinite(factors).all()
        assert (factors > 0).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_awq_beats_leaving_everything(seed: int) -> None:
    weights, moments = case(seed)
    assert moments.second is not None
    factors, exponent = awq_factors(weights, moments, [rounder] * 2, [32, 32])
    scaled = moments.second / factors[:, None] / factors[None, :]
    before = sum(moments.output_error(rounder(w, moments.second) - w) for w in weights)
    after = sum(moments.output_error(rounder(w * factors, scaled) / factors - w) for w in weights)
    assert after < before
    assert 0 <= exponent <= 1


def test_the_search_looks_at_every_weight_that_reads_the_input() -> None:
    weights, moments = case(0)
    alone, exponent = awq_factors(weights[:1], moments, [rounder], [32])
    both, same = awq_factors([weights[0], weights[0].copy()], moments, [rounder] * 2, [32, 32])
    np.testing.assert_allclose(both, alone, rtol=1e-6)
    assert same == exponent
    # One that always comes out as it was has no say.
    mixed, _ = awq_factors([weights[0], weights[0]], moments, [rounder, lambda weight, _: weight], [32, 32])
    np.testing.assert_allclose(mixed, alone, rtol=1e-6)


def test_ties_hold_for_the_query_heads_of_a_value_head() -> None:
    weights, moments = case(0)
    factors, _ = awq_factors(weights, moments, [rounder] * 2, [32, 32], lambda f: tied_by_head(f, 6, 2))
    by_head = factors.reshape(2, 3, 16)
    np.testing.assert_array_equal(by_head, np.repeat(by_head[:, :1], 3, axis=1))
    free = np.exp(np.random.default_rng(0).standard_normal(96)).astype(np.float32)
    expected = np.exp(np.log(free).reshape(2, 3, 16).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(tied_by_head(free, 6, 2).reshape(2, 3, 16)[:, :1], expected, rtol=1e-5)
