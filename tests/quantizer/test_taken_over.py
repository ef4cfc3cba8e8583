"""Codes that a GGUF file holds already: what fits is taken over, what doesn't is rounded again and said to be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import RecipeError
from edgewright.formats import IntFormat
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.producers import EncodedProducer, ExactProducer
from edgewright.quant.recipe import Recipe, stored_recipe
from edgewright.quantizer.layouts import check_layout
from gguf_files import gguf_checkpoint
from quantizer_cases import AWQ, INT4, recipe_of, run, samples_of, write

BIAS = "transforms: {bias_correction: true}\n"


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("recipe", [INT4, AWQ + BIAS, INT4.replace("gptq", "mse")])
def test_codes_that_fit_are_those_of_the_plain_recipe(kind: str, recipe: str, tmp_path: Path) -> None:
    checkpoint, _ = gguf_checkpoint(tmp_path / "m.gguf", kind, seed=len(recipe))
    samples = samples_of(checkpoint)
    done = run(checkpoint, recipe, samples)
    assert {report.algorithm for report in done.reports} == {"taken over"}
    assert {report.stored for report in done.reports} == {kind}
    made = build_llm(open_checkpoint(write(tmp_path / "out", checkpoint, recipe, samples, done)))
    plain = build_llm(checkpoint)
    int4, int8 = IntFormat(4, 32, False), IntFormat(8, 32, False)
    assert all(one.exact for one in quantize_stage(plain, Recipe("plain", int4, int8, int8)))
    assert all(one.exact for one in quantize_stage(made, stored_recipe("stored")))
    assert plain.producers.keys() == made.producers.keys()
    for name, producer in plain.producers.items():
        twin = made.producers[name]
        assert isinstance(twin, EncodedProducer) == isinstance(producer, ExactProducer)
        for mine, theirs in zip(producer.chunks(), twin.chunks(), strict=True):
            for one, other in zip(mine(), theirs(), strict=True):
                np.testing.assert_array_equal(one, other)


def test_what_does_not_fit_is_rounded_again_and_said_so(tmp_path: Path) -> None:
    checkpoint, _ = gguf_checkpoint(tmp_path / "m.gguf", "Q8_0", seed=2)
    samples = samples_of(checkpoint)
    done = run(checkpoint, AWQ, samples)
    reports = {report.module: report for report in done.reports}
    assert reports["lm_head"].algorithm == "taken over"
    assert reports["model.layers.0.mlp.down_proj"].algorithm == "awq"
    folder = write(tmp_path / "out", checkpoint, AWQ, samples, done)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert sorted(config["taken"]) == ["lm_head", "model.embed_tokens"]
    quantization = open_checkpoint(folder).quantization
    assert quantization is not None
    assert quantization.notes == (
        "2 weights stored as Q8_0: codes taken over unchanged",
        "7 weights stored as Q8_0: rounded a second time",
    )


def test_layouts_without_minima_refuse_them_at_the_start(tmp_path: Path) -> None:
    checkpoint, _ = gguf_checkpoint(tmp_path / "m.gguf", "Q4_1", seed=2)
    recipe = recipe_of(INT4.replace("int8", "float32"))
    with pytest.raises(RecipeError, match=r"stored as Q4_1, which the layout compressed-tensors has no place for"):
        check_layout("compressed-tensors", checkpoint, recipe)
