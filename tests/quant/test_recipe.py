"""Recipes: sections, rules in order, and every mistake answered with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewright.errors import RecipeError
from edgewright.formats import FloatFormat, IntFormat, StoredFormat
from edgewright.quant.recipe_file import builtin_names, load_recipe, parse_recipe

GOOD = """\
recipe: my-mix
body: {format: int4, group: 64}
lm_head: {format: int8}
embedding: {format: float16}
rules:
  - pattern: "model.layers.*.mlp.*"
    format: int8
    group: 128
    zero_point: true
  - {pattern: "model.layers.1.mlp.down_proj", format: float32}
"""
MODULES = [
    ("model.embed_tokens", "embedding"),
    ("model.layers.0.self_attn.q_proj", "body"),
    ("model.layers.0.mlp.up_proj", "body"),
    ("model.layers.1.mlp.down_proj", "body"),
    ("lm_head", "lm_head"),
]


def test_sections_and_rules() -> None:
    recipe = parse_recipe(GOOD, "mix.yaml")
    assert recipe.name == "my-mix"
    assert [rule.where for rule in recipe.rules] == ["mix.yaml:6", "mix.yaml:10"]
    assert recipe.resolve(MODULES) == {
        "model.embed_tokens": FloatFormat("float16"),
        "model.layers.0.self_attn.q_proj": IntFormat(4, 64, False),
        "model.layers.0.mlp.up_proj": IntFormat(8, 128, True),
        "model.layers.1.mlp.down_proj": FloatFormat("float32"),
        "lm_head": IntFormat(8, 32, False),
    }


def test_the_last_rule_that_matches_wins() -> None:
    swapped = parse_recipe(
        "body: {format: int4}\nlm_head: {format: int4}\nembedding: {format: int4}\n"
        "rules:\n- {pattern: 'model.layers.*', format: float32}\n- {pattern: '*.mlp.*', format: int8}\n"
        "- {pattern: lm_head, format: float16}\n",
        "swapped.yaml",
    )
    resolved = swapped.resolve(MODULES)
    assert resolved["model.layers.1.mlp.down_proj"] == IntFormat(8, 32, False)
    assert resolved["lm_head"] == FloatFormat("float16")
    assert resolved["model.layers.0.self_attn.q_proj"] == FloatFormat("float32")
    assert swapped.name == "swapped"  # the file's name where the recipe gives none


def test_patterns_are_anchored_and_know_the_case() -> None:
    for pattern in ("mlp", "Lm_head", "model.layers.0"):
        recipe = parse_recipe(GOOD + f"  - {{pattern: '{pattern}', format: int4}}\n", "r.yaml")
        with pytest.raises(RecipeError, match=r"r\.yaml:11: the pattern .* matches no module"):
            recipe.resolve(MODULES)


def test_a_pattern_that_matches_nothing_names_line_and_neighbour() -> None:
    recipe = parse_recipe(GOOD + "  - {pattern: model.layers.0.mlp.upproj, format: int4}\n", "mix.yaml")
    with pytest.raises(RecipeError) as error:
        recipe.resolve(MODULES)
    assert str(error.value) == (
        "mix.yaml:11: the pattern 'model.layers.0.mlp.upproj' matches no module; "
        "the nearest name is model.layers.0.mlp.up_proj."
    )


BODY = "body: {format: int4}\n"
SECTIONS = "lm_head: {format: int8}\nembedding: {format: int8}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "body: {format: int5}\n" + SECTIONS,
            "r.yaml:1: the format 'int5' is unknown; known are float32, float",
        ),
        ("body: {format: 4}\n" + SECTIONS, "r.yaml:1: the format 4 is unknown"),
        ("body: {format: [int4]}\n" + SECTIONS, "r.yaml:1: the format ['int4'] is unknown"),
        ("body: {group: 32}\n" + SECTIONS, "r.yaml:1: group need a format"),
        ("body: {}\n" + SECTIONS, "r.yaml:1: the section 'body' needs a format"),
        ("body: int4\n" + SECTIONS, "r.yaml:1: expected a mapping with the keys format, group"),
        ("body:\n" + SECTIONS, "r.yaml:1: expected a mapping"),
        ("\nbody: {format: int4, group: 48}\n" + SECTIONS, "r.yaml:2: the group 48 is not one of 32, 64, 128"),
        ("body: {format: int4, group: '32'}\n" + SECTIONS, "r.yaml:1: the group '32' is not one of"),
        ("body: {format: int4, group: true}\n" + SECTIONS, "r.yaml:1: the group True is not one of"),
        ("body: {format: int4, zero_point: 1}\n" + SECTIONS, "r.yaml:1: zero_point must be true or false, not 1"),
        (
            "body: {format: int4, activations: fp16}\n" + SECTIONS,
            "r.yaml:1: expected a mapping with the keys format, mode",
        ),
        ("body: {format: int4, activation: int8}\n" + SECTIONS, "unknown key 'activation'; did you mean activations?"),
        ("body: {format: stored, group: 32}\n" + SECTIONS, "r.yaml:1: group have no meaning for stored"),
        (
            "body: {format: float16, activations: int8}\n" + SECTIONS,
            "r.yaml:1: activations have no meaning for float16",
        ),
        ("body: {format: float16, group: 32}\n" + SECTIONS, "r.yaml:1: group have no meaning for float16"),
        (
            "body: {format: float32, zero_point: true, group: 32}\n" + SECTIONS,
            "r.yaml:1: group and zero_point have no meaning for float32",
        ),
        (SECTIONS + "body:\n  format: int4\n  gruop: 64\n", "r.yaml:5: unknown key 'gruop'; did you mean group?"),
        ("boddy: {format: int4}\n" + SECTIONS, "r.yaml:1: unknown key 'boddy'; did you mean body?"),
        ("xyz: 1\n" + SECTIONS, "r.yaml:1: unknown key 'xyz'; known are recipe, extends, body, lm_head, embedding"),
        ("body: {format: int4}\nbody: {format: int8}\n" + SECTIONS, "r.yaml:2: the key 'body' stands twice"),
        ("body: {format: int4, format: int8}\n" + SECTIONS, "r.yaml:1: the key 'format' stands twice"),
        (SECTIONS, "r.yaml: the section 'body' is missing; a recipe has body, lm_head, embedding"),
        ("body: {format: int4}\nembedding: {format: int8}\n", "r.yaml: the section 'lm_head' is missing"),
        ("- body\n- lm_head\n", "r.yaml:1: expected a mapping with the keys recipe, extends, body"),
        ("just text\n", "r.yaml:1: expected a mapping"),
        ("", "r.yaml: expected a mapping"),
        ("# only a comment\n", "r.yaml: expected a mapping"),
        ("body: {format: int4\n" + SECTIONS, "r.yaml:2: not valid YAML"),
        ("body: {format: int4}\n\tlm_head: 1\n", "r.yaml:2: not valid YAML"),
        (GOOD + "---\nbody: {format: int4}\n", "r.yaml:11: not valid YAML"),
        (BODY + SECTIONS + "rules: {pattern: a, format: int8}\n", "r.yaml:4: rules must be a list"),
        (
            "body: {format: int4}\n" + SECTIONS + "rules:\n- lm_head\n",
            "r.yaml:5: expected a mapping with the keys patt",
        ),
        (BODY + SECTIONS + "rules:\n- {format: int8}\n", "r.yaml:5: a rule needs a pattern"),
        (
            "body: {format: int4}\n" + SECTIONS + "rules:\n- {pattern: '', format: int8}\n",
            "r.yaml:5: a rule needs a pat",
        ),
        (
            "body: {format: int4}\n" + SECTIONS + "rules:\n- {pattern: 3, format: int8}\n",
            "r.yaml:5: a rule needs a patt",
        ),
        (BODY + SECTIONS + "rules:\n\n- {pattern: a}\n", "r.yaml:6: the rule 'a' says nothing"),
        ("recipe: [a]\nbody: {format: int4}\n" + SECTIONS, "r.yaml:1: the recipe's name must be text"),
    ],
)
def test_mistakes_are_answered_with_file_and_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, "r.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_built_in_recipes() -> None:
    assert {"float16", "float32", "int4", "int8"} <= set(builtin_names())
    for name in builtin_names():
        assert load_recipe(name).name == name
    int4 = load_recipe("int4")
    assert int4.body == IntFormat(4, 32, False)
    assert int4.lm_head == int4.embedding
    for name in ("float32", "float16"):
        recipe = load_recipe(name)
        assert {recipe.body, recipe.lm_head, recipe.embedding} == {FloatFormat(name)}


def test_inputs_in_float32_and_weights_as_stored() -> None:
    recipe = parse_recipe(
        "body: {format: int4, activations: float32}\nlm_head: {format: int8, activations: int8}\n"
        "embedding: {format: stored}\n",
        "r.yaml",
    )
    assert recipe.body == IntFormat(4, 32, False, int8_activations=False)
    assert recipe.body != IntFormat(4, 32, False)
    assert recipe.lm_head == IntFormat(8, 32, False)
    assert recipe.embedding == StoredFormat()
    stored = load_recipe("stored")
    assert {stored.body, stored.lm_head, stored.embedding} == {StoredFormat()}


def test_recipes_from_files(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert load_recipe(str(path)) == parse_recipe(GOOD, "mix.yaml")
    path.write_bytes(b"\xff\xfe\x00body")
    with pytest.raises(RecipeError, match=r"mix\.yaml"):
        load_recipe(str(path))
    with pytest.raises(RecipeError, match=r"There is no recipe 'int3': did you mean int\d\?"):
        load_recipe("int3")
    with pytest.raises(RecipeError, match="There is no recipe"):
        load_recipe(str(tmp_path))
