"""The plan: who reads one input, where a factor folds, what is tied, what enters the cache."""

from __future__ import annotations

import pytest

from edgewright.errors import RecipeError
from edgewright.quantizer.plan import Plan, plan_of
from quantizer_cases import INT4, recipe_of, stage_of


def plan(family: str, recipe: str = INT4) -> Plan:
    return plan_of(stage_of(family), recipe_of(recipe))


def test_a_decoder_layer_has_four_inputs_and_all_fold() -> None:
    groups = plan("llama").groups[1]
    names = [[target.module.rsplit(".", 1)[1] for target in group.targets] for group in groups]
    assert sorted(names) == [["down_proj"], ["gate_proj", "up_proj"], ["o_proj"], ["q_proj", "k_proj", "v_proj"]]
    by_first = {group.targets[0].module.rsplit(".", 1)[1]: group.fold for group in groups}
    norm, values, rows = by_first["q_proj"], by_first["o_proj"], by_first["down_proj"]
    assert norm is not None
    assert norm.vectors == ("model.layers.0.input_layernorm.weight",)
    assert values is not None
    assert values.rows == ("model.layers.0.self_attn.v_proj.weight",)
    assert values.heads is not None
    assert values.heads[0] % values.heads[1] == 0
    assert rows is not None
    assert rows.rows == ("model.layers.0.mlp.up_proj.weight",)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt2", "falcon", "gemma4_text", "deepseek_v3", "qwen3_next"])
def test_every_module_is_planned_once(family: str) -> None:
    made = plan(family)
    modules = [target.module for target in made.targets]
    assert len(modules) == len(set(modules))
    assert len(made.groups) == len(made.segments) == len(made.caches)
    for target in made.targets:
        assert min(target.shape) > 0


def test_two_branches_that_read_one_norm_are_one_group() -> None:
    # In the last layer the MLP sees the wanted positions alone, which is another value.
    for groups in plan("cohere").groups[1:-2]:
        for group in groups:
            if any(target.module.endswith("q_proj") for target in group.targets):
                names = {target.module.rsplit(".", 1)[1] for target in group.targets}
                assert {"q_proj", "gate_proj"} <= names  # attention and MLP read the same norm


def test_norms_after_the_product_take_no_factor() -> None:
    for groups in plan("olmo2").groups[1:-1]:
        (group,) = [g for g in groups if g.targets[0].module.endswith("q_proj")]
        assert group.fold is None


def test_experts_have_one_input_that_is_seen_and_one_that_is_not() -> None:
    targets = [target for target in plan("qwen3_moe").targets if target.op == "Experts"]
    assert targets
    for target in targets:
        assert target.inner == target.module.endswith("down_proj")
    for groups in plan("qwen3_moe").groups:
        for group in groups:
            assert len({target.inner for target in group.targets}) == 1
            if group.targets[0].op == "Experts":
                assert group.fold is None


def test_caches_are_where_attention_keeps_its_own() -> None:
    assert [len(taps) for taps in plan("llama").caches[1:-1]] == [1] * (len(plan("llama").segments) - 2)
    shared = [len(taps) for taps in plan("gemma4_text").caches]
    assert 0 < sum(shared) < len(shared) - 2  # some layers read another one's cache


def test_rules_that_match_nothing_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml:5: the pattern .*matches no module"):
        plan("llama", INT4 + "rules:\n  - {pattern: '*.q_porj', format: int8}\n")


TIED = "body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int8}\n"


def test_a_tied_head_reads_its_tables_codes() -> None:
    for text, shares in (
        (TIED, True),
        (TIED + "activations: {format: int8, mode: dynamic}\n", True),
        # Whether a kernel rounds its inputs is no matter of the codes.
        (TIED.replace("lm_head: {format: int8", "lm_head: {format: int8, activations: float32"), True),
        (TIED.replace("lm_head: {format: int8", "lm_head: {format: int8, group: 64"), False),
        (TIED.replace("lm_head: {format: int8", "lm_head: {format: float16"), False),
    ):
        targets = {target.module: target for target in plan("gemma2", text).targets}
        assert targets["model.embed_tokens"].codes_of is None
        assert targets["lm_head"].codes_of == ("model.embed_tokens" if shares else None)
        assert targets["lm_head"].tied


def test_values_are_made_by_rows_of_a_weight_or_of_none() -> None:
    (tap,) = plan("llama").caches[1]
    assert tap.rows == "model.layers.0.self_attn.v_proj.weight"
    (tap,) = plan("gemma4_text").caches[1]
    assert tap.rows is None  # values are normed there


def test_a_cache_asked_of_a_model_without_one_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml:4: the model has no key/value cache"):
        plan("mamba2", INT4 + "kv: {format: int8}\n")


def test_smoothing_without_rounded_inputs_is_refused() -> None:
    head = INT4.replace("lm_head: {format: int8", "lm_head: {format: int8, activations: {format: int8}")
    for text in (INT4, head):  # a tied head takes no factors
        with pytest.raises(RecipeError, match=r"r\.yaml:4: smoothing moves outliers .* rounds no input"):
            plan("gemma2", text + "transforms: {smoothing: 0.5}\n")
    plan("llama", INT4 + "transforms: {smoothing: 0.5}\nactivations: {format: int8, mode: dynamic}\n")


def test_awq_for_some_of_those_that_read_one_input_is_refused() -> None:
    awq = INT4.replace("gptq", "awq")
    message = (
        r"r\.yaml:1: awq scales the input of model\.layers\.0\.self_attn\.q_proj, which "
        r"model\.layers\.0\.self_attn\.v_proj reads too \(gptq by r\.yaml:5\)"
    )
    with pytest.raises(RecipeError, match=message):
        plan("llama", awq + "rules:\n  - {pattern: '*.v_proj', algorithm: gptq}\n")
    plan("llama", awq + "rules:\n  - {pattern: '*.v_proj', format: float16}\n")
    plan("llama", awq + "rules:\n  - {pattern: '*.down_proj', algorithm: mse}\n")
