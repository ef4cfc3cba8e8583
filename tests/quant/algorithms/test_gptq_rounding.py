"""GPTQ: a written-out column by column version, inputs that were never seen, orders, and what can't be inverted."""

from __future__ import annotations

import numpy as np
import pytest

from edgewright.errors import CalibrationDataError
from edgewright.formats import BlockFormat, IntFormat, Nvfp4Format, ScaledFormat
from edgewright.quant.algorithms import damped, least_error_grid, prepare, solve
from edgewright.quant.algorithms.descent import Rounded, improve, refit_scales
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Algorithm


def case(seed: int, rows: int, width: int, tokens: int = 400) -> tuple[np.ndarray, Moments]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, width)) @ (np.eye(width) + 0.3 * rng.standard_normal((width, width)))
    moments = Moments("layers.1.o_proj", width)
    moments.add((x * np.exp(rng.standard_normal(width))).astype(np.float32))
    return (rng.standard_normal((rows, width)) * 0.1).astype(np.float32), moments


def written_out(weight: np.ndarray, fmt: BlockFormat, second: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Round column by column, each error spread by solving for the best answer of all columns to come."""
    width = weight.shape[1]
    hessian = damped(second.astype(np.float64), 0.02)
    ordered = hessian[np.ix_(order, order)]
    importance = np.empty(width)
    importance[order] = 1 / np.array([np.linalg.inv(ordered[j:, j:])[0, 0] for j in range(width)])
    grid = least_error_grid(weight, fmt, fmt.survey(float(np.abs(weight).max())), importance=importance)
    left, result = weight.astype(np.float64).copy(), np.empty_like(weight)
    for j, column in enumerate(order):
        scale, zero = grid.along(column, column + 1, fmt.span(width))
        code = fmt.snap(left[:, [column]].astype(np.float32), scale, zero)
        result[:, column] = ((code - zero) * scale)[:, 0]
        rest = order[j + 1 :]
        if len(rest):
            answer = np.linalg.solve(hessian[np.ix_(rest, rest)], hessian[rest, column])
            left[:, rest] += (left[:, column] - result[:, column])[:, None] * answer[None, :]
    return result


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("fmt", [IntFormat(4, 32, True), ScaledFormat("e4m3", "channel"), Nvfp4Format()])
def test_it_is_the_best_answer_to_every_error(fmt: BlockFormat, order: bool) -> None:
    weight, moments = case(0, 6, 150)
    assert moments.second is not None
    columns = np.argsort(-np.diag(moments.second), kind="stable") if order else np.arange(150)
    expected = written_out(weight, fmt, moments.second, columns)
    algorithm = Algorithm("gptq", refit=False, activation_order=order, damping=0.02)
    found = fmt.decode(solve(weight, fmt, algorithm, moments, "m"), 150)
    # A tie that float32 decides otherwise changes the rest of its row.
    assert np.mean(found != expected) < 0.02
    assert moments.output_error(weight - found) == pytest.approx(moments.output_error(weight - expected), rel=0.02)


@pytest.mark.parametrize("fmt", [IntFormat(4, 32, False), IntFormat(4, 64, True, scales="float16"), Nvfp4Format()])
@pytest.mark.parametrize("seed", [0, 1])
def test_improving_lowers_the_output_error(fmt: BlockFormat, seed: int) -> None:
    weight, moments = case(seed, 9, 140)
    plain, better = (
        moments.output_error(weight - fmt.decode(solve(weight, fmt, Algorithm("gptq", refit=r), moments, "m"), 140))
        for r in (False, True)
    )
    assert better < plain


def test_refitted_scales_are_the_best_for_their_codes() -> None:
    weight, moments = case(3, 4, 32)
    assert moments.second is not None
    fmt = IntFormat(4, 32, False)
    grid = fmt.grid(weight, {})
    assert grid.zero is not None
    codes = fmt.snap(weight, *grid.along(0, 32, 32))
    rounded = Rounded(np.ascontiguousarray(codes.T), grid.scale, grid.zero)
    fitted = refit_scales(weight, fmt, rounded, moments.second)
    for row in range(4):
        direction = codes[row] - 8
        best = direction @ moments.second @ weight[row] / (direction @ moments.second @ direction)
        assert fitted.scale[row, 0] == pytest.approx(best, rel=1e-4)


def test_a_scale_is_never_lost_or_turned() -> None:
    weight, moments = case(4, 64, 64)
    assert moments.second is not None
    fmt = IntFormat(4, 32, False)
    codes = np.random.default_rng(0).integers(0, 16, (64, 64)).astype(np.float32)  # unrelated to the weight
    rounded = Rounded(codes, np.full((64, 2), 0.01, np.float32), np.full((64, 2), 8, np.float32))
    assert (improve(weight, fmt, rounded, moments.second).scale > 0).all()


@pytest.mark.parametrize("order", [False, True])
def test_dead_inputs_are_rounded_by_themselves(order: bool) -> None:
    weight, moments = case(1, 8, 96)
    assert moments.second is not None
    dead = np.array([0, 5, 40, 95])
    moments.second[dead, :] = moments.second[:, dead] = 0
    fmt = ScaledFormat("int8", "channel")
    algorithm = Algorithm("gptq", activation_order=order)
    values = fmt.decode(solve(weight, fmt, algorithm, moments, "m"), 96)
    scale = solve(weight, fmt, algorithm, moments, "m")["scales"]
    nearest = np.clip(np.rint(weight / scale), -127, 127) * scale
    np.testing.assert_array_equal(values[:, dead], nearest[:, dead])
    # What they hold changes nothing elsewhere but the range.
    other = weight.copy()
    other[:, dead] *= 0.5
    again = solve(other, fmt, algorithm, moments, "m")
    same = np.flatnonzero((again["scales"] == scale).all(axis=1))
    live = np.setdiff1d(np.arange(96), dead)
    np.testing.assert_array_equal(fmt.decode(again, 96)[same][:, live], values[same][:, live])


def test_inputs_that_were_all_dead_leave_plain_rounding() -> None:
    weight, _ = case(2, 3, 64)
    moments = Moments("m", 64)
    moments.add(np.zeros((10, 64), np.float32))
    for fmt in (IntFormat(4, 32, False), ScaledFormat("e4m3", "tensor")):
        values = fmt.decode(solve(weight, fmt, Algorithm("gptq"), moments, "m"), 64)
        assert np.abs(values - weight).max() < 0.1


@pytest.mark.parametrize("width", [1, 3, 32, 33, 128, 129, 300])
def test_any_width_one_row_and_one_token(width: int) -> None:
    weight, moments = case(0, 1, width, tokens=1)
    for fmt in (IntFormat(4, 128, True), Nvfp4Format()):
        values = fmt.decode(solve(weight, fmt, Algorithm("gptq"), moments, "m"), width)
        assert values.shape == weight.shape
        assert np.isfinite(values).all()
        plain = fmt.decode(fmt.encode(weight, fmt.survey(float(np.abs(weight).max()))), width)
        assert moments.output_error(weight - values) <= moments.output_error(weight - plain) + 1e-9


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_statistics_that_overflowed_name_the_module(bad: float) -> None:
    weight, moments = case(0, 2, 40)
    assert moments.second is not None
    moments.second[3, 3] = bad
    with pytest.raises(CalibrationDataError, match=r"layers\.1\.o_proj"):
        solve(weight, IntFormat(4, 32, False), Algorithm("gptq"), moments, "layers.1.o_proj")


def test_what_is_not_positive_definite_names_the_module() -> None:
    second = -np.eye(5, dtype=np.float32)
    with pytest.raises(CalibrationDataError, match=r"raise damping"):
        prepare(second, damping=0.01, activation_order=False, name="m")


def test_a_weight_that_is_not_finite_is_refused() -> None:
    weight, moments = case(0, 2, 40)
    weight[1, 7] = np.nan
    with pytest.raises(FloatingPointError, match="not finite"):
        solve(weight, Nvfp4Format(), Algorithm("gptq"), moments, "m")
