"""NVFP4 and MX: against ModelOpt's and compressed-tensors' bytes, the specification's rule, and by their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.formats import BlockFormat, MxFormat, Nvfp4Format, format_from_json, pack, to_blocks
from format_goldens import E4M3, E8M0, arrays, having, matrices
from qdq_cases import encoded, label

NVFP4, MXFP4, MXFP8 = Nvfp4Format(), MxFormat("e2m1"), MxFormat("e4m3")
FORMATS: list[BlockFormat] = [NVFP4, MXFP4, MXFP8]
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=label)


@pytest.mark.parametrize("kind", ["modelopt", "modelopt_small_global"])
@pytest.mark.parametrize("name", having("nvfp4", "modelopt"))
def test_nvfp4_is_modelopts(name: str, kind: str) -> None:
    """Global scale, block scales and codes bit for bit, underflow and saturation too; only -0 is code 8 here."""
    golden, values, key = arrays("nvfp4"), matrices()[name], f"{name}.{kind}"
    whole = golden[f"{key}.scale_2"]
    if kind == "modelopt":
        np.testing.assert_array_equal(NVFP4.survey(float(np.abs(values).max()))["global_scale"], whole)
    parts = NVFP4.encode(values + np.float32(0), {"global_scale": whole})  # no -0
    np.testing.assert_array_equal(parts["scales"].view(np.uint8), golden[f"{key}.scale"])
    np.testing.assert_array_equal(parts["codes"], golden[f"{key}.packed"])
    given = {"codes": golden[f"{key}.packed"], "scales": golden[f"{key}.scale"].view(E4M3), "global_scale": whole}
    np.testing.assert_array_equal(NVFP4.decode(given, values.shape[1]), golden[f"{key}.values"])


@pytest.mark.parametrize("name", having("nvfp4", "compressed_tensors"))
def test_nvfp4_of_compressed_tensors_is_read(name: str) -> None:
    """Its global scale is the reciprocal, and it divides by it: within two roundings."""
    golden, key = arrays("nvfp4"), f"{name}.compressed_tensors"
    codes = golden[f"{key}.codes"]
    whole = np.float32(1) / golden[f"{key}.global_scale"]
    given = {
        "codes": pack(codes, 4),
        "scales": golden[f"{key}.scale"].view(E4M3),
        "global_scale": whole,
    }
    np.testing.assert_allclose(NVFP4.decode(given, codes.shape[1]), golden[f"{key}.values"], rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", having("mx", "modelopt_mxfp4"))
def test_mxfp4_of_modelopt_is_read(name: str) -> None:
    golden, key = arrays("mx"), f"{name}.modelopt_mxfp4"
    given = {"codes": golden[f"{key}.packed"], "scales": golden[f"{key}.scale"].view(E8M0)}
    wanted = golden[f"{key}.values"]
    np.testing.assert_array_equal(MXFP4.decode(given, wanted.shape[1]), wanted)


@pytest.mark.parametrize("name", having("mx", "modelopt_mxfp8"))
def test_mxfp8_of_modelopt_is_read(name: str) -> None:
    golden, key = arrays("mx"), f"{name}.modelopt_mxfp8"
    codes, wanted = golden[f"{key}.codes"], golden[f"{key}.values"]
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 32)))
    given = {"codes": codes.view(E4M3), "scales": golden[f"{key}.scale"].view(E8M0)}
    np.testing.assert_array_equal(MXFP8.decode(given, wanted.shape[1]), wanted)


@pytest.mark.parametrize("fmt", [MXFP4, MXFP8], ids=label)
@pytest.mark.parametrize("name", having("mx", "modelopt_mxfp8"))
def test_mx_scales_follow_the_specification(fmt: MxFormat, name: str) -> None:
    """floor(log2(largest)) less the element's own; ModelOpt's scale is that or one more, never less."""
    values = matrices()[name]
    parts = encoded(fmt, values)
    largest = np.abs(np.pad(values, ((0, 0), (0, -values.shape[1] % 32)))).reshape(len(values), -1, 32).max(axis=2)
    own = 2 if fmt.element == "e2m1" else 8
    with np.errstate(divide="ignore"):
        wanted = np.clip(np.floor(np.log2(largest.astype(np.float64))) - own + 127, 0, 254)
    codes = parts["scales"].view(np.uint8)
    np.testing.assert_array_equal(codes[largest > 0], wanted[largest > 0])
    assert (codes[largest == 0] == 127).all()
    key = f"{name}.modelopt_{fmt.label}.scale"
    if key in arrays("mx"):
        more = arrays("mx")[key].astype(int) - codes
        assert set(np.unique(more[largest > 0])) <= {0, 1}


@settings(max_examples=60)
@given(
    fmt=st.sampled_from(FORMATS),
    rows=st.integers(1, 4),
    width=st.sampled_from([1, 15, 16, 17, 32, 33, 100]),
    seed=st.integers(0, 99),
    exponent=st.integers(-20, 20),
)
def test_values_come_back_within_their_steps(fmt: BlockFormat, rows: int, width: int, seed: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_t(3, (rows, width)) * 10.0**exponent).astype(np.float32)
    parts = encoded(fmt, values)
    specs = fmt.specs((rows, width))
    assert list(specs) == list({**{"codes": 0}, **dict.fromkeys(specs, 0)})
    for name, (dtype, shape) in specs.items():
        packed = dtype == "float4_e2m1"
        assert parts[name].shape == ((*shape[:-1], shape[-1] // 2) if packed else shape)
        assert parts[name].dtype == (np.uint8 if packed else np.dtype(dtype))
    back = fmt.decode(parts, width).astype(np.float64)
    span = fmt.span(width)
    grid = np.repeat(np.abs(to_blocks(values, span)).max(axis=2), span, axis=1)[:, :width]
    # A step at the top of a block is 2 of 6 in E2M1, 32 of 448 in E4M3; MX may cut off up to an eighth besides.
    bound = {"nvfp4": 0.2, "mxfp4": 0.26, "mxfp8": 0.13}[fmt.label]
    assert (np.abs(back - values) <= bound * grid + 1e-44).all()
    assert format_from_json(fmt.to_json()) == fmt


@each_format
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-42, 1e-39, 1e30, 3e38])
def test_extremes_stay_finite(fmt: BlockFormat, magnitude: float) -> None:
    values = (np.random.default_rng(2).uniform(-1, 1, (3, 100)) * magnitude).astype(np.float32)
    values[0] = 0
    with np.errstate(all="raise", under="ignore"):
        parts = encoded(fmt, values)
        back = fmt.decode(parts, 100)
    assert np.isfinite(back).all()
    assert not back[0].any()
    if magnitude >= 1e-30:
        assert np.abs(back - values).max() < 0.2 * magnitude


def test_a_block_of_small_numbers_keeps_a_scale() -> None:
    """NVFP4 beside a block 1e6 times as large: E4M3's smallest scale, not zero."""
    values = np.ones((1, 32), np.float32)
    values[0, 16:] = 1e-6
    parts = encoded(NVFP4, values)
    assert parts["scales"].view(np.uint8).tolist() == [[0x7E, 0x01]]
    assert np.isfinite(NVFP4.decode(parts, 32)).all()


@each_format
def test_padding_takes_no_part(fmt: BlockFormat) -> None:
    span = fmt.span(99)
    values = np.random.default_rng(3).standard_normal((2, span + 3)).astype(np.float32)
    shared = fmt.survey(float(np.abs(values).max()))
    parts, alone = fmt.encode(values, shared), fmt.encode(values[:, :span], shared)
    count = alone["codes"].shape[1]
    np.testing.assert_array_equal(parts["codes"].view(np.uint8)[:, :count], alone["codes"].view(np.uint8))
    np.testing.assert_array_equal(parts["scales"].view(np.uint8)[:, :1], alone["scales"].view(np.uint8))
    rest = fmt.decode(parts, 2 * span)[:, span + 3 :]
    assert not rest.any()


def test_the_even_column_is_the_low_nibble() -> None:
    codes = pack(np.arange(16, dtype=np.uint8)[None], 4)
    parts = {"codes": codes, "scales": np.array([[0x38]], np.uint8).view(E4M3), "global_scale": np.ones(1, np.float32)}
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    np.testing.assert_array_equal(NVFP4.decode(parts, 16)[0], np.float32([*table, *(-v for v in table)]))


@each_format
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_values_that_are_not_finite_are_refused(fmt: BlockFormat, bad: float) -> None:
    values = np.ones((3, 40), np.float32)
    values[2, 39] = bad
    with pytest.raises(FloatingPointError):
        fmt.encode(values, fmt.survey(1.0))
