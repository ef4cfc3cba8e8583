"""A recipe's weights as the HTP takes them: the same values where its integers fit, else the nearest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from edgewright.dialects.qnn_graph import Source
from edgewright.targets.qnn.weights import HtpWeight, Weights, unpacked


def quantized(
    codes: np.ndarray, scales: np.ndarray, bits: int, group: int, zeros: np.ndarray | None = None, width: int = 0
) -> tuple[Weights, Source]:
    """Return a QuantLinear's weight of codes `[rows, blocks * group]`, as a graph holds it."""
    rows, columns = codes.shape
    blocks = columns // group
    arrays = {"codes": packed(codes, bits).reshape(rows, blocks, -1), "scales": scales.astype(np.float32)}
    if zeros is not None:
        arrays["zeros"] = packed(np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2))), bits)
    graph = onnx.helper.make_graph([], "g", [], [], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    attributes = {"bits": bits, "group": group, "in_features": width or columns, "out_features": rows}
    inputs = ("codes", "scales", "zeros" if zeros is not None else "", "")
    return Weights(onnx.helper.make_model(graph), Path()), Source("linear", "m", "QuantLinear", inputs, attributes)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    codes = codes.astype(np.uint8)
    return codes if bits == 8 else (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


def values(weight: HtpWeight) -> np.ndarray:
    """Return the float32 weight `[in, out]` that codes stand for."""
    scales = weight.scales if weight.block is None else np.repeat(weight.scales, weight.block, axis=0)
    return np.asarray(weight.codes.astype(np.float32) * scales)


def wanted(codes: np.ndarray, scales: np.ndarray, group: int, zeros: Any) -> np.ndarray:
    """Return what the recipe's integers stand for, `[in, out]`."""
    by_column = np.repeat(scales.astype(np.float32), group, axis=1)
    return np.asarray(((codes - zeros).astype(np.float32) * by_column).T)


RNG = np.random.default_rng(7)


@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 32), (8, 32), (4, 64), (8, 64)])
def test_blocks_around_the_middle_are_taken_as_they_are(bits: int, group: int) -> None:
    codes = RNG.integers(0, 1 << bits, (6, 64))
    scales = RNG.uniform(0.01, 1, (6, 64 // group))
    weight = Weights.linear(*quantized(codes, scales, bits, group))
    assert (weight.how, weight.bits, weight.block) == ("taken", bits, group if group < 64 else None)
    assert np.array_equal(values(weight), wanted(codes, scales, group, 1 << (bits - 1)))


def test_codes_of_4_bits_with_zero_points_keep_their_values_in_8() -> None:
    codes, zeros = RNG.integers(0, 16, (5, 96)), RNG.integers(0, 16, (5, 3))
    scales = RNG.uniform(0.01, 1, (5, 3))
    weight = Weights.linear(*quantized(codes, scales, 4, 32, zeros))
    assert (weight.how, weight.bits, weight.block) == ("centred", 8, 32)
    assert np.array_equal(values(weight), wanted(codes, scales, 32, np.repeat(zeros, 32, axis=1)))


def test_scales_below_zero_keep_their_values_too() -> None:
    codes = RNG.integers(0, 16, (4, 64))
    codes[0, 0] = 0  # the code that has no negative in 4 bits
    scales = -RNG.uniform(0.01, 1, (4, 2))
    weight = Weights.linear(*quantized(codes, scales, 4, 32))
    assert (weight.how, weight.bits) == ("centred", 8)
    assert (weight.scales > 0).all()
    assert np.array_equal(values(weight), wanted(codes, scales, 32, 8))


def test_what_a_scale_of_zero_stands_for_stays_zero() -> None:
    codes, scales = RNG.integers(0, 16, (4, 64)), RNG.uniform(0.01, 1, (4, 2))
    scales[1, 0] = scales[3] = 0
    weight = Weights.linear(*quantized(codes, scales, 4, 32))
    assert (weight.how, weight.bits) == ("taken", 4)
    assert (weight.scales > 0).all()
    assert np.array_equal(values(weight), wanted(codes, scales, 32, 8))


def test_a_scaled_row_of_zeros_is_rounded_to_zeros() -> None:
    codes = RNG.integers(-128, 128, (3, 32)).astype(np.int8)
    arrays = {"codes": codes, "scales": np.asarray([[0.5], [0.0], [0.25]], np.float32)}
    graph = onnx.helper.make_graph([], "g", [], [], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    source = Source("linear", "m", "Decode", ("codes", "scales", "", ""), {"in_features": 32, "out_features": 3})
    weight = Weights(onnx.helper.make_model(graph), Path()).linear(source)
    assert (weight.scales > 0).all()
    assert not values(weight)[:, 1].any()
    exact = (codes * arrays["scales"]).T
    assert (np.abs(values(weight) - exact) <= weight.scales / 2 * (1 + 1e-5)).all()


@pytest.mark.parametrize(
    ("group", "width", "block"), [(32, 40, None), (8, 64, None), (32, 64, 32)], ids=["padded", "narrow", "zero points"]
)
def test_what_is_no_encoding_is_rounded_to_nearest(group: int, width: int, block: int | None) -> None:
    columns = -(-width // group) * group
    codes, scales = RNG.integers(0, 256, (7, columns)), RNG.uniform(0.01, 0.02, (7, columns // group))
    zeros = RNG.integers(0, 256, (7, columns // group))
    weight = Weights.linear(*quantized(codes, scales, 8, group, zeros, width))
    assert (weight.how, weight.bits, weight.block) == ("rounded", 8, block)
    exact = wanted(codes, scales, group, np.repeat(zeros, group, axis=1))[:width]
    steps = weight.scales if block is None else np.repeat(weight.scales, block, axis=0)
    assert (np.abs(values(weight) - exact) <= steps / 2 * (1 + 1e-5)).all()
    assert np.abs(weight.codes).max() == 127


@pytest.mark.parametrize(("choice", "bits"), [("int8", 8), ("int4", 4)])
def test_all_can_be_rounded_to_the_same_bits(choice: str, bits: int) -> None:
    codes, scales = RNG.integers(0, 256, (3, 64)), RNG.uniform(0.01, 1, (3, 2))
    weights, source = quantized(codes, scales, 8, 32)
    weight = weights.linear(source, choice)
    assert (weight.how, weight.bits, weight.block) == ("rounded", bits, 32)
    assert np.abs(weight.codes).max() == (1 << (bits - 1)) - 1


def test_floats_are_rounded_by_column() -> None:
    array = RNG.normal(size=(4, 10)).astype(np.float32)
    array[2] = 0
    graph = onnx.helper.make_graph([], "g", [], [], [numpy_helper.from_array(array, "w")])
    weights = Weights(onnx.helper.make_model(graph), Path())
    weight = weights.linear(Source("linear", "m", "Linear", ("w",), {}))
    assert (weight.how, weight.bits, weight.block) == ("rounded", 8, None)
    assert (np.abs(values(weight) - array.T) <= weight.scales / 2 * (1 + 1e-5)).all()
    assert not values(weight)[:, 2].any()


@given(st.lists(st.integers(0, 255), min_size=1, max_size=9))
def test_nibbles_come_low_half_first(data: list[int]) -> None:
    codes = unpacked(np.asarray(data, dtype=np.uint8), 4)
    assert codes.tolist() == [part for byte in data for part in (byte % 16, byte // 16)]
