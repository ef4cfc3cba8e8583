"""One segment: folds change nothing, factors go where they belong, corrections and errors name the module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import ArrayTensor, arrays, with_tensors
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import CheckpointError, RecipeError
from edgewright.formats import BlockFormat, FloatFormat, LinearInput
from edgewright.quant.moments import Moments
from edgewright.quantizer.layer import Outcome, _scale, quantize_segment
from edgewright.quantizer.plan import Group, plan_of
from edgewright.quantizer.stream import FloatModel
from quantizer_cases import AWQ, INT4, checkpoint_of, recipe_of, run, samples_of, stage_of, write

FAMILIES = [
    *("llama", "gemma2", "gemma3_text", "qwen3", "phi3", "gpt2", "falcon", "olmo2", "cohere", "qwen3_moe", "gpt_oss"),
    *("mamba2", "lfm2", "qwen3_next", "gemma4_text", "deepseek_v3"),
]
#: Where a factor can be folded into the model, at least so many inputs a layer.
FOLDS = {"llama": 4, "gemma2": 4, "qwen3": 4, "phi3": 2, "falcon": 1, "mamba2": 1}
KEEP = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_folds_change_no_logits(family: str, tmp_path: Path) -> None:
    checkpoint, rng = checkpoint_of(family), np.random.default_rng(0)
    stage = stage_of(family)
    plan = plan_of(stage, recipe_of(KEEP))
    model = FloatModel(stage, tmp_path, None, 1)
    (row,) = samples_of(checkpoint, 1).rows
    positions = np.arange(len(row))
    before = model.logits(model.whole(), row, positions)
    outcome = Outcome()

    def now(name: str) -> np.ndarray:
        return outcome.changed[name] if name in outcome.changed else model.weight(name)

    folded = 0
    for groups in plan.groups:
        for group in groups:
            if group.fold is None or any(target.tied for target in group.targets):
                continue
            width = group.targets[0].shape[1]
            factors = np.exp(rng.uniform(-1, 1, width)).astype(np.float32)
            if group.fold.heads is not None:
                heads, kv_heads = group.fold.heads
                shared = factors.reshape(kv_heads, heads // kv_heads, -1)[:, :1]
                factors = np.repeat(shared, heads // kv_heads, axis=1).reshape(-1)
            moments = Moments("m", width)
            assert _scale(group, moments, factors, now, outcome).multiply is None
            folded += 1
    assert folded >= FOLDS.get(family, 0)
    for name, values in outcome.changed.items():
        model.set_weight(name, values)
    after = model.logits(model.whole(), row, positions)
    assert np.abs(after - before).max() <= 1e-5 * max(1.0, np.abs(before).max())
    if folded:
        assert not np.array_equal(after, before)


def llama_groups(recipe: str) -> tuple[list[Group], dict[str, np.ndarray]]:
    checkpoint = checkpoint_of("llama")
    plan = plan_of(stage_of("llama"), recipe_of(recipe))
    return list(plan.groups[1]), arrays(checkpoint)


def moments_of(groups: list[Group], seed: int = 0) -> dict[str, Moments]:
    rng, found = np.random.default_rng(seed), {}
    for group in groups:
        width = group.targets[0].shape[1]
        found[group.value] = Moments(group.targets[0].module, width)
        found[group.value].add(
            (rng.standard_normal((300, width)) * np.exp(rng.standard_normal(width)) + 1).astype("f4")
        )
    return found


def weight_of(outcome: Outcome, module: str) -> np.ndarray:
    (done,) = [m for m in outcome.modules if m.target.module == module]
    assert isinstance(done.format, BlockFormat)
    values = done.format.decode(done.parts, done.target.shape[1])
    return values if done.input is None or done.input.multiply is None else values * done.input.multiply


def test_factors_that_do_not_fold_stay_at_the_module() -> None:
    groups, weights = llama_groups(AWQ)
    groups = [replace(group, fold=None) for group in groups]
    outcome = quantize_segment(groups, moments_of(groups), weights.__getitem__, recipe_of(AWQ).transforms)
    for done in outcome.modules:
        assert done.input is not None
        assert done.input.multiply is not None
        whole = weights[done.target.weight]
        assert np.linalg.norm(weight_of(outcome, done.target.module) - whole) < 0.2 * np.linalg.norm(whole)


def test_modules_kept_as_floats_join_in_only_where_factors_fold() -> None:
    recipe = AWQ + "rules:\n  - {pattern: '*.k_proj', format: float16}\n"
    groups, weights = llama_groups(recipe)
    transforms = recipe_of(recipe).transforms
    folded = quantize_segment(groups, moments_of(groups), weights.__getitem__, transforms)
    alone = [replace(group, fold=None) for group in groups]
    kept = quantize_segment(alone, moments_of(alone), weights.__getitem__, transforms)
    name = "model.layers.0.self_attn.k_proj.weight"
    assert name in folded.changed
    assert name not in kept.changed
    (done,) = [m for m in kept.modules if m.target.weight == name]
    assert isinstance(done.format, FloatFormat)
    assert done.input is None
    np.testing.assert_array_equal(done.parts["codes"], weights[name])


def test_smoothing_is_for_rounded_activations_alone() -> None:
    recipe = INT4.replace("gptq", "mse") + "transforms: {smoothing: 0.5}\n"
    recipe += "rules:\n  - {pattern: '*.down_proj', activations: {format: int8}}\n"
    groups, weights = llama_groups(recipe)
    outcome = quantize_segment(groups, moments_of(groups), weights.__getitem__, recipe_of(recipe).transforms)
    layer = "model.layers.0.mlp"
    assert set(outcome.changed) == {f"{layer}.down_proj.weight", f"{layer}.up_proj.weight"}
    for done in outcome.modules:
        assert (done.input is not None) == (done.target.module == f"{layer}.down_proj")


def test_the_report_says_what_was_done() -> None:
    rules = "rules:\n  - {pattern: '*.o_proj', format: float16}\n"
    groups, weights = llama_groups(AWQ + rules)
    transforms = recipe_of(AWQ).transforms
    seen = quantize_segment(groups, moments_of(groups), weights.__getitem__, transforms)
    blind = quantize_segment(groups, {}, weights.__getitem__, transforms)
    for outcome, word in ((seen, "awq"), (blind, "mse")):
        for done in outcome.modules:
            assert done.report.algorithm == ("none" if done.target.module.endswith("o_proj") else word)


def test_bias_correction_gives_the_mean_output_back() -> None:
    recipe = (
        INT4.replace("gptq", "minmax").replace("int4", "int4, group: 128") + "transforms: {bias_correction: true}\n"
    )
    groups, weights = llama_groups(recipe)
    moments = moments_of(groups)
    outcome = quantize_segment(groups, moments, weights.__getitem__, recipe_of(recipe).transforms)
    for group in groups:
        for target in group.targets:
            mean = moments[group.value].mean
            bias = outcome.changed[f"{target.module}.bias"]
            off = (weights[target.weight] - weight_of(outcome, target.module)) @ mean
            np.testing.assert_allclose(bias, off, atol=1e-4 * np.abs(off).max())
            assert target.module in outcome.biases


def test_static_scales_are_those_of_the_scaled_inputs() -> None:
    recipe = (
        "body: {format: int8, group: channel}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
        "activations: {format: int8, mode: static}\ntransforms: {smoothing: 0.5}\n"
    )
    groups, weights = llama_groups(recipe)
    moments = moments_of(groups)
    outcome = quantize_segment(groups, moments, weights.__getitem__, recipe_of(recipe).transforms)
    for done in outcome.modules:
        (group,) = [g for g in groups if done.target in g.targets]
        assert isinstance(done.input, LinearInput)
        assert done.input.scale is not None
        factors = outcome.changed[done.target.weight][0] / weights[done.target.weight][0]
        rows = weights[done.target.weight] != 0
        assert rows[0].all()
        largest = (moments[group.value].largest / np.abs(factors)).max()
        if done.target.module.endswith("v_proj"):
            continue  # its rows took the inverse of another module's factors
        if not done.target.module.endswith("up_proj"):
            assert done.input.scale[0] * 127 == pytest.approx(largest, rel=1e-3)


def test_static_activations_need_statistics() -> None:
    recipe = INT4 + "activations: {format: int8, mode: static}\n"
    groups, weights = llama_groups(recipe)
    with pytest.raises(RecipeError, match=r"r\.yaml:4: nothing is known of the inputs of model\.layers\.0"):
        quantize_segment(groups, {}, weights.__getitem__, recipe_of(recipe).transforms)


@pytest.mark.parametrize("recipe", [INT4, AWQ])
def test_weights_that_are_not_finite_name_the_module(recipe: str) -> None:
    groups, weights = llama_groups(recipe)
    name = "model.layers.0.self_attn.q_proj.weight"
    weights[name] = weights[name].copy()
    weights[name][3, 5] = np.inf
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.self_attn\.q_proj\.weight holds values"):
        quantize_segment(groups, moments_of(groups), weights.__getitem__, recipe_of(recipe).transforms)


def test_scales_a_format_cannot_hold_name_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint = checkpoint_of("llama")
    name = "model.layers.2.mlp.down_proj.weight"
    large = with_tensors(checkpoint, **{name: ArrayTensor(name, arrays(checkpoint)[name] * np.float32(1e8))})
    recipe = INT4.replace("int4", "int4, scales: float16").replace("gptq", "mse")
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.mlp\.down_proj can't be quantized: .* float16"):
        run(large, recipe, None)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_experts_are_rounded_without_factors(family: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family)
    samples = samples_of(checkpoint)
    recipe = (
        "body: {format: int8, group: channel, algorithm: awq}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
        "rules:\n  - {class: body, activations: {format: int8, mode: static}}\n"
    )
    done = run(checkpoint, recipe, samples)
    reports = {report.module: report for report in done.reports}
    experts = [name for name, report in reports.items() if report.kind == "experts"]
    assert experts
    for name in experts:
        inner = name.endswith("down_proj")
        assert (reports[name].output_error is None) == inner
        assert reports[name].algorithm == ("mse" if inner else "awq clips alone")
    folder = write(tmp_path / "out", checkpoint, recipe, samples, done)
    assert not [name for name in open_checkpoint(folder).tensors if "experts" in name and "multiply" in name]
