"""Searched ranges: never worse than whole ones, for every format and whatever shares a scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.formats import BlockFormat, IntFormat, MxFormat, Nvfp4Format, ScaledFormat
from edgewright.quant import algorithms
from edgewright.quant.algorithms import least_error_grid, on_grid, solve
from edgewright.quant.algorithms.clip import percentile_grid
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Algorithm

FORMATS: list[BlockFormat] = [
    IntFormat(4, 32, False),
    IntFormat(4, 128, True, scales="float16"),
    IntFormat(8, 64, True),
    *(ScaledFormat(element, scope) for element in ("int8", "e4m3") for scope in ("tensor", "channel")),
    ScaledFormat("e4m3", "block"),
    ScaledFormat("e4m3", "row-block"),
    Nvfp4Format(),
    MxFormat("e2m1"),
    MxFormat("e4m3"),
]
ALGORITHMS = [Algorithm("mse"), Algorithm("percentile", percentile=99.5), Algorithm("awq"), Algorithm("gptq")]


def matrix(seed: int, rows: int, width: int) -> np.ndarray:
    """Return normal weights with a few far out."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((rows, width)) * np.exp(rng.standard_normal((rows, 1)))
    weight[rng.random(weight.shape) < 0.01] *= 6
    return weight.astype(np.float32)


def moments_of(seed: int, width: int) -> Moments:
    rng = np.random.default_rng(seed)
    moments = Moments("m", width)
    x = rng.standard_normal((4 * width, width)) @ rng.standard_normal((width, width)) / 4
    moments.add((x * np.exp(rng.standard_normal(width))).astype(np.float32))
    return moments


def decoded(weight: np.ndarray, fmt: BlockFormat, algorithm: Algorithm, moments: Moments | None = None) -> np.ndarray:
    return fmt.decode(solve(weight, fmt, algorithm, moments, "m"), weight.shape[1])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
@pytest.mark.parametrize("shape", [(130, 150), (1, 33)])
def test_mse_is_never_worse_than_whole_ranges(fmt: BlockFormat, shape: tuple[int, int]) -> None:
    for seed in (0, 1):
        weight = matrix(seed, *shape)
        whole = fmt.decode(on_grid(weight, fmt, fmt.grid(weight, fmt.survey(float(np.abs(weight).max())))), shape[1])
        errors = [np.square(weight - values).sum() for values in (decoded(weight, fmt, Algorithm("mse")), whole)]
        assert errors[0] <= errors[1] * (1 + 1e-6)


@pytest.mark.parametrize("fmt", [ScaledFormat("int8", "tensor"), Nvfp4Format()])
def test_a_range_that_is_shared_is_searched_as_well(fmt: BlockFormat) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((256, 256)).astype(np.float32)
    weight[::37, 11] = 5  # worth cutting for int8; FP8's steps are relative, so that there's little to gain
    plain, searched = (decoded(weight, fmt, Algorithm(name)) for name in ("minmax", "mse"))
    assert np.square(weight - searched).sum() < np.square(weight - plain).sum()


def test_importance_decides_what_is_kept() -> None:
    weight = np.full((1, 32), 0.32, np.float32)
    weight[0, 0] = 4
    fmt = IntFormat(4, 32, False)
    little, much = np.ones(32), np.ones(32)
    little[0], much[0] = 1e-6, 1e6
    off = [
        np.abs(weight - fmt.decode(on_grid(weight, fmt, least_error_grid(weight, fmt, {}, importance=i)), 32))
        for i in (little, much)
    ]
    assert off[0][0, 0] > off[1][0, 0]
    assert off[0][0, 1:].max() <= off[1][0, 1:].max()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_percentiles_cut_the_largest_of_what_shares_a_scale(fmt: BlockFormat) -> None:
    weight = matrix(3, 70, 200)
    whole = fmt.grid(weight, fmt.survey(float(np.abs(weight).max()))).scale
    cut = percentile_grid(weight, fmt, 90.0, fmt.survey(float(np.abs(weight).max()))).scale
    assert np.all(np.abs(cut) <= np.abs(whole) * (1 + 1e-6))
    assert np.any(np.abs(cut) < np.abs(whole))
    full = percentile_grid(weight, fmt, 100.0, fmt.survey(float(np.abs(weight).max()))).scale
    np.testing.assert_array_equal(full, whole)


def test_a_short_last_block_is_no_more_than_its_own_weights() -> None:
    weight = np.ones((2, 40), np.float32)
    fmt = IntFormat(8, 32, False)
    grid = percentile_grid(weight, fmt, 50.0, {})  # the 24 zeros that fill the block up are no weights
    np.testing.assert_array_equal(grid.scale[:, 0], grid.scale[:, 1])


def test_a_few_numbers_among_zeros_are_kept() -> None:
    weight = np.zeros((3, 64), np.float32)
    weight[:, 5] = 2
    values = decoded(weight, IntFormat(4, 32, False), Algorithm("percentile", percentile=60.0))
    np.testing.assert_array_equal(values, weight)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_every_algorithm_takes_every_format(fmt: BlockFormat, algorithm: Algorithm) -> None:
    for shape in ((129, 150), (1, 20)):
        weight, moments = matrix(7, *shape), moments_of(7, shape[1])
        parts = solve(weight, fmt, algorithm, moments, "m")
        for kind, (_, expected) in fmt.specs(shape).items():
            count = 2 if kind == "codes" and expected[-1] != parts[kind].shape[-1] else 1
            assert (*parts[kind].shape[:-1], parts[kind].shape[-1] * count)[: len(expected)] == tuple(expected)
        values = fmt.decode(parts, shape[1])
        plain = decoded(weight, fmt, Algorithm("minmax"))
        assert values.shape == weight.shape
        assert np.isfinite(values).all()
        if algorithm.name in ("awq", "gptq"):  # AWQ's search looks at a block alone, so that all may lose a little
            most = 1.1 if algorithm.name == "awq" else 1.0001
            assert moments.output_error(weight - values) <= moments.output_error(weight - plain) * most


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
def test_zeros_and_tiny_numbers_are_rounded(fmt: BlockFormat, algorithm: Algorithm) -> None:
    moments = moments_of(1, 40)
    for weight in (np.zeros((3, 40), np.float32), np.full((3, 40), 1e-30, np.float32), np.eye(3, 40, dtype=np.float32)):
        values = decoded(weight, fmt, algorithm, moments)
        assert np.isfinite(values).all()
        assert np.abs(values - weight).max() <= max(np.abs(weight).max() * 0.6, 1e-7)


def test_scales_too_large_for_float16_are_refused() -> None:
    weight = np.full((2, 32), 1e7, np.float32)
    for algorithm in ALGORITHMS:
        with pytest.raises(FloatingPointError, match="float16"):
            solve(weight, IntFormat(4, 32, False, scales="float16"), algorithm, moments_of(0, 32), "m")


@given(st.integers(0, 1000), st.sampled_from(ALGORITHMS), st.sampled_from(FORMATS), st.integers(1, 3))
def test_portions_of_rows_give_the_same(seed: int, algorithm: Algorithm, fmt: BlockFormat, rows: int) -> None:
    weight, moments = matrix(seed, 3 + 128 * rows, 48), moments_of(seed, 48)
    whole = solve(weight, fmt, algorithm, moments, "m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgewright.quant.algorithms._PORTION", 48 * 128)
        parts = solve(weight, fmt, algorithm, moments, "m")
    for kind, part in whole.items():
        assert parts[kind].shape == part.shape
    values = [fmt.decode(p, 48) for p in (whole, parts)]
    # Sums of other shapes may round otherwise, which may decide a tie between two codes.
    assert np.mean(values[0] != values[1]) < 0.02


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_portions_change_nothing(fmt: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = matrix(3, 1000, 70)
    whole = solve(weight, fmt, Algorithm("mse"), None, "m")
    monkeypatch.setattr(algorithms, "_PORTION", 1 << 14)
    portions = solve(weight, fmt, Algorithm("mse"), None, "m")
    assert {kind: part.tobytes() for kind, part in whole.items()} == {k: v.tobytes() for k, v in portions.items()}
    assert np.array_equal(algorithms.decoded(whole, fmt, (1000, 70)), fmt.decode(whole, 70))
