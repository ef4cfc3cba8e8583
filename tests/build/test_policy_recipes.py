"""Recipes over the stages of a policy: sections, rules that hold in some stages only, projections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgewright.build.key import policy_recipe
from edgewright.errors import RecipeError
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from policy_builds import deploy_policy, request_for

PLAIN = "body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
STAGES = {
    "vision": [("tower.patch_embedding", "projection"), ("tower.0.q_proj", "body")],
    "prefix": [("words", "embedding"), ("reader.0.q_proj", "body")],
    "denoise": [("actor.0.q_proj", "body"), ("action_in_proj", "projection")],
}


def labels(text: str) -> dict[str, str]:
    recipe = parse_recipe(PLAIN + text, "r.yaml")
    found = recipe.stage_choices(STAGES)
    assert list(found) == list(STAGES)
    return {module: choice.weight.label for stage in found.values() for module, choice in stage.items()}


def test_a_recipe_without_stages_holds_for_all_of_them() -> None:
    assert labels("") == {
        "tower.patch_embedding": "float32",
        "tower.0.q_proj": "int8 group 32",
        "words": "int8 group 32",
        "reader.0.q_proj": "int8 group 32",
        "actor.0.q_proj": "int8 group 32",
        "action_in_proj": "float32",
    }


def test_projections_follow_rules_alone() -> None:
    assert labels("rules:\n  - {pattern: action_in_proj, format: int4}\n")["action_in_proj"] == "int4 group 32"
    found = labels("rules:\n  - {class: projection, format: float16}\n")
    assert (found["action_in_proj"], found["tower.patch_embedding"]) == ("float16", "float16")


def test_a_pattern_may_match_in_one_stage_and_must_in_some() -> None:
    found = labels("rules:\n  - {pattern: 'tower.*.q_proj', format: fp8}\n")
    assert found["tower.0.q_proj"] == "fp8 tensor"
    assert found["actor.0.q_proj"] == "int8 group 32"
    with pytest.raises(RecipeError, match=r"r\.yaml:5: the pattern 'tovver\.\*' matches no module"):
        labels("rules:\n  - {pattern: 'tovver.*', format: fp8}\n")


def test_a_stage_has_its_section_and_takes_over_the_rules_around_it() -> None:
    text = (
        "rules:\n  - {pattern: 'tower.*.q_proj', format: fp8}\n  - {pattern: 'actor.*', format: int4}\n"
        "stages:\n  denoise: {body: {format: float16}}\n  prefix: {embedding: {format: float32}}\n"
    )
    found = labels(text)
    assert found["tower.0.q_proj"] == "fp8 tensor"
    assert found["actor.0.q_proj"] == "int4 group 32"
    assert found["words"] == "float32"
    assert found["reader.0.q_proj"] == "int8 group 32"


def test_a_rule_of_a_section_has_to_match_in_its_stage() -> None:
    text = "stages:\n  denoise:\n    rules:\n      - {pattern: 'tower.*', format: int4}\n"
    with pytest.raises(RecipeError, match=r"r\.yaml:7: the pattern 'tower\.\*' matches no module"):
        labels(text)


def test_stages_that_a_policy_lacks() -> None:
    with pytest.raises(RecipeError, match="the model has no stage 'llm'; it has vision, prefix, denoise"):
        policy_recipe(parse_recipe(PLAIN + "stages: {llm: {kv: none}}\n", "r.yaml"))


def test_stages_are_part_of_what_a_build_depends_on() -> None:
    one = parse_recipe(PLAIN, "r.yaml")
    other = parse_recipe(PLAIN + "stages: {denoise: {body: {format: int4}}}\n", "r.yaml")
    assert "stages" not in one.to_json()
    assert other.to_json()["stages"]["denoise"]["body"]["bits"] == 4


def formats(recipe: Recipe | str, folder: Path, **features: Any) -> dict[str, str]:
    asked = request_for("pi05", {name.replace("_", "-"): value for name, value in features.items()})
    built = deploy_policy("pi05", folder, recipe, policy=asked)
    names = {"bits": lambda m: f"int{m['bits']}", "dtype": lambda m: str(m["dtype"])}
    return {
        m["module"]: next((name(m) for key, name in names.items() if key in m), "other")
        for m in built.manifest.recipe["modules"]
    }


def test_rules_about_modules_of_a_time_table(tmp_path: Path) -> None:
    """The modulations are linears of the graph, or rows of a table that no rule touches; a recipe holds for both."""
    text = PLAIN + "rules:\n  - {pattern: '*layernorm.dense', format: int4}\n"
    recipe = parse_recipe(text, "r.yaml")
    assert not any(name.endswith("dense") for name in formats(recipe, tmp_path / "table"))
    plain = formats(recipe, tmp_path / "plain", time_table=False)
    assert {found for name, found in plain.items() if name.endswith("layernorm.dense")} == {"int4"}


def test_builtin_recipes_fit_policies(tmp_path: Path) -> None:
    for name in ("stored", "int4", "policy-int8"):
        found = formats(load_recipe(name), tmp_path / name)
        assert found["action_out_proj"] == "float32"
