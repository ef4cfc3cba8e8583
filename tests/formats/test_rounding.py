"""Rounded inputs against ModelOpt's fake quantization and ONNX's QuantizeLinear."""

from __future__ import annotations

import numpy as np
import pytest

from edgewright.formats import ActivationFormat, round_input
from format_goldens import arrays, having, matrices

NAMES = having("activations", "static_1.0")


def close(got: np.ndarray, wanted: np.ndarray, steps: np.ndarray | float) -> None:
    """Compare; the tool multiplies by a reciprocal, so that a tie may go the other way, by one step, now and then."""
    difference = np.abs(got.astype(np.float64) - wanted)
    same = difference <= 4e-7 * np.abs(wanted)
    assert (same | (difference <= np.asarray(steps) * 1.001)).all()
    assert same.mean() > 0.97


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", ["0.5", "1.0"])
def test_static_inputs_are_modelopts_but_for_last_bits(name: str, share: str) -> None:
    golden, x, key = arrays("activations"), matrices()[name], f"{name}.static_{share}"
    amax = golden[f"{key}.amax"]
    scale = (amax / np.float32(127)).astype(np.float32)
    got = round_input(x, ActivationFormat("int8", True), scale)
    close(got, golden[f"{key}.modelopt_int8"], scale)
    scale = (amax / np.float32(448)).astype(np.float32)
    got = round_input(x, ActivationFormat("fp8", True), scale)
    close(got, golden[f"{key}.modelopt_fp8"], np.maximum(np.abs(x) / 8, scale / 256))


@pytest.mark.parametrize("name", NAMES)
def test_dynamic_tokens_are_modelopts_but_for_last_bits(name: str) -> None:
    golden, x = arrays("activations"), matrices()[name]
    rows = np.abs(x).max(axis=1, keepdims=True)
    kept = (rows > 2.0**-24)[:, 0]  # below, the tool gives zeros or rounds without a scale
    got = round_input(x, ActivationFormat("int8", False, "token"))
    close(got[kept], golden[f"{name}.token.modelopt_int8"][kept], (rows / 127)[kept])
    got = round_input(x, ActivationFormat("fp8", False, "token"))
    steps = np.maximum(np.abs(x) / 8, rows / 448 / 256)
    close(got[kept], golden[f"{name}.token.modelopt_fp8"][kept], steps[kept])


@pytest.mark.parametrize("name", having("onnx_qdq", "int8_tensor"))
def test_static_inputs_are_onnxs_bit_for_bit(name: str) -> None:
    golden, x = arrays("onnx_qdq"), matrices()[name]
    for key, kind in ((f"{name}.int8_tensor", "int8"), (f"{name}.fp8_tensor", "fp8")):
        zero = golden.get(f"{key}.zero")
        got = round_input(x, ActivationFormat(kind, True, symmetric=zero is None), golden[f"{key}.scale"], zero)
        np.testing.assert_array_equal(got, golden[f"{key}.values"])
    key = f"{name}.fp8_tensor_clipping"
    got = round_input(x, ActivationFormat("fp8", True), golden[f"{key}.scale"])
    np.testing.assert_array_equal(got, golden[f"{key}.values"])
