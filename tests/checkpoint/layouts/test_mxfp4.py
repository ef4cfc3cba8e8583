"""gpt-oss in MXFP4: its golden bit for bit, experts run from their codes, hostile files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import GOLDENS, assert_one_sentence, check_logits, expected, tensors

from conftest import MakeEngine
from edgewright.build.pipeline import deploy
from edgewright.checkpoint import open_checkpoint
from edgewright.checkpoint.layouts.mxfp4 import read
from edgewright.errors import CheckpointError
from edgewright.formats import MxFormat
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import stored_recipe

CASE = "mxfp4-gpt-oss"
BASE = "model.layers.0.mlp.experts.gate_up_proj"
EXPERTS, INNER, HIDDEN = 4, 96, 64


def test_weights_are_the_tools_bit_for_bit() -> None:
    checkpoint, wanted = open_checkpoint(GOLDENS / CASE), expected(CASE)
    for name, rows in (("gate_up_proj", 2 * INNER), ("down_proj", HIDDEN)):
        tensor = checkpoint.tensors[f"model.layers.0.mlp.experts.{name}.weight"]
        assert tensor.encoding == MxFormat("e2m1")
        got = tensor.read().reshape(EXPERTS, rows, -1)[:2]
        stored = wanted[f"expert_weight.model.layers.0.mlp.experts.{name}"]
        np.testing.assert_array_equal(got.transpose(0, 2, 1), stored)


def test_gate_and_up_take_turns() -> None:
    wanted = expected(CASE)[f"expert_weight.{BASE}"]
    weights = build_llm(open_checkpoint(GOLDENS / CASE)).weights
    for first, name in enumerate(("gate_proj", "up_proj")):
        weight = weights[f"model.layers.0.mlp.experts.{name}.weight"]
        assert weight.shape == (EXPERTS * INNER, HIDDEN)
        got = weight.rows(0, 2 * INNER).reshape(2, INNER, HIDDEN)
        np.testing.assert_array_equal(got.transpose(0, 2, 1), wanted[:, :, first::2])
        np.testing.assert_array_equal(weight.rows(7, 7), np.zeros((0, HIDDEN)))


def test_float_graph_computes_the_reference_logits(make_engine: MakeEngine) -> None:
    check_logits(CASE, make_engine)


def test_codes_are_taken_over() -> None:
    applied = quantize_stage(build_llm(open_checkpoint(GOLDENS / CASE)), stored_recipe("stored"))
    experts = [a for a in applied if a.kind == "experts"]
    assert len(experts) == 3
    assert all(a.exact and a.format == MxFormat("e2m1") for a in experts)


def test_deploys_with_experts_in_a_loop_over_their_codes(tmp_path: Path) -> None:
    built = deploy(GOLDENS / CASE, tmp_path / "out", recipe="stored")
    assert built.manifest.verdict["status"] == "passed"
    graph = onnx.load(tmp_path / "out" / "stages" / "llm" / "model.onnx", load_external_data=False).graph
    bodies = [a.g for node in graph.node if node.op_type == "Loop" for a in node.attribute if a.name == "body"]
    assert [sum(node.op_type == "DecodeRows" for node in body.node) for body in bodies] == [3]
    sizes = {t.name: t.dims for t in graph.initializer if ".experts." in t.name and "bias" not in t.name}
    assert not any(list(dims) == [EXPERTS * INNER, HIDDEN] for dims in sizes.values())


def config(**keys: Any) -> dict[str, Any]:
    return {"quant_method": "mxfp4", **keys}


def experts(seed: int, count: int = 3, rows: int = 6, blocks: int = 2) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of one matrix of all experts and its float32 weight `[count * rows, width]`."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (count, rows, blocks, 16), np.uint8)
    scales = rng.integers(100, 140, (count, rows, blocks), np.uint8)
    table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    values = np.empty((count, rows, blocks, 32), np.float32)
    for b in range(16):
        values[..., 2 * b], values[..., 2 * b + 1] = table[packed[..., b] & 15], table[packed[..., b] >> 4]
    values *= np.exp2(scales.astype(np.float32) - 127)[..., None]
    return {f"{BASE}_blocks": packed, f"{BASE}_scales": scales}, values.reshape(count * rows, 32 * blocks)


@given(seed=st.integers(0, 1 << 20), count=st.integers(1, 4), rows=st.integers(1, 9), blocks=st.integers(1, 3))
def test_rows_of_all_experts(seed: int, count: int, rows: int, blocks: int) -> None:
    arrays, wanted = experts(seed, count, rows, blocks)
    found, _ = read(config(), tensors(arrays))
    tensor = found.pop(f"{BASE}.weight")
    assert not found
    assert tensor.shape == wanted.shape
    np.testing.assert_array_equal(tensor.read(), wanted)
    a, b = sorted(np.random.default_rng(seed).integers(0, len(wanted) + 1, 2))
    np.testing.assert_array_equal(tensor.rows(a, b), wanted[a:b])
    np.testing.assert_array_equal(tensor.encoded(a, b)["codes"], tensor.encoded(0, len(wanted))["codes"][a:b])


@pytest.mark.parametrize(
    ("changes", "keys", "words"),
    [
        ({"_scales": None}, {}, "no tensor"),
        ({"_blocks": None}, {}, "none"),
        ({"_blocks": np.zeros((3, 6, 2, 8), np.uint8)}, {}, "shape"),
        ({"_blocks": np.zeros((3, 6, 32), np.uint8)}, {}, "shape"),
        ({"_blocks": np.zeros((3, 6, 2, 16), np.int8)}, {}, "int8"),
        ({"_scales": np.zeros((3, 6, 3), np.uint8)}, {}, "shape"),
        ({"": np.zeros((3, 64, 6), np.float32)}, {}, "both plain and quantized"),
        ({"x_scales": np.zeros(3, np.uint8)}, {}, "no blocks"),
        ({}, {"modules_to_not_convert": ["model.layers.*.mlp"]}, "not converted"),
        ({}, {"modules_to_not_convert": {}}, None),
        ({}, {"modules_to_not_convert": {"a": 1}}, "list of names"),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, np.ndarray | None], keys: dict[str, Any], words: str | None
) -> None:
    arrays, _ = experts(1)
    for name, array in changes.items():
        arrays.pop(f"{BASE}{name}", None)
        if array is not None:
            arrays[f"{BASE}{name}"] = array
    if words is None:
        read(config(**keys), tensors(arrays))
        return
    with pytest.raises(CheckpointError) as caught:
        read(config(**keys), tensors(arrays))
    assert_one_sentence(caught.value, words)


def test_a_scale_that_is_no_number_is_refused_by_name() -> None:
    checkpoint = open_checkpoint(GOLDENS / CASE)
    arrays, _ = experts(2, EXPERTS, 2 * INNER, HIDDEN // 32)
    arrays[f"{BASE}_scales"][1, 3, 1] = 255
    checkpoint.tensors.update(read(config(), tensors(arrays))[0])  # type: ignore[attr-defined]
    stage = build_llm(checkpoint)
    quantize_stage(stage, stored_recipe("stored"))
    name = "model.layers.0.mlp.experts.up_proj"
    with pytest.raises(CheckpointError, match=rf"{name}\.weight holds scales that are not finite"):
        [make() for make in stage.producers[f"{name}.codes"].chunks()]
