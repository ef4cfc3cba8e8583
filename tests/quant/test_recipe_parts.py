"""Recipes beyond weight formats: activations, cache, algorithms, inheritance, stages, and rules that fight."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from edgewright.errors import RecipeError, UsageError
from edgewright.formats import ActivationFormat, FloatFormat, IntFormat, MxFormat, Nvfp4Format, ScaledFormat
from edgewright.quant.recipe import Algorithm, Data, Inputs, Range, Recipe
from edgewright.quant.recipe_file import builtin_names, load_recipe, parse_recipe
from edgewright.targets.platform import shipped_platforms
from edgewright.targets.support import check_support

PLAIN = "body: {format: int4}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
MODULES = [
    ("model.embed_tokens", "embedding"),
    ("model.layers.0.self_attn.q_proj", "body"),
    ("model.layers.0.mlp.experts.up_proj", "experts"),
    ("model.layers.1.mlp.down_proj", "body"),
    ("lm_head", "lm_head"),
]
STAGES = ("vision", "prefix", "denoise")


def parsed(more: str, *, base: str = PLAIN) -> Recipe:
    return parse_recipe(base + more, "r.yaml")


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("fp8", ScaledFormat("e4m3", "tensor")),
        ("fp8, group: channel", ScaledFormat("e4m3", "channel")),
        ("fp8, group: block", ScaledFormat("e4m3", "block")),
        ("fp8, group: row-block", ScaledFormat("e4m3", "row-block")),
        ("int8, group: tensor", ScaledFormat("int8", "tensor")),
        ("int8, group: channel", ScaledFormat("int8", "channel")),
        ("int4, group: 64, scales: float16", IntFormat(4, 64, False, True, "float16")),
        ("int4, activations: float32", IntFormat(4, 32, False, False)),
        ("int4, activations: none", IntFormat(4, 32, False, False)),
        ("nvfp4", Nvfp4Format()),
        ("mxfp8", MxFormat("e4m3")),
        ("mxfp4", MxFormat("e2m1")),
        ("bfloat16", FloatFormat("bfloat16")),
    ],
)
def test_weight_formats(spec: str, wanted: object) -> None:
    assert parsed("", base=PLAIN.replace("int4", spec)).body == wanted


def test_parts_of_a_module_are_decided_apart() -> None:
    recipe = parsed(
        "activations: {format: int8, mode: static, range: percentile, percentile: 99.9}\n"
        "algorithm: awq\n"
        "rules:\n"
        "- {pattern: '*q_proj', algorithm: {name: gptq, damping: 0.05, activation_order: true}}\n"
        "- {pattern: '*.down_proj', activations: none}\n"
        "- {class: experts, format: nvfp4}\n"
    )
    choices = recipe.choices(MODULES)
    static = Inputs(ActivationFormat("int8", True, "tensor"), Range("percentile", 99.9))
    q = choices["model.layers.0.self_attn.q_proj"]
    assert (q.weight, q.inputs) == (IntFormat(4, 32, False), static)
    assert q.algorithm == Algorithm("gptq", damping=0.05, activation_order=True)
    assert q.where == {"weight": "r.yaml:1", "inputs": "r.yaml:4", "algorithm": "r.yaml:7"}
    down = choices["model.layers.1.mlp.down_proj"]
    assert (down.weight, down.inputs, down.algorithm.name) == (IntFormat(4, 32, False), Inputs(None), "awq")
    experts = choices["model.layers.0.mlp.experts.up_proj"]
    assert (experts.weight, experts.inputs) == (Nvfp4Format(), static)
    assert choices["model.embed_tokens"].inputs == Inputs(None)  # a lookup has no inputs to round
    assert recipe.needs_data
    assert recipe.needs_quantizer


def test_a_sections_own_words_hold_for_its_modules_and_rules_come_after() -> None:
    recipe = parsed(
        "rules:\n- {pattern: '*.down_proj', activations: {format: fp8}}\n",
        base=PLAIN.replace("int4}", "int4, algorithm: mse, activations: {format: int8, scope: token}}"),
    )
    choices = recipe.choices(MODULES)
    assert choices["model.layers.0.self_attn.q_proj"].inputs.format == ActivationFormat("int8", False, "token")
    assert choices["model.layers.0.mlp.experts.up_proj"].algorithm.name == "mse"
    assert choices["model.layers.1.mlp.down_proj"].inputs.format == ActivationFormat("fp8", False, "token")
    assert choices["lm_head"].inputs == Inputs(None)
    assert choices["lm_head"].algorithm.name == "minmax"


def test_inheritance_keeps_what_is_not_said_and_appends_rules(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        PLAIN + "kv: {format: int8, scope: head}\ncalibration: {sequences: 8, seed: 3}\n"
        "rules:\n- {pattern: '*q_proj', format: int8}\n"
    )
    (tmp_path / "child.yaml").write_text(
        "extends: base.yaml\nlm_head: {format: float16}\ncalibration: {length: 64}\n"
        "rules:\n- {pattern: '*.down_proj', format: fp8}\n"
    )
    child = load_recipe(str(tmp_path / "child.yaml"))
    assert child.name == "child"
    assert (child.body, child.lm_head) == (IntFormat(4, 32, False), FloatFormat("float16"))
    assert child.kv is not None
    assert (child.kv.dtype, child.kv.per) == ("int8", "head")
    assert child.data == Data(sequences=8, length=64, seed=3)
    assert [rule.where for rule in child.rules] == ["base.yaml:7", "child.yaml:5"]
    (tmp_path / "loop.yaml").write_text("extends: loop.yaml\n")
    with pytest.raises(RecipeError, match=r"loop\.yaml:1: .*extends itself"):
        load_recipe(str(tmp_path / "loop.yaml"))
    (tmp_path / "lost.yaml").write_text("\nextends: int4-gtpq\n")
    with pytest.raises(RecipeError, match=r"lost\.yaml:2: extends 'int4-gtpq'.*did you mean int4-gptq"):
        load_recipe(str(tmp_path / "lost.yaml"))
    (tmp_path / "out.yaml").write_text("extends: ../base.yaml\n")
    with pytest.raises(RecipeError, match=r"out\.yaml:1: '\.\./base\.yaml' lies outside the recipe's folder"):
        load_recipe(str(tmp_path / "out.yaml"))


def test_what_a_child_says_for_all_modules_outweighs_the_sections_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "child.yaml").write_text("extends: int4-awq\nalgorithm: gptq\n")
    choices = load_recipe(str(tmp_path / "child.yaml")).choices(MODULES)
    assert choices["model.layers.0.self_attn.q_proj"].algorithm.name == "gptq"
    assert choices["model.layers.0.self_attn.q_proj"].weight == IntFormat(4, 32, False, True, "float16")


def test_stages_of_a_base_stay_with_what_the_child_says_at_its_top(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        PLAIN + "stages:\n  vision: {body: {format: fp8}}\n  denoise:\n    rules:\n"
        "    - {pattern: '*q_proj', format: int8}\n"
    )
    (tmp_path / "child.yaml").write_text(
        "extends: base.yaml\nkv: {format: fp8}\nlm_head: {format: float16}\nrules:\n"
        "- {pattern: '*k_proj', format: float16}\nstages: {vision: {kv: none}, prefix: {body: {format: fp8}}}\n"
    )
    recipe = load_recipe(str(tmp_path / "child.yaml"))
    vision, prefix, denoise = (recipe.for_stage(n, STAGES) for n in STAGES)
    assert list(recipe.stages) == ["vision", "denoise", "prefix"]
    assert (vision.body, denoise.body) == (ScaledFormat("e4m3", "tensor"), IntFormat(4, 32, False))
    assert prefix.body == ScaledFormat("e4m3", "tensor")
    assert [inner.kv is None for inner in (recipe, vision, prefix, denoise)] == [False, True, False, False]
    assert {inner.lm_head for inner in (recipe, vision, prefix, denoise)} == {FloatFormat("float16")}
    assert {inner.name for inner in (recipe, vision, prefix, denoise)} == {"child"}
    assert [rule.pattern for rule in denoise.rules] == ["*q_proj", "*k_proj"]
    assert [rule.pattern for rule in vision.rules] == ["*k_proj"]
    # A format for all modules outweighs that of a stage of the base, as it does its section's.
    (tmp_path / "other.yaml").write_text("extends: base.yaml\nbody: {format: int8}\n")
    other = load_recipe(str(tmp_path / "other.yaml"))
    assert {other.for_stage(n, STAGES).body for n in STAGES} == {IntFormat(8, 32, False)}


def test_stages_have_their_own_and_a_stage_the_model_lacks_is_an_error() -> None:
    recipe = parsed("stages:\n  llm: {body: {format: fp8}}\n  vision:\n    kv: {format: fp8}\n")
    inner = recipe.for_stage("llm", ("llm", "vision"))
    assert inner.body == ScaledFormat("e4m3", "tensor")
    assert inner.lm_head == IntFormat(8, 32, False)
    assert recipe.for_stage("prefix", ("llm", "vision", "prefix")) is recipe
    with pytest.raises(RecipeError, match=r"r\.yaml:7: the model has no stage 'vision'; it has llm\."):
        recipe.for_stage("llm", ("llm",))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            "- {pattern: '*q_proj', format: int8}\n- {pattern: '*.self_attn.*', format: fp8}\n",
            r"r\.yaml:5: the rule '\*q_proj' has no effect, because the rules at r\.yaml:6 override it",
        ),
        (
            "- {pattern: '*q_proj', format: int8}\n- {pattern: '*q_proj', format: fp8}\n",
            r"r\.yaml:6: the rule '\*q_proj' contradicts the one at r\.yaml:5 in its weight",
        ),
        (
            "- {pattern: '*', format: float16}\n- {pattern: 'lm_head', format: int8}\n",
            r"r\.yaml:5: the rules leave no module of the body in int4 group 32",
        ),
        ("- {class: head, format: int8}\n", r"r\.yaml:5: the class 'head' is unknown; known are body, experts"),
        ("- {class: experts, pattern: 'lm_head', format: int8}\n", r"r\.yaml:5: no module of the class experts"),
        ("- {class: experts, activations: int8}\n", r"r\.yaml:5: activations: int8 belongs to an integer format"),
    ],
)
def test_rules_that_fight(rules: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parsed("rules:\n" + rules).choices(MODULES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("activations: {format: int8, mode: sometimes}\n", r"r\.yaml:4: mode 'sometimes' is unknown"),
        ("activations: {mode: static}\n", r"r\.yaml:4: activations need a format"),
        ("activations: {format: int8, mode: static, scope: token}\n", r"r\.yaml:4: .* can't be static"),
        ("activations: {format: nvfp4, scope: token}\n", r"r\.yaml:4: nvfp4 activations have the scope block"),
        ("activations: {format: fp8, mode: static, zero_point: true}\n", r"r\.yaml:4: only static int8"),
        (
            "activations: {format: int8, scope: tensor}\n",
            r"r\.yaml:4: a scale over the whole input .* use the scope token",
        ),
        ("activations: {format: nvfp4}\n", r"r\.yaml:4: a scale over the whole input .* use mode static"),
        ("activations: {format: int8, range: mse}\n", r"r\.yaml:4: a range belongs to static"),
        ("algorithm: adaround\n", r"r\.yaml:4: the algorithm 'adaround' is unknown; known are minmax"),
        ("algorithm: {name: mse, damping: 0.1}\n", r"r\.yaml:4: damping have no meaning for mse"),
        ("algorithm: {name: percentile, percentile: 101}\n", r"r\.yaml:4: percentile must be a number from 50 to 100"),
        ("kv: {format: int4}\n", r"r\.yaml:4: the cache's format 'int4' is unknown"),
        ("kv: {scope: head}\n", r"r\.yaml:4: kv needs a format"),
        ("calibration: {sequences: 0}\n", r"r\.yaml:4: sequences must be a whole number from 1"),
        ("transforms: {smoothing: 2}\n", r"r\.yaml:4: smoothing must be a number from 0 to 1"),
        ("transforms: {rotation: all}\n", r"r\.yaml:4: rotation 'all' is unknown; known are none, values, residual"),
        ("stages: [llm]\n", r"r\.yaml:4: expected a mapping"),
    ],
)
def test_mistakes_name_file_and_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parsed(text)


def test_recipes_are_values_and_loading_one_changes_no_other() -> None:
    before = {name: copy.deepcopy(load_recipe(name).to_json()) for name in builtin_names()}
    for name in reversed(builtin_names()):
        load_recipe(name)
    assert {name: load_recipe(name).to_json() for name in builtin_names()} == before
    with pytest.raises(AttributeError):
        load_recipe("fp8").body = FloatFormat("float32")  # type: ignore[misc]
    assert {"int4-awq", "int8-sq", "fp8", "nvfp4", "nvfp4+fp8-kv", "w8a8", "mixed-edge"} <= set(builtin_names())


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_recipes_resolve_for_a_usual_model(name: str) -> None:
    choices = load_recipe(name).choices(MODULES)
    assert choices.keys() == {module for module, _ in MODULES}


@pytest.mark.parametrize(
    ("platform", "name", "message"),
    [
        (
            "jetson-orin",
            "fp8",
            r"fp8\.yaml:3: Jetson AGX Orin 64 GB has no fp8 weights; it has int4, int8 and floats\.",
        ),
        ("jetson-orin", "nvfp4+fp8-kv", r"nvfp4\.yaml:3: Jetson AGX Orin 64 GB has no nvfp4 weights"),
        ("rtx-ada", "nvfp4", r"nvfp4\.yaml:3: GeForce RTX 4090 \(Ada\) has no nvfp4 weights"),
        ("snapdragon-htp", "mxfp8", r"mxfp8\.yaml:3: Snapdragon HTP has no mxfp8 weights"),
        ("jetson-orin", "int4-awq", None),
        ("jetson-orin", "w8a8", None),
        ("jetson-thor", "nvfp4+fp8-kv", None),
        ("rtx-ada", "fp8", None),
    ],
)
def test_formats_a_platform_lacks_are_refused_with_the_line(platform: str, name: str, message: str | None) -> None:
    if message is None:
        check_support(platform, load_recipe(name))
        return
    with pytest.raises(RecipeError, match=message):
        check_support(platform, load_recipe(name))


def test_every_part_is_asked_of_a_platform() -> None:
    caches = r"r\.yaml:4: Jetson AGX Orin 64 GB has no fp8 caches; it has int8 and floats"
    with pytest.raises(RecipeError, match=caches):
        check_support("jetson-orin", parsed("kv: {format: fp8}\n"))
    with pytest.raises(RecipeError, match=r"r\.yaml:4: Jetson AGX Orin 64 GB has no fp8 activations"):
        check_support("jetson-orin", parsed("activations: {format: fp8}\n"))
    with pytest.raises(RecipeError, match=r"r\.yaml:5: Jetson AGX Orin 64 GB has no fp8 weights"):
        check_support("jetson-orin", parsed("rules:\n- {pattern: lm_head, format: fp8}\n"))
    with pytest.raises(RecipeError, match=r"Jetson AGX Orin 64 GB has no nvfp4 weights"):
        check_support("jetson-orin", parsed("stages:\n  llm: {body: {format: nvfp4}}\n"))
    with pytest.raises(UsageError, match="did you mean jetson-orin"):
        check_support("jetson-orn", parsed(""))
    assert all(platform.weights >= {"int8"} for platform in shipped_platforms().values())
