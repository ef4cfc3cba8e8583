"""Modules that stay floats, and heads tied to their table: what was asked for is what a build takes over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import CheckpointError
from edgewright.formats import BlockFormat
from edgewright.models import build_llm
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.recipe import stored_recipe
from llama_files import CONFIG, llama_tensors, write_checkpoint, write_llama
from quantizer_cases import recipe_of, run, samples_of, write

MSE = "body: {format: int8, group: 32, algorithm: mse}\n"
STATIC = "activations: {format: int8, mode: static}\n"


def applied(checkpoint: Checkpoint) -> dict[str, Applied]:
    """Take a quantized checkpoint over."""
    return {one.module: one for one in quantize_stage(build_llm(checkpoint), stored_recipe("stored"))}


def made(source: Path, text: str, folder: Path) -> Checkpoint:
    checkpoint = open_checkpoint(source)
    samples = samples_of(checkpoint) if recipe_of(text).needs_data else None
    return open_checkpoint(write(folder, checkpoint, text, samples, run(checkpoint, text, samples)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("head", "table"),
    [("bfloat16", "float16"), ("float16", "bfloat16"), ("float32", "float16"), ("float16", "float16")],
)
@pytest.mark.parametrize("rotation", ["", "transforms: {rotation: values}\n"])
def test_float_dtypes_are_those_of_the_recipe(tied: bool, head: str, table: str, rotation: str, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", seed=3, tie_word_embeddings=tied)
    text = f"{MSE}lm_head: {{format: {head}}}\nembedding: {{format: {table}}}\n{rotation}"
    text += "rules: [{pattern: '*.v_proj', format: float16}]\n"
    plain = build_llm(open_checkpoint(source))
    wanted = {
        one.module: one.format.label
        for one in quantize_stage(plain, recipe_of(text.replace(rotation, "").replace(", algorithm: mse", "")))
    }
    found = applied(made(source, text, tmp_path / "out"))
    assert {name: one.format.label for name, one in found.items()} == wanted


def test_float32_of_a_float16_source_is_float32(tmp_path: Path) -> None:
    half = {name: values.astype(np.float16) for name, values in llama_tensors(CONFIG, 1).items()}
    source = write_checkpoint(tmp_path / "source", CONFIG, half)
    text = MSE + "lm_head: {format: float32}\nembedding: {format: float16}\n"
    checkpoint = made(source, text, tmp_path / "out")
    found = applied(checkpoint)
    assert (found["lm_head"].format.label, found["model.embed_tokens"].format.label) == ("float32", "float16")
    assert checkpoint.tensors["lm_head.weight"].dtype == "float16"  # no larger than it was


def test_a_weight_too_large_for_its_float_names_the_module(tmp_path: Path) -> None:
    tensors = llama_tensors(CONFIG, 1)
    tensors["lm_head.weight"][3, 5] = 7e4
    source = write_checkpoint(tmp_path / "source", CONFIG, tensors)
    text = MSE + "lm_head: {format: float16}\nembedding: {format: float16}\n"
    with pytest.raises(CheckpointError, match=r"lm_head\.weight holds values that are too large for float16"):
        made(source, text, tmp_path / "out")
    assert applied(made(source, text.replace("float16", "bfloat16", 1), tmp_path / "bf"))["lm_head"]


@pytest.mark.parametrize("float_head", [False, True])
def test_a_tied_head_keeps_its_activations_and_is_reported(float_head: bool, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", seed=2, tie_word_embeddings=True)
    fmt = "float16" if float_head else "int8"
    text = MSE + f"lm_head: {{format: {fmt}}}\nembedding: {{format: {fmt}}}\n{STATIC}"
    checkpoint = open_checkpoint(source)
    samples = samples_of(checkpoint)
    done = run(checkpoint, text, samples)
    reports = {report.module: report for report in done.reports}
    head, table = reports["lm_head"], reports["model.embed_tokens"]
    assert head.algorithm == ("none" if float_head else "shared")
    assert head.activation == "int8 static tensor"
    assert table.activation is None
    assert head.output_error is not None
    assert head.output_error < 1e-3
    assert head.weight_rmse == table.weight_rmse
    if not float_head:
        assert (head.bytes, head.float_bytes) == (0, 0)
    written = open_checkpoint(write(tmp_path / "out", checkpoint, text, samples, done))
    assert "lm_head.weight" not in written.tensors
    found = applied(written)
    assert found["lm_head"].inputs is not None
    assert found["lm_head"].inputs.static
    assert found["model.embed_tokens"].inputs is None
    assert isinstance(found["lm_head"].format, BlockFormat) != float_head
    stage = build_llm(written)
    quantize_stage(stage, stored_recipe("stored"))
    assert float_head or "lm_head shares the codes of model.embed_tokens.weight" in stage.notes


def test_folders_without_the_list_still_open_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", seed=3)
    text = MSE + "lm_head: {format: float16}\nembedding: {format: float32}\n"
    made(source, text, tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    inner = config["quantization_config"]
    assert inner["floats"] == {"lm_head": {"dtype": "float16"}, "model.embed_tokens": {"dtype": "float32"}}
    old = {key: value for key, value in inner.items() if key not in ("floats", "notes", "taken")}
    path.write_text(json.dumps({**config, "quantization_config": old}))
    assert applied(open_checkpoint(tmp_path / "out"))["lm_head"].format.label == "float16"
    for floats in (
        {"lm_head": {"dtype": "int4"}},
        {"lm_head": {}},
        {"lm_head": "float16"},
        {"absent": {"dtype": "float16"}},
        {"model.layers.0.input_layernorm": {"dtype": "float16"}},
        ["lm_head"],
    ):
        path.write_text(json.dumps({**config, "quantization_config": {**inner, "floats": floats}}))
        with pytest.raises(CheckpointError):
            open_checkpoint(tmp_path / "out")
