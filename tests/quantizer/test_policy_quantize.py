"""Quantized policies: their errors on the goldens, the same bytes every time, taken up where interrupted, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.checkpoint.policy import PolicyOptions, is_policy, open_policy
from edgewright.errors import CalibrationDataError, CheckpointError, ConfigError, RecipeError, UsageError
from edgewright.files import cache_home
from edgewright.quant.recipe import Data
from edgewright.quant.recipe_file import load_recipe
from edgewright.quantizer import policy
from edgewright.quantizer.policy_observations import load_policy_observations
from edgewright.quantizer.preview import preview_policy
from edgewright.runtime.policy.spec import Limits
from policy_goldens import POLICY_GOLDENS, policy_checkpoint, policy_scenarios, stepwise
from quantizer_cases import StopError, Watch, digest
from quantizer_policy_cases import (
    StoredStages,
    actions,
    observations_of,
    quantized,
    recipe_named,
    relative,
    run,
    seen_frame,
    wanted_actions,
    write,
    write_observations,
)

FLOATS = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
INT8 = "body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
GPTQ = INT8.replace("body: {format: int8}", "body: {format: int4, algorithm: gptq}")
SMOOTH = (
    "body: {format: int8, group: channel}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
    "activations: {format: int8, mode: static}\ntransforms: {smoothing: 0.5, bias_correction: true}\n"
)
#: How far the actions of a golden may be off after the whole loop, as a share of their energy's root.
BOUNDS = {
    "policy-int8": 0.04,
    "policy-int4": 0.2,
    "pi05-fp8": 0.2,
    "pi05-nvfp4": 0.45,
    SMOOTH: 0.03,
    "int4-awq": 0.25,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def scenario(case: str) -> str:
    return next(name for name in stepwise(case) if not policy_scenarios(case)[name].get("committed"))


@pytest.mark.parametrize(
    ("case", "dialect", "recipes"),
    [
        ("pi05", "onnxruntime", list(BOUNDS)),
        ("pi0", "onnxruntime", ["policy-int4", SMOOTH]),
        ("smolvla", "onnxruntime", ["pi05-nvfp4", SMOOTH, "int4-awq"]),
        ("pi05", "portable", [SMOOTH]),
        ("smolvla", "portable", [SMOOTH]),
    ],
)
def test_actions_of_the_goldens(case: str, dialect: str, recipes: list[str], tmp_path: Path) -> None:
    checkpoint = policy_checkpoint(case)
    observations = observations_of(checkpoint, tmp_path / "data", 6)
    frame = seen_frame(case, scenario(case), checkpoint)
    wanted = wanted_actions(frame)
    float_error = relative(actions(StoredStages(checkpoint, dialect, tmp_path / "f"), frame), wanted)
    assert float_error < 1e-4
    errors = {}
    for index, recipe in enumerate(recipes):
        made = quantized(tmp_path / f"q{index}", checkpoint, recipe, observations)
        errors[recipe] = relative(actions(StoredStages(made, dialect, tmp_path / f"s{index}"), frame), wanted)
        assert 1e-4 < errors[recipe] < BOUNDS[recipe], recipe
    assert errors[SMOOTH] < 0.5 * errors.get("pi05-nvfp4", np.inf)


@pytest.mark.parametrize("recipe", [GPTQ, SMOOTH, "pi05-nvfp4"])
def test_the_same_gives_the_same_bytes(recipe: str, tmp_path: Path) -> None:
    checkpoint = policy_checkpoint("pi05")
    made = []
    for index, threads in enumerate((1, 1, 2)):
        observations = observations_of(checkpoint, tmp_path / f"data{index}", 3)
        done = run(checkpoint, recipe, observations, threads=threads)
        made.append(digest(write(tmp_path / str(index), checkpoint, recipe, observations, done)))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize(
    ("error", "transforms"),
    [(StopError, ""), (KeyboardInterrupt, "transforms: {sequential: true, bias_correction: true}\n")],
)
def test_an_interrupted_run_goes_on(error: type[BaseException], transforms: str, tmp_path: Path) -> None:
    checkpoint, recipe = policy_checkpoint("smolvla"), GPTQ + transforms
    observations = observations_of(checkpoint, tmp_path / "data", 2)
    done = run(checkpoint, recipe, observations)
    whole = digest(write(tmp_path / "whole", checkpoint, recipe, observations, done))
    before: list[str] = []
    for stop_at in ("vision layer 1", "prefix embedding", "denoise loop", "denoise layer 2"):
        watch = Watch(stop_at, error)
        with pytest.raises(error):
            run(checkpoint, recipe, observations, progress=watch)
        assert not [step for step in watch.steps if step in before and step not in ("float weights", stop_at)]
        before += [step for step in watch.steps if step not in ("float weights", "denoise loop", stop_at)]
        assert not list(cache_home().rglob("floats-*"))
    watch = Watch()
    done = run(checkpoint, recipe, observations, progress=watch)
    assert watch.steps[1] == "denoise layer 2"
    assert digest(write(tmp_path / "again", checkpoint, recipe, observations, done)) == whole
    assert not list((cache_home() / "quantizing").iterdir())


def test_nothing_is_left_in_the_spool(tmp_path: Path) -> None:
    checkpoint = policy_checkpoint("pi0")
    observations = observations_of(checkpoint, tmp_path / "data", 2)
    done = run(checkpoint, GPTQ, observations)
    assert not list((done.work.folder / "spool").iterdir())
    done.work.remove()


@pytest.mark.parametrize("case", ["pi05", "pi0", "smolvla"])
def test_floats_stay_what_they_are(case: str, tmp_path: Path) -> None:
    checkpoint = policy_checkpoint(case)
    made = quantized(tmp_path / "made", checkpoint, FLOATS, None)
    assert made.spec == checkpoint.spec
    assert made.sizes == checkpoint.sizes
    assert made.sidecars() == checkpoint.sidecars()
    frame = seen_frame(case, scenario(case), checkpoint)
    one, other = (
        actions(StoredStages(c, "portable", tmp_path / n), frame) for c, n in ((checkpoint, "a"), (made, "b"))
    )
    np.testing.assert_array_equal(one, other)


def test_projections_are_quantized_where_a_rule_names_them(tmp_path: Path) -> None:
    recipe = INT8 + (
        'rules:\n  - {pattern: "*.patch_embedding", format: int8}\n  - {pattern: "action_time_mlp_*", format: int8, '
        "algorithm: mse}\n"
    )
    checkpoint = policy_checkpoint("pi0")
    made = quantized(tmp_path / "made", checkpoint, recipe, None)
    encoded = {name for name, tensor in made.tensors.items() if tensor.encoding is not None}
    named = [name for name in encoded if "patch_embedding" in name or name.startswith("action_time_mlp")]
    assert len(named) == 4
    assert "action_in_proj.weight" not in encoded
    frame = seen_frame("pi0", scenario("pi0"), checkpoint)
    error = relative(actions(StoredStages(made, "onnxruntime", tmp_path / "s"), frame), wanted_actions(frame))
    assert 1e-4 < error < 0.05


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (GPTQ + "transforms: {rotation: values}\n", r"r\.yaml:4: rotation values is for language models alone"),
        (GPTQ + "stages: {denoise: {calibration: {seed: 3}}}\n", "move 'calibration' out of the stage denoise"),
        (GPTQ + "stages: {llm: {body: {format: int4}}}\n", "no stage 'llm'; it has vision, prefix, denoise"),
        (GPTQ + 'rules: [{pattern: "*.gemma_xpert.*", format: fp8}]\n', r"r\.yaml:4: the pattern .* matches no module"),
        (
            GPTQ + 'stages: {vision: {rules: [{pattern: "*.gemma_expert.*", format: fp8}]}}\n',
            r"r\.yaml:4: the pattern '\*\.gemma_expert\.\*' matches no module",
        ),
        (GPTQ + "transforms: {smoothing: 0.5}\n", "this recipe rounds no input of a quantized linear"),
        (GPTQ, "give it calibration data"),
    ],
)
def test_what_a_recipe_may_not_ask_for(recipe: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        run(policy_checkpoint("pi05"), recipe, None)


def test_a_pattern_may_match_in_one_stage_alone() -> None:
    recipe = INT8 + 'rules: [{pattern: "*.gemma_expert.*mlp*", format: int4}]\n'
    found = preview_policy(policy_checkpoint("pi05"), recipe_named(recipe))
    formats = {name: {row["weight"] for row in one.rows if row["kind"] == "body"} for name, one in found.items()}
    assert formats["vision"] == formats["prefix"] == {"int8 group 32"}
    assert formats["denoise"] == {"int8 group 32", "int4 group 32"}


def test_the_case_studys_policy_table() -> None:
    found = preview_policy(policy_checkpoint("pi05"), load_recipe("pi05-fp8"))
    table: dict[str, set[tuple[str, str | None]]] = {}
    for name, one in found.items():
        for row in one.rows:
            module = row["module"].removeprefix("paligemma_with_expert.")
            kind = next((word for word in ("norm", "action_", "time_mlp_", "embed_tokens") if word in module), "linear")
            kind = row["module"].rsplit(".", 2)[-2] if row["kind"] == "projection" and name == "vision" else kind
            table.setdefault(f"{name} {kind}", set()).add((row["weight"], row["activations"]))
    fp8, kept = ("fp8 tensor", "fp8 static tensor"), ("float32", None)
    assert table == {
        "vision linear": {fp8},
        "vision embeddings": {kept},
        "vision multi_modal_projector": {kept},
        "prefix embed_tokens": {("fp8 row-block 128", None)},
        "prefix linear": {fp8},
        "denoise linear": {fp8},
        "denoise norm": {kept},
        "denoise action_": {kept},
        "denoise time_mlp_": {kept},
    }


def test_a_quantized_policy_says_everything_itself(tmp_path: Path) -> None:
    checkpoint = policy_checkpoint("pi05_libero")
    observations = observations_of(checkpoint, tmp_path / "data", 2)
    made = quantized(tmp_path / "made", checkpoint, SMOOTH, observations)
    assert is_policy(tmp_path / "made")
    assert (made.kind, made.spec, made.sizes) == (checkpoint.kind, checkpoint.spec, checkpoint.sizes)
    assert made.sidecars() == checkpoint.sidecars()
    assert made.quantization is not None
    assert made.quantization.biases
    report = json.loads((tmp_path / "made" / "quantization_report.json").read_bytes())
    assert {len(steps) for steps in report["ranges"].values()} == {checkpoint.spec.steps}
    limits = Limits(deadline_ms=50.0)
    limited = open_policy(tmp_path / "made", PolicyOptions(limits=limits))
    assert limited.spec == dataclasses.replace(checkpoint.spec, limits=limits)
    with pytest.raises(ConfigError, match=r"option discrete_state .*, the option horizon \(--horizon\)"):
        open_policy(tmp_path / "made", PolicyOptions(horizon=4, discrete_state=True))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("edgewright_policy", "sizes", "text", "width"), "24", "the size width is"),
        (("edgewright_policy", "sizes", "depth"), 3, "the sizes are not"),
        (("edgewright_policy", "spec", "horizon"), 0, "policy.horizon must be an integer of at least 1"),
        (("edgewright_policy", "extra"), 1, "its keys are others"),
        (("quantization_config",), {"quant_method": "awq"}, "quantization_config is not ours"),
        (("quantization_config", "modules", "action_out_proj"), {}, r"can't be read|damaged"),
    ],
)
def test_a_changed_folder_is_refused(path: tuple[str, ...], value: Any, message: str, tmp_path: Path) -> None:
    quantized(tmp_path / "made", policy_checkpoint("pi0"), INT8 + "algorithm: mse\n", None)
    file = tmp_path / "made" / "config.json"
    config = json.loads(file.read_bytes())
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        open_policy(tmp_path / "made")


def test_observations_must_fit_the_policy(tmp_path: Path) -> None:
    pi0, smolvla = policy_checkpoint("pi0"), policy_checkpoint("smolvla")
    folder = write_observations(tmp_path / "data", pi0)
    with pytest.raises(CalibrationDataError, match=r"sample 0 doesn't fit the policy\. The observation's observation"):
        load_policy_observations(smolvla, Data(str(folder)))
    with pytest.raises(CalibrationDataError, match="is calibrated on observations, and there is none by default"):
        load_policy_observations(pi0, Data())
    (tmp_path / "empty").mkdir()
    with pytest.raises(CalibrationDataError, match=r"holds no \.safetensors files of observations"):
        load_policy_observations(pi0, Data(str(tmp_path / "empty")))
    found = load_policy_observations(pi0, Data(str(folder), sequences=3, seed=1))
    assert found.count == 3
    assert found.digest != load_policy_observations(pi0, Data(str(folder), sequences=3, seed=2)).digest


def test_another_layout_is_refused(tmp_path: Path) -> None:
    from edgewright.build.quantized import quantize_checkpoint
    from policy_goldens import POLICY_GOLDENS

    source = POLICY_GOLDENS / "pi05" / "checkpoint"
    with pytest.raises(UsageError, match="in the layout modelopt: leave --layout out"):
        quantize_checkpoint(source, tmp_path / "made", recipe=recipe_named(INT8), layout="modelopt")


def test_work_on_other_sizes_is_not_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of heads is in no shape, and so in no file."""
    found = []

    def work(parts: Any) -> None:
        found.append(json.dumps(parts, sort_keys=True))
        raise StopError

    monkeypatch.setattr(policy, "Work", work)
    for sizes in ({}, {"vision.heads": 8}, {"vision.heads": 16}):
        given = open_policy(POLICY_GOLDENS / "pi0/checkpoint", PolicyOptions(sizes=sizes, state_dim=14))
        with pytest.raises(StopError):
            run(given, "policy-int8", None)
    assert found[0] == found[2] != found[1]
