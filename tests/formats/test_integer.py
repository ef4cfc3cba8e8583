"""Integer formats: packing, rounding within steps, exactness where the grid allows it, zeros, constants, extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import format_goldens
from conftest import ArrayTensor
from edgewright.errors import CheckpointError
from edgewright.formats import FloatFormat, IntFormat, dequantize, pack, quantize, to_blocks, unpack
from edgewright.graph.weights import StoredWeight
from edgewright.quant.producers import RoundingProducer

FORMATS = [IntFormat(bits, group, zero) for bits in (4, 8) for group in (32, 64, 128) for zero in (False, True)]
formats = st.sampled_from(FORMATS)
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label.replace(" ", "-"))


def through(values: np.ndarray, fmt: IntFormat) -> tuple[np.ndarray, np.ndarray]:
    """Quantize, pack, unpack, dequantize; returns the values and the scales."""
    codes, scales, zeros = quantize(values, fmt)
    packed = None if zeros is None else pack(zeros, fmt.bits)
    return dequantize(pack(codes, fmt.bits), scales, packed, fmt, values.shape[1]), scales


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    """Matrices whose blocks differ wildly in size and shape of distribution."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, width = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 31, 32, 33, 64, 95, 128, 200]))
    values = {
        "normal": lambda: rng.standard_normal((rows, width)),
        "heavy tails": lambda: rng.standard_t(1.5, (rows, width)),
        "positive": lambda: rng.uniform(0.5, 1.0, (rows, width)),
        "sparse": lambda: rng.standard_normal((rows, width)) * (rng.random((rows, width)) < 0.1),
    }[draw(st.sampled_from(["normal", "heavy tails", "positive", "sparse"]))]()
    exponents = rng.integers(-20, 20, (rows, 1)) if draw(st.booleans()) else np.zeros((rows, 1))
    return (values * 10.0**exponents).astype(np.float32)


@given(values=matrices(), fmt=formats)
@settings(max_examples=80)
def test_values_come_back_within_steps_and_the_scale_is_the_best(values: np.ndarray, fmt: IntFormat) -> None:
    back, scales = through(values, fmt)
    assert back.shape == values.shape
    assert back.dtype == scales.dtype == np.float32
    error = np.abs(to_blocks((back - values).astype(np.float64), fmt.group))
    steps = np.abs(scales).astype(np.float64)
    # Half a step for rounding, one where the largest magnitude has no code on its side, the refit of the scale on top.
    assert (error <= 2.0 * steps[..., None] + 1e-30).all()
    assert (np.sqrt((error**2).mean(axis=2)) <= 0.6 * steps + 1e-30).all()
    # For its codes the scale is the least-squares one: nudging it either way is no better.
    codes, _, zeros = quantize(values, fmt)
    blocks = to_blocks(values.astype(np.float64), fmt.group)
    centred = codes.astype(np.float64) - (fmt.levels // 2 if zeros is None else zeros[..., None].astype(np.float64))
    best = ((blocks - centred * scales[..., None]) ** 2).sum(axis=2)
    for factor in (0.999, 1.001):
        nudged = ((blocks - centred * scales[..., None] * factor) ** 2).sum(axis=2)
        assert (best <= nudged * (1 + 1e-5) + 1e-60).all()


@given(seed=st.integers(0, 2**32 - 1), fmt=formats, exponent=st.integers(-60, 60))
def test_values_on_the_grid_come_back_exactly(seed: int, fmt: IntFormat, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, fmt.levels, (3, 2 * fmt.group)).astype(np.float64)
    # Every block must span the grid, or another step would fit it better.
    codes[:, :: fmt.group] = 0
    codes[:, 1 :: fmt.group] = fmt.levels - 1
    zeros = np.full((3, 2), fmt.levels // 2) if not fmt.zero_point else rng.integers(0, fmt.levels, (3, 2))
    signs = 1 if fmt.zero_point else rng.choice([-1.0, 1.0], (3, 2)).repeat(fmt.group, axis=1)
    values = (codes - zeros.repeat(fmt.group, axis=1)) * signs * 2.0**exponent
    back, _ = through(values.astype(np.float32), fmt)
    np.testing.assert_array_equal(back, values.astype(np.float32))


@each_format
def test_zero_blocks_stay_zero(fmt: IntFormat) -> None:
    values = np.zeros((2, 3 * fmt.group), np.float32)
    values[0, : fmt.group] = np.linspace(-1, 1, fmt.group)
    back, scales = through(values, fmt)
    assert np.isfinite(scales).all()
    assert not back[:, fmt.group :].any()
    assert not back[1].any()
    # The default zero point is in the code, so that padding and zeros cost nothing.
    codes, _, zeros = quantize(values, fmt)
    centre = 0 if fmt.zero_point else fmt.levels // 2
    assert (codes[1] == centre).all()
    assert zeros is None or not zeros[1].any()


@each_format
@pytest.mark.parametrize("constant", [1.0, -3.7, 1e-20, -2e20])
def test_constant_blocks(fmt: IntFormat, constant: float) -> None:
    values = np.full((2, fmt.group + 5), constant, np.float32)
    back, _ = through(values, fmt)
    np.testing.assert_allclose(back, values, rtol=1e-6)


@each_format
def test_a_lone_value_among_zeros(fmt: IntFormat) -> None:
    for value in (5.0, -0.001):
        values = np.zeros((1, fmt.group), np.float32)
        values[0, 7] = value
        back, _ = through(values, fmt)
        np.testing.assert_allclose(back, values, rtol=1e-6)


@each_format
@pytest.mark.parametrize("magnitude", [1e-44, 1e-40, 2e-38, 1e32])
def test_denormal_and_large_values_stay_finite(fmt: IntFormat, magnitude: float) -> None:
    values = (np.random.default_rng(2).uniform(-1, 1, (2, 2 * fmt.group)) * magnitude).astype(np.float32)
    with np.errstate(all="ignore"):
        back, scales = through(values, fmt)
    assert np.isfinite(scales).all()
    assert np.isfinite(back).all()
    assert np.abs(back.astype(np.float64) - values).max() <= 2.2 * magnitude


@each_format
def test_the_padding_of_the_last_block_takes_no_part(fmt: IntFormat) -> None:
    values = np.random.default_rng(3).uniform(0.5, 1.0, (2, fmt.group + 3)).astype(np.float32)
    back, scales = through(values, fmt)
    alone, alone_scales = through(values[:, : fmt.group], fmt)
    np.testing.assert_array_equal(back[:, : fmt.group], alone)
    np.testing.assert_array_equal(scales[:, :1], alone_scales)
    codes, _, zeros = quantize(values, fmt)
    padding = codes[:, 1, 3:].astype(int)
    wanted = fmt.levels // 2 if zeros is None else zeros[:, 1:].astype(int)
    assert (padding == wanted).all()


@each_format
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_name(fmt: IntFormat, bad: float) -> None:
    values = np.ones((3, 40), np.float32)
    values[2, 39] = bad
    with pytest.raises(FloatingPointError):
        quantize(values, fmt)
    producer = RoundingProducer(StoredWeight(ArrayTensor("x", values), "model.layers.7.mlp.up_proj.weight"), fmt, "m")
    with pytest.raises(CheckpointError, match=r"model\.layers\.7\.mlp\.up_proj\.weight: it holds values that are not"):
        [chunk() for chunk in producer.chunks()]


@given(bits=st.sampled_from([4, 8]), shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_unpack_undoes_pack(bits: int, shape: list[int], seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, shape, dtype=np.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == np.uint8
    assert packed.shape == (*shape[:-1], -(-shape[-1] * bits // 8))
    back = unpack(packed, bits)
    np.testing.assert_array_equal(back[..., : shape[-1]], codes)
    assert not back[..., shape[-1] :].any()


def test_the_low_nibble_comes_first() -> None:
    np.testing.assert_array_equal(pack(np.array([[1, 2, 3]], np.uint8), 4), [[0x21, 0x03]])
    np.testing.assert_array_equal(unpack(np.array([[0x21, 0x03]], np.uint8), 4), [[1, 2, 3, 0]])


def test_dequantize_by_hand() -> None:
    fmt = IntFormat(4, 32, True)
    codes = np.full((1, 3, 32), 9, np.uint8)
    codes[0, 1] = 4
    zeros = pack(np.array([[1, 6, 15]], np.uint8), 4)
    assert zeros.shape == fmt.zero_points_shape(1, 70) == (1, 2)
    assert fmt.codes_shape(1, 70) == (1, 3, 16)
    got = dequantize(pack(codes, 4), np.array([[0.5, 2.0, -1.0]], np.float32), zeros, fmt, 70)
    np.testing.assert_array_equal(got[0], [4.0] * 32 + [-4.0] * 32 + [6.0] * 6)


def test_labels() -> None:
    assert IntFormat(4, 32, False).label == "int4 group 32"
    assert IntFormat(8, 128, True).label == "int8 group 128 zero-point"
    assert IntFormat(4, 32, False, int8_activations=False).label == "int4 group 32 float activations"
    assert FloatFormat("float16").label == "float16"


# -- goldens -----------------------------------------------------------------------------------------------------------

RUNTIME = [
    (name, group, asym)
    for group in (32, 64, 128)
    for asym in (False, True)
    for name in format_goldens.having("integers", f"ort_int4_g{group}_{'asym' if asym else 'sym'}")
]


@pytest.mark.parametrize(("name", "group", "asym"), RUNTIME)
def test_codes_of_onnx_runtimes_quantizer_are_read_and_its_grid_is_ours(name: str, group: int, asym: bool) -> None:
    golden, values = format_goldens.arrays("integers"), format_goldens.matrices()[name]
    key = f"{name}.ort_int4_g{group}_{'asym' if asym else 'sym'}"
    fmt = IntFormat(4, group, asym)
    grid = fmt.grid(values, {})
    scale = golden[f"{key}.scale"]
    np.testing.assert_allclose(grid.scale, scale, rtol=2e-7, atol=0)
    rows, width = values.shape
    codes = np.full((rows, fmt.blocks(width) * group), 8, np.uint8)
    codes[:, :width] = golden[f"{key}.codes"]
    packed = pack(codes.reshape(rows, -1, group), 4)
    back = dequantize(packed, scale, pack(golden[f"{key}.zero"], 4), fmt, width)
    if f"{key}.values" in golden:
        np.testing.assert_array_equal(back, golden[f"{key}.values"])
    # Its rounding is no nearer than ours but for ties.
    own = fmt.snap(values, *grid.along(0, width, group))
    assert np.abs(own - golden[f"{key}.codes"]).max() <= 1
    assert name == "int_ties" or (own == golden[f"{key}.codes"]).mean() > 0.9


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_scales_in_float16(bits: int, zero_point: bool) -> None:
    """Codes are made for the scales as they are stored; those float16 can't hold are refused."""
    fmt = IntFormat(bits, 32, zero_point, True, "float16")
    values = np.random.default_rng(1).standard_normal((3, 70)).astype(np.float32)
    parts = fmt.encode(values, {})
    assert parts["scales"].dtype == np.float16
    assert fmt.specs((3, 70))["scales"] == ("float16", (3, 3))
    back = fmt.decode(parts, 70)
    step = np.repeat(np.abs(parts["scales"].astype(np.float32)), 32, axis=1)[:, :70]
    assert (np.abs(back - values) <= 1.1 * step).all()
    with pytest.raises(FloatingPointError):
        fmt.encode(values * np.float32(1e9), {})
