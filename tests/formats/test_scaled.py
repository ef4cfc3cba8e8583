"""Int8 and FP8 with float32 scales: against ModelOpt's codes and scales, and by their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.formats import SCOPES, ScaledFormat, format_from_json
from format_goldens import E4M3, arrays, having, matrices
from qdq_cases import encoded, label

FORMATS = [ScaledFormat(element, scope) for element in ("int8", "e4m3") for scope in SCOPES]
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=label)
KINDS = {"tensor": "tensor", "channel": "channel", "block": "blocks", "row-block": "row_blocks"}
MODELOPT = [(scope, name) for scope, kind in KINDS.items() for name in having("fp8", f"modelopt_{kind}")]


@pytest.mark.parametrize(("scope", "name"), MODELOPT)
def test_fp8_is_modelopts(scope: str, name: str) -> None:
    """Scales and codes bit for bit; a row or block of zeros has scale 0 there and NaN for codes, here 1 and 0."""
    fmt, golden, values = ScaledFormat("e4m3", scope), arrays("fp8"), matrices()[name]
    key = f"{name}.modelopt_{KINDS[scope]}"
    parts = encoded(fmt, values)
    scales, codes = golden[f"{key}.scale"].reshape(parts["scales"].shape), golden[f"{key}.codes"]
    zero = scales == 0
    np.testing.assert_array_equal(parts["scales"][~zero], scales[~zero])
    assert (parts["scales"][zero] == 1).all()
    nan = codes & 127 == 127
    np.testing.assert_array_equal(parts["codes"].view(np.uint8)[~nan], codes[~nan])
    assert not parts["codes"].view(np.uint8)[nan].any()
    decoded = fmt.decode({"codes": codes.view(E4M3), "scales": scales}, values.shape[1])
    wanted = golden[f"{key}.values"]
    np.testing.assert_array_equal(decoded[-len(wanted) :], wanted)


@pytest.mark.parametrize("scope", ["tensor", "channel"])
@pytest.mark.parametrize("name", having("integers", "modelopt_int8_channel"))
def test_int8_is_modelopts(scope: str, name: str) -> None:
    golden, values = arrays("integers"), matrices()[name]
    parts = encoded(ScaledFormat("int8", scope), values)
    scales = golden[f"{name}.modelopt_int8_{scope}.scale"].reshape(parts["scales"].shape)
    np.testing.assert_array_equal(parts["scales"][scales > 0], scales[scales > 0])
    np.testing.assert_array_equal(parts["codes"], golden[f"{name}.modelopt_int8_{scope}.codes"])


@settings(max_examples=60)
@given(
    fmt=st.sampled_from(FORMATS),
    rows=st.sampled_from([1, 3, 130]),
    width=st.sampled_from([1, 31, 128, 129, 257]),
    seed=st.integers(0, 99),
    exponent=st.integers(-30, 30),
)
def test_values_come_back_within_half_a_step(
    fmt: ScaledFormat, rows: int, width: int, seed: int, exponent: int
) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_t(2, (rows, width)) * 10.0**exponent).astype(np.float32)
    parts = encoded(fmt, values)
    specs = fmt.specs((rows, width))
    assert {name: (a.dtype.name, a.shape) for name, a in parts.items()} == specs
    back = fmt.decode(parts, width)
    scale = np.repeat(fmt._by_row(parts["scales"], rows), fmt.span(width), axis=1)[:, :width]
    # Int8 rounds to half a step; E4M3 to 2^-4 of the number, or half of its smallest one.
    step = 0.5 * scale if fmt.element == "int8" else np.maximum(np.abs(values) * 2.0**-4, scale * 2.0**-10)
    assert (np.abs(back.astype(np.float64) - values) <= step * (1 + 1e-5)).all()
    assert format_from_json(fmt.to_json()) == fmt


@each_format
def test_runs_of_rows_are_the_whole(fmt: ScaledFormat) -> None:
    """Encoding from a multiple of `row_step` on gives the same rows."""
    values = np.random.default_rng(1).standard_normal((300, 140)).astype(np.float32)
    whole = encoded(fmt, values)
    shared = fmt.survey(float(np.abs(values).max()))
    for start, stop in ((0, 128), (128, 256), (256, 300)):
        part = fmt.encode(values[start:stop], shared)
        np.testing.assert_array_equal(part["codes"].view(np.uint8), whole["codes"][start:stop].view(np.uint8))


@each_format
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-40, 1e30, 3e38])
def test_extremes_stay_finite(fmt: ScaledFormat, magnitude: float) -> None:
    values = (np.random.default_rng(2).uniform(-1, 1, (3, 200)) * magnitude).astype(np.float32)
    back = fmt.decode(encoded(fmt, values), 200)
    assert np.isfinite(back).all()
    assert np.abs(back).max(initial=0.0) <= np.abs(values).max() * (1 + 1e-6) + 1e-42


@each_format
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(fmt: ScaledFormat, bad: float) -> None:
    values = np.ones((3, 40), np.float32)
    values[2, 39] = bad
    with pytest.raises(FloatingPointError):
        fmt.encode(values, {"scales": np.ones(1, np.float32)} if fmt.shared else {})
