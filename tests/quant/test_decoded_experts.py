"""Experts in FP8, FP4 and int8 of whole rows: chosen rows alone are decoded; inputs are rounded once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from edgewright.errors import RecipeError
from edgewright.formats import BlockFormat, FloatFormat, MxFormat, Nvfp4Format, ScaledFormat
from edgewright.graph import Stage
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Recipe, Rule
from edgewright.quant.recipe_file import parse_recipe
from expert_cases import MODULE, Arrays, Run, close, experts_np, make_inputs, make_stage, make_weights, op_types

EXPERTS = 5
FORMATS = {
    fmt.label: fmt
    for fmt in (
        *(ScaledFormat(element, scope) for element in ("int8", "e4m3") for scope in ("tensor", "channel", "row-block")),
        ScaledFormat("e4m3", "block"),
        Nvfp4Format(),
        MxFormat("e4m3"),
        MxFormat("e2m1"),
    )
}
KEEP = FloatFormat("float32")


def decoded(w: Arrays, fmt: BlockFormat) -> Arrays:
    """The weights as a format holds them."""
    result = dict(w)
    for name, array in w.items():
        if name.endswith(".weight"):
            shared = fmt.survey(float(np.abs(array).max()))
            result[name] = fmt.decode({**shared, **fmt.encode(array, shared)}, array.shape[1])
    return result


@pytest.mark.parametrize("sizes", [(40, 24), (64, 130)])
@pytest.mark.parametrize("label", FORMATS)
def test_a_loop_over_codes_computes_what_the_floats_do(label: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    hidden, inner = sizes
    w = make_weights(3, n=EXPERTS, hidden=hidden, inner=inner, bias=True)
    stage = make_stage(w, "swiglu_clamped", n=EXPERTS, hidden=hidden)
    quantize_stage(stage, Recipe("test", FORMATS[label], KEEP, KEEP))
    run = Run(stage, tmp_path, "onnxruntime")
    assert "Loop" in op_types(run.stage)
    assert "Decode" not in op_types(run.stage)
    for batch, seq in ((1, 1), (2, 5)):
        x, routing = make_inputs(seq, batch, seq, n=EXPERTS, hidden=hidden)
        close(run(x, routing), experts_np(x, routing, decoded(w, FORMATS[label]), "swiglu_clamped"))


def test_formats_that_differ_go_to_the_loop(tmp_path: Path) -> None:
    w = make_weights(4, n=EXPERTS, hidden=64, inner=32)
    stage = make_stage(w, "silu", n=EXPERTS, hidden=64)
    fp8 = ScaledFormat("e4m3", "channel")
    quantize_stage(stage, Recipe("test", KEEP, KEEP, KEEP, (Rule(f"{MODULE}.down_proj", fp8, "test"),)))
    run = Run(stage, tmp_path, "onnxruntime")
    assert "Loop" in op_types(run.stage)
    x, routing = make_inputs(1, 1, 4, n=EXPERTS, hidden=64)
    mixed = {**w, "down_proj.weight": decoded(w, fp8)["down_proj.weight"]}
    close(run(x, routing), experts_np(x, routing, mixed, "silu"))


def rounded(text: str) -> Stage:
    w = make_weights(5, n=EXPERTS, hidden=64, inner=32)
    stage = make_stage(w, "silu", n=EXPERTS, hidden=64)
    quantize_stage(stage, parse_recipe(text, "r.yaml"))
    return stage


def test_the_input_of_experts_is_rounded_once() -> None:
    kept = "lm_head: {format: float32}\nembedding: {format: float32}\n"
    both = "activations: {format: int8, mode: dynamic}\n"
    stage = rounded("body: {format: int8}\n" + kept + both)
    assert op_types(stage).count("RoundInput") == 1
    with pytest.raises(RecipeError, match="other projections"):
        rounded(
            "body: {format: int8}\n"
            + kept
            + both
            + "rules:\n- {pattern: '*.up_proj', format: int8, activations: none}\n"
        )


def test_what_down_reads_is_not_said_to_be_rounded() -> None:
    w = make_weights(6, n=EXPERTS, hidden=64, inner=32)
    stage = make_stage(w, "silu", n=EXPERTS, hidden=64)
    text = "body: {format: int8}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
    applied = quantize_stage(stage, parse_recipe(text + "activations: {format: int8, mode: dynamic}\n", "r.yaml"))
    assert [a.inputs is None for a in applied] == [False, False, True]
    assert not any(dataclasses.asdict(a.format)["int8_activations"] for a in applied)
