"""RoundInput: standard and emulated bodies give the bits of `formats.round_input`, which follows the formats' rules."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import portable
from edgewright.formats import ActivationFormat, round_input
from edgewright.graph import GraphBuilder, Stage
from edgewright.ops import round_input as append_round_input
from qdq_cases import assert_same_bits, run_ort, run_reference, written

DYNAMIC = [ActivationFormat(name, False, scope) for name in ("int8", "fp8", "int4") for scope in ("tensor", "token")]
BLOCKED = [ActivationFormat(name, False, "block") for name in ("nvfp4", "mxfp8", "mxfp4")]
STATIC = [
    ActivationFormat("int8", True),
    ActivationFormat("int8", True, symmetric=False),
    ActivationFormat("fp8", True),
    ActivationFormat("nvfp4", True, "block"),
]
FORMATS = [*DYNAMIC, *BLOCKED, *STATIC]
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label.replace(" ", "-"))


def rounding(fmt: ActivationFormat, feeds: dict[str, np.ndarray]) -> Stage:
    """A stage of one node whose inputs are all fed."""
    stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))
    g = GraphBuilder(stage)
    values = {}
    for name, array in feeds.items():
        shape = tuple(f"{name}_{i}" for i in range(array.ndim)) if name == "x" else array.shape
        values[name] = g.input(TensorContract(name, str(array.dtype), shape))
    y = append_round_input(g, **values, kind=fmt.name, static=fmt.static, scope=fmt.scope)
    g.output(y, TensorContract("y", "float32", tuple(f"y_{i}" for i in range(feeds["x"].ndim))))
    return stage


def all_ways(fmt: ActivationFormat, **feeds: np.ndarray) -> list[np.ndarray]:
    """Run it in the reference evaluator and in ONNX Runtime, as it is and emulated."""
    with tempfile.TemporaryDirectory() as folder:
        plain = written(portable.lower(rounding(fmt, feeds)), Path(folder) / "plain")
        other = written(portable.lower(rounding(fmt, feeds), emulate=True), Path(folder) / "emulated")
        results = [run_reference(plain, feeds), run_ort(other, feeds), run_reference(other, feeds)]
        return results if "fp4" in fmt.name else [*results, run_ort(plain, feeds)]


def parameters(fmt: ActivationFormat, x: np.ndarray) -> dict[str, np.ndarray]:
    """The scale calibration would have found on something like x, and a zero point."""
    if not fmt.static:
        return {}
    largest = max(float(np.abs(x).max()) * 0.8, 1e-30)
    found = {"scale": np.array([largest / {"int8": 127, "fp8": 448, "nvfp4": 6 * 448}[fmt.name]], np.float32)}
    return found if fmt.symmetric else {**found, "zero_point": np.array([-37], np.int8)}


@settings(max_examples=60, deadline=None)
@given(
    fmt=st.sampled_from(FORMATS),
    seed=st.integers(0, 2**32 - 1),
    lead=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    width=st.sampled_from([1, 7, 16, 31, 32, 33, 48, 65, 100]),
    exponent=st.integers(-20, 20),
)
def test_every_body_gives_the_same_bits(
    fmt: ActivationFormat, seed: int, lead: list[int], width: int, exponent: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(2, (*lead, width)) * 10.0**exponent).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = 0
    given_too = parameters(fmt, x)
    wanted = round_input(x, fmt, **given_too)
    assert wanted.shape == x.shape
    for got in all_ways(fmt, x=x, **given_too):
        assert_same_bits(got, wanted)


@each_format
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-39, 3e-38, 1e-30, 1e30, 3e38])
def test_zeros_subnormal_and_huge_inputs(fmt: ActivationFormat, magnitude: float) -> None:
    x = (np.random.default_rng(1).uniform(-1, 1, (2, 3, 50)) * magnitude).astype(np.float32)
    x[0, 0] = 0
    wanted = round_input(x, fmt, **parameters(fmt, x))
    assert np.isfinite(wanted).all()
    if magnitude >= 1e-30:
        assert np.abs(wanted - x).max() <= 0.5 * np.abs(x).max()
    for got in all_ways(fmt, x=x, **parameters(fmt, x)):
        assert_same_bits(got, wanted)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_ties_of_four_bit_floats_go_to_even(name: str) -> None:
    """Scale 1: the points between two codes, and those a bit beside them."""
    ties = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    even = np.float32([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0])
    odd = np.float32([0.5, 0.5, 1.5, 1.5, 3.0, 3.0, 6.0])
    below, above = np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(9))
    row = np.concatenate([ties, below, above, -ties, [6.0], np.zeros(3)]).astype(np.float32)
    x = np.zeros((1, 64), np.float32)
    x[0, : len(row)] = row
    x[0, 31] = 6.0 if name == "mxfp4" else x[0, 31]
    fmt = ActivationFormat(name, name == "nvfp4", "block")
    # Every block of 16 gets a six, so that its scale is 1.
    if name == "nvfp4":
        x = np.insert(x[:, :60], np.arange(0, 60, 15), 6.0, axis=1)
        row_back = lambda y: np.delete(y, np.arange(0, 64, 16), axis=1)  # noqa: E731
    else:
        row_back = lambda y: y  # noqa: E731
    scale = {"scale": np.ones(1, np.float32)} if name == "nvfp4" else {}
    lower, upper = np.minimum(even, odd), np.maximum(even, odd)
    wanted = np.concatenate([even, lower, upper, -even])
    results = all_ways(fmt, x=x, **scale)
    for got in [round_input(x, fmt, **scale), *results]:
        np.testing.assert_array_equal(row_back(got)[0, :28][:28], wanted)


def test_int8_by_hand() -> None:
    x = np.float32([[0.5, 1.5, 2.5, -0.5, -200.0, 127.4, 300.0]])
    static = {"scale": np.ones(1, np.float32)}
    fmt = ActivationFormat("int8", True)
    np.testing.assert_array_equal(round_input(x, fmt, **static), [[0, 2, 2, 0, -128, 127, 127]])
    shifted = {**static, "zero_point": np.array([-100], np.int8)}
    got = round_input(x, ActivationFormat("int8", True, symmetric=False), **shifted)
    np.testing.assert_array_equal(got, [[0, 2, 2, 0, -28, 127, 227]])
    # Dynamic: 300 is code 127, or every token has a scale of its own.
    two = np.float32([[300.0, 1.0], [2.0, 1.0]])
    whole = round_input(two, ActivationFormat("int8", False, "tensor"))
    np.testing.assert_allclose(whole, [[300, 0], [300 / 127, 0]], rtol=1e-6)
    tokens = round_input(two, ActivationFormat("int8", False, "token"))
    np.testing.assert_allclose(tokens, [[300, 0], [2, 64 * 2 / 127]], rtol=1e-6)


def test_mx_scales_are_powers_of_two_by_the_floor() -> None:
    """Largest 7.9 has exponent 2: scale 1, so 7.9 saturates at 6; largest 8.1 has exponent 3: scale 2."""
    x = np.zeros((1, 64), np.float32)
    x[0, 0], x[0, 32] = 7.9, 8.1
    got = round_input(x, ActivationFormat("mxfp4", False, "block"))
    assert got[0, 0] == 6.0
    assert got[0, 32] == 8.0
    x[0, 0] = 500.0  # 2^8 <= 500 < 2^9: scale 1
    got = round_input(x, ActivationFormat("mxfp8", False, "block"))
    assert got[0, 0] == 448.0


def test_the_standard_body_quantizes_to_the_type_it_names(tmp_path: Path) -> None:
    types = {"int8": 3, "fp8": 17, "int4": 22, "nvfp4": 23, "mxfp8": 17, "mxfp4": 23}
    x = np.ones((2, 40), np.float32)
    for count, fmt in enumerate(FORMATS):
        stage = portable.lower(rounding(fmt, {"x": x, **parameters(fmt, x)}))
        model = onnx.load(written(stage, tmp_path / str(count)))
        nodes = {node.op_type: node for node in model.functions[0].node}
        attributes = {a.name: a.i for a in nodes["QuantizeLinear"].attribute}
        if fmt.symmetric:
            assert attributes["output_dtype"] == types[fmt.name]
        else:  # the zero point says the type
            assert "output_dtype" not in attributes
            assert len(nodes["QuantizeLinear"].input) == 3
        assert "DequantizeLinear" in nodes
        if fmt.scope == "block":
            assert attributes["block_size"] == (16 if fmt.name == "nvfp4" else 32)
