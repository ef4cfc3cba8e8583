"""Static ranges of activations: largest, percentile, least error; with and without zero points; after scaling."""

from __future__ import annotations

import numpy as np
import pytest

from edgewright.errors import CalibrationDataError
from edgewright.formats import ActivationFormat
from edgewright.quant.algorithms import static_scale
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Range

INT8 = ActivationFormat("int8", True)
ASYMMETRIC = ActivationFormat("int8", True, symmetric=False)
FP8 = ActivationFormat("fp8", True)
NVFP4 = ActivationFormat("nvfp4", True, "block")


def seen(x: np.ndarray, *, columns: bool = False) -> Moments:
    moments = Moments("layers.0.mlp.up_proj", x.shape[1], keep_columns=columns)
    for part in np.array_split(x.astype(np.float32), 3):
        moments.add(part)
    return moments


def normal(seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((3000, 8))
    x[::500, 3] = 40.0
    return x


@pytest.mark.parametrize(("fmt", "top"), [(INT8, 127), (FP8, 448), (NVFP4, 448 * 6)])
def test_minmax_puts_the_largest_on_the_largest_code(fmt: ActivationFormat, top: float) -> None:
    scale, zero = static_scale(seen(normal()), fmt, Range())
    assert scale.dtype == np.float32
    assert scale[0] == pytest.approx(40 / top, rel=1e-6)
    assert zero is None


def test_asymmetric_covers_both_ends_and_holds_zero_exactly() -> None:
    for low, high in ((-1.0, 3.0), (0.5, 3.0), (-4.0, -1.0)):
        x = np.linspace(low, high, 300)[:, None]
        scale, zero = static_scale(seen(x), ASYMMETRIC, Range())
        assert zero is not None
        codes = np.clip(np.rint(x / scale) + zero, -128, 127)
        assert zero.dtype == np.int8
        assert np.abs((codes - zero) * scale - x).max() <= scale[0] * 0.51
        assert scale[0] == pytest.approx((max(high, 0) - min(low, 0)) / 255, rel=1e-5)


@pytest.mark.parametrize("percent", [90.0, 99.0, 99.9])
def test_a_percentile_is_that_of_all_magnitudes(percent: float) -> None:
    x = normal()
    scale, _ = static_scale(seen(x), INT8, Range("percentile", percent))
    moments = seen(x)
    expected = np.percentile(np.abs(x), percent)
    assert scale[0] * 127 == pytest.approx(expected, abs=2 * moments.limit / 2048)


def test_the_hundredth_percentile_is_the_largest() -> None:
    scale, _ = static_scale(seen(normal()), INT8, Range("percentile", 100.0))
    assert scale[0] * 127 == pytest.approx(40)


@pytest.mark.parametrize("fmt", [INT8, ASYMMETRIC])
def test_least_error_cuts_what_is_rare(fmt: ActivationFormat) -> None:
    x = normal(1)
    x[::500, 3] = 8.0

    def error(wish: Range) -> float:
        scale, zero = static_scale(seen(x), fmt, wish)
        offset, low = (0, -127) if zero is None else (int(zero[0]), -128)
        codes = np.clip(np.rint(x / scale[0]) + offset, low, 127)
        return float(np.square((codes - offset) * scale[0] - x).sum())

    assert error(Range("mse")) < error(Range())


def test_fp8_and_nvfp4_never_exceed_the_largest() -> None:
    moments = seen(normal())
    for fmt, top in ((FP8, 448), (NVFP4, 448 * 6)):
        scale, _ = static_scale(moments, fmt, Range("mse"))
        assert 0 < scale[0] * top <= 40 * (1 + 1e-6)
    assert static_scale(moments, NVFP4, Range("mse"))[0] == static_scale(moments, NVFP4, Range())[0]


@pytest.mark.parametrize("wish", [Range(), Range("percentile", 99.0), Range("mse")])
@pytest.mark.parametrize("fmt", [INT8, ASYMMETRIC, FP8])
def test_ranges_after_scaling_are_those_of_scaled_inputs(fmt: ActivationFormat, wish: Range) -> None:
    x = np.abs(normal(2)) - 0.5
    factors = np.exp(np.random.default_rng(1).standard_normal(8)).astype(np.float32)
    scaled, direct = (
        static_scale(m, fmt, wish)[0][0] for m in (seen(x, columns=True).scaled(factors), seen(x * factors))
    )
    assert scaled == pytest.approx(direct, rel=1e-5 if wish.name == "minmax" else 0.06)


def test_inputs_that_were_always_zero_name_the_module() -> None:
    with pytest.raises(CalibrationDataError, match=r"layers\.0\.mlp\.up_proj was zero in all 30 tokens"):
        static_scale(seen(np.zeros((30, 4))), INT8, Range())


def test_the_smallest_numbers_have_a_scale() -> None:
    for fmt in (INT8, ASYMMETRIC, FP8, NVFP4):
        scale, _ = static_scale(seen(np.full((3, 2), 1e-44)), fmt, Range())
        assert scale[0] > 0
