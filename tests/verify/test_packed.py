"""Packed weights are read back from the bundle: what is wrong in them is found, and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgellm_cases import GOLDENS, Case
from edgewright.build.llm import give_cache
from edgewright.build.outside import write_table
from edgewright.build.pipeline import deploy
from edgewright.checkpoint import open_checkpoint
from edgewright.dialects.edgellm import lower
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE, write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from edgewright.runtime.embedding import SIDECAR
from edgewright.verify.shipped import ShippedTensors, leaves
from edgewright.verify.weights import check_weights

RECIPE = """\
recipe: own
body: {format: int4, group: 128, zero_point: true}
lm_head: {format: float16}
embedding: {format: float16}
"""


def lowered(name: str, recipe: str | None = None) -> Stage:
    checkpoint = open_checkpoint(GOLDENS / name if recipe else Case(name, f"prequantized/{name}").path)
    stage = build_llm(checkpoint)
    quantize_stage(stage, parse_recipe(recipe, "own") if recipe else load_recipe("stored"))
    if checkpoint.quantization is not None and recipe is None:
        stage.cache = give_cache(stage, checkpoint, checkpoint.quantization)
    return lower(stage)


def faults_of(stage: Stage, folder: Path, place: tuple[str, int] | None = None) -> tuple[str, ...]:
    """Write a stage, spoil a bit of a byte of a tensor, and return what the level `weights` finds."""
    write_stage(stage, folder)
    assert stage.outside is not None
    write_table(stage.outside, folder, lambda _: None)
    if place is not None:
        model = onnx.load(folder / MODEL_FILE, load_external_data=False)
        tensor = next(t for t in model.graph.initializer if t.name == place[0])
        start = int(next(entry.value for entry in tensor.external_data if entry.key == "offset"))
        data = bytearray((folder / WEIGHTS_FILE).read_bytes())
        data[start + place[1]] ^= 0x20
        (folder / WEIGHTS_FILE).write_bytes(bytes(data))
    return check_weights(stage, ShippedTensors(folder / MODEL_FILE, folder / SIDECAR), lambda _: None).faults


SPOILT = [
    ("mo-int4-awq-mha", "model.layers.0.mlp.up_proj.qweight", "up_proj.codes is"),
    ("mo-int4-awq-mha", "model.layers.0.mlp.up_proj.scales", "up_proj.codes is"),
    ("mo-int4-awq", "model.layers.0.self_attn.k_proj.qweight", "k_proj.codes is"),
    ("awq-g128", "model.layers.0.self_attn.q_proj.corrections", "q_proj.codes is"),
    ("mo-nvfp4", "model.layers.0.self_attn.qkv_proj.weight", "q_proj.codes is"),
    ("mo-nvfp4", "model.layers.0.self_attn.qkv_proj.weight_scale", "q_proj.codes is"),
    ("mo-nvfp4", "model.layers.0.mlp.down_proj.weight_scale_2", "down_proj.codes"),
    ("mo-fp8", "model.layers.0.self_attn.o_proj.weight", "o_proj.codes is"),
    ("mo-mxfp8", "model.layers.0.mlp.gate_proj.weight_scale", "gate_proj.codes"),
    ("mo-int8-sq", "model.layers.0.mlp.up_proj.weight_scale", "up_proj.codes is"),
]


@pytest.mark.parametrize(("name", "tensor", "words"), SPOILT, ids=lambda value: value if "." not in value else None)
def test_a_bit_that_is_wrong_is_found(name: str, tensor: str, words: str, tmp_path: Path) -> None:
    stage = lowered(name)
    assert faults_of(stage, tmp_path / "whole") == ()
    scalar = tensor.endswith("_scale_2")
    found = faults_of(stage, tmp_path / "spoilt", (tensor, 3 if scalar or "corrections" in tensor else 1))
    assert len(found) == (3 if "qkv_proj.weight_scale_2" in tensor else 1)
    assert words in found[0]


def test_parts_of_joined_weights_have_their_own_rows(tmp_path: Path) -> None:
    """The last byte of queries, keys and values in one is of the values."""
    stage = lowered("mo-nvfp4")
    size = next(p for p in stage.producers.values() if "qkv_proj" in p.specs[0].name).specs[0].nbytes
    found = faults_of(stage, tmp_path, ("model.layers.0.self_attn.qkv_proj.weight", size - 1))
    assert len(found) == 1
    assert "v_proj.codes is" in found[0]
    assert "row 31" in found[0]


def test_codes_that_are_made_here_are_checked_too(tmp_path: Path) -> None:
    """Zero points of rounded weights use all codes: corrections carry them, and give them back."""
    stage = lowered("trained", RECIPE)
    assert any(name.endswith(".corrections") for name in stage.producers)
    assert faults_of(stage, tmp_path / "whole") == ()
    (found,) = faults_of(stage, tmp_path / "spoilt", ("model.layers.0.mlp.up_proj.qweight", 5))
    assert "up_proj.codes" in found


def test_a_leaf_gives_the_parts_that_were_packed(tmp_path: Path) -> None:
    stage = lowered("awq-g128")
    write_stage(stage, tmp_path)
    tensors = ShippedTensors(tmp_path / MODEL_FILE)
    leaf = next(leaf for leaf in leaves(stage) if leaf.name.endswith("q_proj.codes"))
    for start, stop in ((0, 128), (32, 96), (127, 128)):
        shipped, made = tensors.leaf_rows(leaf, start, stop), leaf.producer.chunk(start, stop)  # type: ignore[attr-defined]
        for a, b in zip(shipped, made, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_recipe_of_ones_own_verifies(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(RECIPE)
    built = deploy(GOLDENS / "trained", tmp_path / "out", recipe=str(recipe), target="tensorrt-edge-llm")
    assert built.manifest.verdict["status"] == "partly checked"
    assert built.manifest.verdict["levels"]["weights"]["status"] == "passed"
