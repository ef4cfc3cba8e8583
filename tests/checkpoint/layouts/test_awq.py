"""AutoAWQ checkpoints: its goldens bit for bit, the order of rows in words, zero points 0 and 15, hostile files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    tensors,
)

from conftest import MakeEngine
from edgewright.build.pipeline import deploy
from edgewright.checkpoint import open_checkpoint
from edgewright.checkpoint.layouts.awq import read
from edgewright.errors import CheckpointError, RecipeError, UnsupportedFormatError
from edgewright.formats import IntFormat
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import parse_recipe

CASES = cases("awq-")
MODULE = "model.layers.0.self_attn.q_proj"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


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
    built = deploy(GOLDENS / "awq-g128", tmp_path / "out", recipe="stored")
    assert built.manifest.verdict["status"] == "passed"
    assert built.manifest.recipe["summary"]["bit_exact"] == built.manifest.recipe["summary"]["modules"]


def test_another_format_is_a_second_rounding() -> None:
    recipe = parse_recipe("body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int8}\n", "r.yaml")
    checkpoint = open_checkpoint(GOLDENS / "awq-g32")
    with pytest.raises(RecipeError, match="second time"):
        quantize_stage(build_llm(checkpoint), recipe)
    applied = quantize_stage(build_llm(checkpoint), recipe, requantize=True)
    assert not any(a.exact for a in applied)


def packed(values: np.ndarray) -> np.ndarray:
    """int32 `[n, m / 8]` of codes `[n, m]`."""
    words = [
        [sum(int(row[8 * w + ORDER[k]]) << (4 * k) for k in range(8)) for w in range(len(row) // 8)] for row in values
    ]
    return np.array(words, np.uint32).view(np.int32)


def linear(seed: int, group: int = 32, width: int = 96, rows: int = 40) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of one module and its float32 weight `[rows, width]`."""
    rng = np.random.default_rng(seed)
    size = width if group == -1 else group
    groups = -(-width // size)
    codes, zeros = rng.integers(0, 16, (width, rows)), rng.integers(0, 16, (groups, rows))
    zeros[:, 0], zeros[:, -1] = 0, 15
    scales = rng.uniform(-0.1, 0.1, (groups, rows)).astype(np.float16)
    arrays = {"qweight": packed(codes), "qzeros": packed(zeros), "scales": scales}
    index = np.arange(width) // size
    weight = (codes - zeros[index]).astype(np.float32) * scales[index].astype(np.float32)
    return {f"{MODULE}.{name}": array for name, array in arrays.items()}, np.ascontiguousarray(weight.T)


def config(group: int = 32, **keys: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm", **keys}


@given(
    seed=st.integers(0, 1 << 20),
    layout=st.sampled_from([(32, 96), (64, 64), (128, 256), (128, 160), (512, 96), (-1, 200)]),
    rows=st.sampled_from([8, 24, 72]),
    start=st.integers(0, 7),
)
def test_packing_is_undone(seed: int, layout: tuple[int, int], rows: int, start: int) -> None:
    group, width = layout
    arrays, wanted = linear(seed, group, width, rows)
    found, _ = read(config(group), tensors(arrays))
    tensor = found.pop(f"{MODULE}.weight")
    assert not found
    assert isinstance(tensor.encoding, IntFormat)
    assert (tensor.encoding.bits, tensor.encoding.zero_point, tensor.encoding.scales) == (4, True, "float16")
    np.testing.assert_array_equal(as_trained(tensor), wanted)
    whole, part = tensor.encoded(0, rows), tensor.encoded(start, rows - 1)
    for kind in whole:
        np.testing.assert_array_equal(part[kind], whole[kind][start : rows - 1])


def test_keys_of_the_tools_own_file() -> None:
    arrays, wanted = linear(1)
    found, _ = read({"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}, tensors(arrays))
    np.testing.assert_array_equal(as_trained(found[f"{MODULE}.weight"]), wanted)


def test_what_is_listed_means_whole_parts_of_names() -> None:
    arrays, _ = linear(2)
    for listed in (["q"], ["proj"], ["gate"], None, [], ["self_attn.q_proj.inner"]):
        read(config(modules_to_not_convert=listed), tensors(arrays))
    for listed in (["q_proj"], ["self_attn"], ["layers.0"], [MODULE], ["layers.*.self_attn"]):
        with pytest.raises(CheckpointError) as caught:
            read(config(modules_to_not_convert=listed), tensors(arrays))
        assert_one_sentence(caught.value, MODULE, "not converted")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"version": "gemv"}, "gemv"),
        ({"version": "marlin"}, "marlin"),
        ({"version": None, "format": "gemv_fast"}, "gemv_fast"),
        ({"backend": "llm-awq"}, "llm-awq"),
        ({"bits": 8}, "8 bits"),
        ({"bits": True}, "whole number"),
        ({"group_size": 64}, "qzeros"),
        ({"group_size": 0}, "groups of 0"),
        ({"zero_point": 1}, "zero_point"),
        ({"modules_to_not_convert": "lm_head"}, "list of names"),
    ],
)
def test_configs_that_do_not_fit_are_refused(keys: dict[str, Any], words: str) -> None:
    arrays, _ = linear(3)
    with pytest.raises((CheckpointError, UnsupportedFormatError)) as caught:
        read(config(**keys), tensors(arrays))
    assert_one_sentence(caught.value, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qzeros": None}, "no tensor"),
        ({"scales": None}, "no tensor"),
        ({"qweight": None}, "no qweight"),
        ({"qweight": np.zeros((96, 5), np.int16)}, "int16"),
        ({"qweight": np.zeros(96, np.int32)}, "matrix"),
        ({"qzeros": np.zeros((3, 4), np.int32)}, "qzeros"),
        ({"scales": np.zeros((40, 3), np.float16)}, "scales"),
        ({"weight": np.zeros((40, 96), np.float16)}, "plain"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, np.ndarray | None], words: str) -> None:
    arrays, _ = linear(4)
    for name, array in changes.items():
        arrays.pop(f"{MODULE}.{name}", None)
        if array is not None:
            arrays[f"{MODULE}.{name}"] = array
    with pytest.raises(CheckpointError) as caught:
        read(config(), tensors(arrays))
    assert_one_sentence(caught.value, words)


def test_scales_that_are_not_finite_are_refused_by_name() -> None:
    checkpoint = open_checkpoint(GOLDENS / "awq-g32")
    name = f"{MODULE}.weight"
    arrays, _ = linear(5, 32, 64, 64)
    arrays[f"{MODULE}.scales"][1, 7] = np.inf
    broken, _ = read(config(), tensors(arrays))
    checkpoint.tensors[name] = broken[name]  # type: ignore[index]
    stage = build_llm(checkpoint)
    quantize_stage(stage, parse_recipe("extends: stored\n", "r.yaml"))
    with pytest.raises(CheckpointError, match=rf"{MODULE}\.weight holds scales that are not finite"):
        [make() for make in stage.producers[f"{MODULE}.codes"].chunks()]


def test_biases_of_zeros_are_left_out_and_others_are_not() -> None:
    checkpoint = open_checkpoint(GOLDENS / "awq-g32")
    checkpoint.tensors.update(tensors({f"{MODULE}.bias": np.zeros(64, np.float16)}))  # type: ignore[attr-defined]
    assert "1 biases of zeros left out" in build_llm(checkpoint).notes
    checkpoint.tensors.update(tensors({f"{MODULE}.bias": np.ones(64, np.float16)}))  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="not used by the family"):
        build_llm(checkpoint)
