"""FP8 checkpoints of DeepSeek's kind: goldens bit for bit, partial blocks, one scale a tensor, hostile files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import (
    GOLDENS,
    as_trained,
    assert_one_sentence,
    cases,
    check_logits,
    check_taken_over,
    check_weights,
    stored,
    tensors,
)

from conftest import MakeEngine
from edgewright.build.pipeline import deploy
from edgewright.checkpoint.layouts.fp8 import read
from edgewright.checkpoint.views import RowsView
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import ActivationFormat, ScaledFormat

CASES = cases("fp8-")
MODULE = "model.layers.0.mlp.down_proj"
E4M3 = ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_tools_bit_for_bit(case: str) -> None:
    check_weights(case)


@pytest.mark.parametrize("case", CASES)
def test_float_graph_computes_the_reference_logits(case: str, make_engine: MakeEngine) -> None:
    check_logits(case, make_engine)


@pytest.mark.parametrize("case", CASES)
def test_codes_are_taken_over(case: str) -> None:
    check_taken_over(case)


def test_deploys_and_verifies(tmp_path: Path) -> None:
    built = deploy(GOLDENS / "fp8-block-odd", tmp_path / "out", recipe="stored")
    assert built.manifest.verdict["status"] == "passed"
    assert built.manifest.recipe["summary"]["formats"]["fp8 block 128"] == 6
    assert any("stay floats" in note for note in built.manifest.notes)


def config(**keys: Any) -> dict[str, Any]:
    usual = {"fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return {"quant_method": "fp8", **usual, **keys}


def linear(seed: int, rows: int, width: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of one module and its float32 weight."""
    rng = np.random.default_rng(seed)
    codes = rng.uniform(-448, 448, (rows, width)).astype(E4M3)
    scales = rng.uniform(1e-3, 1, (-(-rows // 128), -(-width // 128))).astype(np.float32)
    spread = np.repeat(np.repeat(scales, 128, axis=0)[:rows], 128, axis=1)[:, :width]
    return {f"{MODULE}.weight": codes, f"{MODULE}.weight_scale_inv": scales}, codes.astype(np.float32) * spread


@given(seed=st.integers(0, 1 << 20), rows=st.sampled_from([1, 128, 130, 300]), width=st.sampled_from([3, 128, 257]))
def test_blocks_that_are_not_full(seed: int, rows: int, width: int) -> None:
    arrays, wanted = linear(seed, rows, width)
    found, _ = read(config(), tensors(arrays))
    tensor = found.pop(f"{MODULE}.weight")
    assert not found
    assert tensor.encoding == ScaledFormat("e4m3", "block")
    np.testing.assert_array_equal(as_trained(tensor), wanted)
    np.testing.assert_array_equal(
        tensor.rows(rows // 2, rows), wanted[rows // 2 :]
    )  # any row, not only a block's first


def test_scales_of_powers_of_two() -> None:
    arrays, _ = linear(1, 130, 130)
    exponents = np.array([[120, 125], [127, 130]], np.uint8)
    scale = stored(f"{MODULE}.weight_scale_inv", exponents, "float8_e8m0fnu")
    given_tensors = {**tensors(arrays), f"{MODULE}.weight_scale_inv": scale}
    found, _ = read(config(scale_fmt="ue8m0"), given_tensors)
    values = arrays[f"{MODULE}.weight"].astype(np.float32)
    factors = np.float32(2) ** (exponents.astype(np.float32) - 127)
    spread = np.repeat(np.repeat(factors, 128, axis=0)[:130], 128, axis=1)[:, :130]
    np.testing.assert_array_equal(as_trained(found[f"{MODULE}.weight"]), values * spread)


@pytest.mark.parametrize("kind", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("given_kind", ["input_scale", "activation_scale"])
def test_one_scale_a_tensor_with_static_inputs(kind: str, given_kind: str) -> None:
    arrays, _ = linear(2, 40, 24)
    del arrays[f"{MODULE}.weight_scale_inv"]
    arrays[f"{MODULE}.{kind}"] = np.array(0.03, np.float32)
    arrays[f"{MODULE}.{given_kind}"] = np.array([0.5], np.float32)
    found, quantization = read(config(weight_block_size=None, activation_scheme="static"), tensors(arrays))
    tensor = found.pop(f"{MODULE}.weight")
    assert not found
    assert tensor.encoding == ScaledFormat("e4m3", "tensor")
    np.testing.assert_array_equal(as_trained(tensor), arrays[f"{MODULE}.weight"].astype(np.float32) * np.float32(0.03))
    assert tensor.input is not None
    assert tensor.input.activation == ActivationFormat("fp8", static=True)
    np.testing.assert_array_equal(tensor.input.scale, np.array([0.5], np.float32))
    assert quantization.notes == ()


def test_parts_cut_inside_a_block_stay_exact() -> None:
    """A joined matrix of attention need not be cut at a multiple of 128 rows."""
    arrays, wanted = linear(3, 300, 140)
    tensor = read(config(), tensors(arrays))[0][f"{MODULE}.weight"]
    for spans in ([(0, 128), (128, 300)], [(0, 100)], [(100, 300)], [(128, 140)]):
        view = RowsView("v", [(tensor, span) for span in spans])
        rows = np.concatenate([wanted[a:b] for a, b in spans])
        np.testing.assert_array_equal(view.rows(0, view.shape[0]), rows)
        assert (view.encoding or view.decoded) is not None
        if view.encoding is not None:
            np.testing.assert_array_equal(view.encoding.decode(view.encoded(0, view.shape[0]), 140), rows)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"weight_block_size": [64, 64]}, "[64, 64]"),
        ({"weight_block_size": "128x128"}, "128x128"),
        ({"weight_block_size": None}, "weight_scale_inv"),
        ({"fmt": "e5m2"}, "e5m2"),
        ({"activation_scheme": "static"}, "activation_scale"),
        ({"activation_scheme": 3}, "scheme 3"),
        ({"modules_to_not_convert": ["down_proj"]}, "not converted"),
        ({"ignored_layers": [MODULE]}, "not converted"),
        ({"ignored_layers": [3]}, "list of names"),
    ],
)
def test_configs_that_do_not_fit_are_refused(keys: dict[str, Any], words: str) -> None:
    arrays, _ = linear(4, 130, 130)
    with pytest.raises((CheckpointError, UnsupportedFormatError)) as caught:
        read(config(**keys), tensors(arrays))
    assert_one_sentence(caught.value, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"experts.gate_up_proj": np.zeros((2, 3, 4), E4M3)}, "gate_up_proj"),
        ({"weight_scale_inv": None}, "weight_scale_inv"),
        ({"weight_scale_inv": np.ones((1, 2), np.float32)}, "weight_scale_inv"),
        ({"weight_scale_inv": np.ones((2, 2), np.int32)}, "int32"),
        ({"weight": None}, "none"),
        ({"weight": np.zeros((130, 130), np.float32)}, "none"),
        ({"weight": np.zeros((2, 3, 4), E4M3)}, "matrix"),
        ({"input_scale": np.ones(1, np.float32)}, "input_scale"),
        ({"weight_scale": np.ones(1, np.float32)}, "weight_scale"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, np.ndarray | None], words: str) -> None:
    arrays, _ = linear(5, 130, 130)
    for name, array in changes.items():
        arrays.pop(f"{MODULE}.{name}", None)
        if array is not None:
            arrays[f"{MODULE}.{name}"] = array
    with pytest.raises(CheckpointError) as caught:
        read(config(), tensors(arrays))
    assert_one_sentence(caught.value, words)


def test_codes_that_are_no_number_are_refused() -> None:
    arrays, _ = linear(6, 130, 20)
    arrays[f"{MODULE}.weight"].view(np.uint8)[129, 3] = 0x7F
    tensor = read(config(), tensors(arrays))[0][f"{MODULE}.weight"]
    tensor.rows(0, 128)
    with pytest.raises(CheckpointError, match=MODULE):
        tensor.rows(128, 130)
