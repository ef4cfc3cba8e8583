"""Recipes that say what has no effect, and files made to break the reader: each is one sentence with file and line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.errors import RecipeError
from edgewright.formats import FloatFormat, IntFormat
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe, parse_recipe

PLAIN = "body: {format: int4}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
MODULES = [
    ("model.embed_tokens", "embedding"),
    ("model.layers.0.mlp.c_proj", "body"),
    ("model.layers.1.mlp.c_proj", "body"),
    ("lm_head", "lm_head"),
]
ACTIVATIONS = "activations: {format: int8, mode: static"


def refusal(text: str, *, resolve: bool = False) -> str:
    """The sentence a recipe is refused with, when it is read or (`resolve`) when it meets a model."""
    if resolve:
        recipe = parse_recipe(text, "r.yaml")
        with pytest.raises(RecipeError) as error:
            recipe.choices(MODULES)
    else:
        with pytest.raises(RecipeError) as error:
            parse_recipe(text, "r.yaml")
    sentence = str(error.value)
    assert len(sentence) < 400
    assert sentence.isprintable()
    return sentence


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (ACTIVATIONS + ", percentile: 99}\n", "r.yaml:4: percentile has no meaning without 'range: percentile'"),
        (ACTIVATIONS + ", range: mse, percentile: 99}\n", "r.yaml:4: percentile has no meaning"),
        (
            "rules:\n- {class: embedding, activations: {format: int8}}\n",
            "r.yaml:5: the inputs of an embedding are token",
        ),
        (
            "rules:\n- {pattern: lm_head, format: float16, algorithm: mse}\n",
            "r.yaml:5: algorithm have no meaning for fl",
        ),
        (
            "rules:\n- {pattern: lm_head, format: stored, algorithm: gptq}\n",
            "r.yaml:5: algorithm have no meaning for st",
        ),
    ],
)
def test_words_without_a_meaning(more: str, message: str) -> None:
    assert message in refusal(PLAIN + more)


def test_words_without_a_meaning_in_a_section() -> None:
    text = PLAIN.replace("embedding: {format: int8", "embedding: {format: int8, activations: {format: fp8}")
    assert "r.yaml:3: the inputs of an embedding are token ids" in refusal(text)
    text = PLAIN.replace("lm_head: {format: int8", "lm_head: {format: bfloat16, algorithm: minmax")
    assert "r.yaml:2: algorithm have no meaning for bfloat16" in refusal(text)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            "- {pattern: '*embed*', activations: {format: int8}}\n",
            "r.yaml:5: the rule '*embed*' matches nothing but emb",
        ),
        (
            "- {pattern: '*.0.*', algorithm: gptq}\n- {pattern: '*.0.*', format: float16}\n",
            "r.yaml:5: the rule '*.0.*' has an algorithm, but all it matches keeps the numbers it has",
        ),
    ],
)
def test_rules_whose_modules_have_no_use_for_them(rules: str, message: str) -> None:
    assert message in refusal(PLAIN + "rules:\n" + rules, resolve=True)


def test_a_rule_that_some_module_has_a_use_for_is_none_of_them() -> None:
    rules = (
        "rules:\n- {pattern: '*', activations: {format: int8}, algorithm: mse}\n- {pattern: lm_head, format: float16}\n"
    )
    choices = parse_recipe(PLAIN + rules, "r.yaml").choices(MODULES)
    assert choices["lm_head"].weight == FloatFormat("float16")
    assert choices["model.layers.0.mlp.c_proj"].algorithm.name == "mse"


def test_two_rules_on_one_line_are_two() -> None:
    first, second = "{pattern: '*.0.*', format: int8}", "{pattern: '*c_proj', format: fp8}"
    message = refusal(PLAIN + f"rules: [{first}, {second}]\n", resolve=True)
    assert "r.yaml:4: the rule '*.0.*' has no effect, because the rules at r.yaml:4 override it" in message
    choices = parse_recipe(PLAIN + f"rules: [{second}, {first}]\n", "r.yaml").choices(MODULES)
    assert choices["model.layers.0.mlp.c_proj"].weight == IntFormat(8, 32, False)


def extended(tmp_path: Path, name: str, rules: str = "") -> Recipe:
    (tmp_path / "own.yaml").write_text(f"extends: {name}\n{rules}")
    return load_recipe(str(tmp_path / "own.yaml"))


def test_rules_that_come_with_the_package_need_no_module_but_own_ones_do(tmp_path: Path) -> None:
    choices = load_recipe("mixed-edge").choices(MODULES)  # this model has no down_proj
    assert {choice.weight.label for name, choice in choices.items() if "c_proj" in name} == {
        "int4 group 32 float16 scales"
    }
    extended(tmp_path, "mixed-edge").choices(MODULES)
    own = extended(tmp_path, "mixed-edge", "rules:\n- {pattern: '*.down_proj', format: int4}\n")
    with pytest.raises(RecipeError, match=r"own\.yaml:3: the pattern '\*\.down_proj' matches no module"):
        own.choices(MODULES)
    overridden = extended(tmp_path, "mixed-edge", "rules:\n- {pattern: '*_proj', format: int8}\n")
    overridden.choices([*MODULES, ("model.layers.0.mlp.down_proj", "body")])


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(97 + i)}: &{chr(97 + i)} [*{chr(96 + i)}, *{chr(96 + i)}]\n" for i in range(1, 25)
)
DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "r.yaml:1: not valid YAML (anchors, aliases and tags have no place here)"),
        ("body: &x {format: int4}\nlm_head: *x\nembedding: *x\n", "r.yaml:1: not valid YAML (anchors"),
        ("body: *x\n", "r.yaml:1: not valid YAML (anchors"),
        ("body: !!python/object:os.system {}\n", "r.yaml:1: not valid YAML (anchors"),
        (PLAIN + "calibration: {seed: !!int abc}\n", "r.yaml:4: not valid YAML (anchors"),
        ("body: " + "[" * 5000 + "]" * 5000 + "\n", "r.yaml:1: not valid YAML (more than 50 levels)"),
        ("a:\n" + "".join(" " * i + "b:\n" for i in range(1, 200)), "not valid YAML (more than 50 levels)"),
        (PLAIN + "calibration: {seed: 2020-99-99}\n", "r.yaml:4: a value can't be read"),
        (PLAIN + f"calibration: {{seed: {DIGITS}}}\n", "r.yaml:4: a value can't be read"),
        (PLAIN + f"calibration: {{seed: 0x{'f' * 5000}}}\n", "not a number of thousands of digits"),
        (PLAIN + "calibration: {seed: 4294967296}\n", "r.yaml:4: seed must be a whole number from 0 upwards"),
        (PLAIN + "calibration: {seed: 0b_}\n", "r.yaml:4: "),
        (PLAIN + "transforms: {smoothing: .nan}\n", "r.yaml:4: smoothing must be a number from 0 to 1, not nan"),
        (PLAIN + f"algorithm: {'x' * 5000}\n", "r.yaml:4: the algorithm 'xxx"),
        (PLAIN + f"{'x' * 1000}: 1\n", "r.yaml:4: unknown key 'xxx"),
        (PLAIN + "? [a, b]\n: 1\n", "r.yaml:4: a key must be a word"),
        (PLAIN + "? {a: 1}\n: 1\n", "r.yaml:4: a key must be a word"),
        (
            f"recipe: {'x' * 5000}\n" + PLAIN,
            "r.yaml:1: the recipe's name must be text of 1 to 255 printable characters",
        ),
        ('recipe: "a\\0b"\n' + PLAIN, "r.yaml:1: the recipe's name must be text"),
        ('extends: "a\\0b"\n', "r.yaml:1: the recipe that is extended must be text"),
        (f"extends: {'x' * 5000}\n", "r.yaml:1: the recipe that is extended must be text"),
        (PLAIN + f"rules:\n- {{pattern: {'x' * 5000}, format: int8}}\n", "r.yaml:5: a rule needs a pattern"),
        (PLAIN.replace("int4", "int4, group: 32.0"), "r.yaml:1: the group 32.0 is not one of 32, 64, 128"),
        (PLAIN.replace("int4", "int4, group: [32]"), "r.yaml:1: the group [32] is not one of"),
        (PLAIN.replace("int4", f"int4, group: {'x' * 5000}"), "r.yaml:1: the group 'xxx"),
        (PLAIN.replace("int4", f"int4, zero_point: {'x' * 5000}"), "r.yaml:1: zero_point must be true or false"),
        (PLAIN + "\0", "r.yaml: not valid YAML"),
    ],
)
def test_hostile_files(text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_file_beside_with_a_hostile_name(tmp_path: Path) -> None:
    for name in ("'" + "y" * 255 + "'", "'" + "é" * 200 + "'", "'a/b'"):
        (tmp_path / "own.yaml").write_text(f"extends: {name}\n")
        with pytest.raises(RecipeError, match=r"own\.yaml:1: extends"):
            load_recipe(str(tmp_path / "own.yaml"))
    for name in ("x" * 5000, "a\0b", "x/" * 3000):
        with pytest.raises(RecipeError, match="There is no recipe"):
            load_recipe(name)


WORDS = st.sampled_from(
    ["{", "}", "[", "]", ":", ",", "- ", "\n", "  ", "*a", "&a", "!!int", "? ", "<<", "=", "'", '"', "|", "format",
     "int4", "group", "32", "1e9", "2020-13-01", "0x_", "190:20:30", "rules", "pattern", "body", "lm_head", "kv", "~"]
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(WORDS, max_size=25).map("".join))
def test_any_text_is_a_recipe_or_a_sentence(text: str) -> None:
    with contextlib.suppress(RecipeError):
        parse_recipe(PLAIN + text, "r.yaml").choices(MODULES)
