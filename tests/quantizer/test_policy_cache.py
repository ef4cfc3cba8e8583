"""The scales of a policy's prefix KV: those of the largest keys and values over all observations, in either form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.checkpoint.policy import PolicyCheckpoint, open_policy
from edgewright.cli import main
from edgewright.errors import CheckpointError, RecipeError
from edgewright.graph import Stage
from edgewright.models._policy import build_policy
from edgewright.quant.apply import quantize_stage
from edgewright.quant.prefix_kv import prefix_layers
from edgewright.quant.recipe import stored_recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.quantizer.policy import plan_policy
from edgewright.quantizer.policy_observations import Observations
from edgewright.quantizer.preview import preview_policy
from plain_stages import BOUNDS, PlainStages
from policy_goldens import POLICY_GOLDENS, policy_checkpoint
from quantizer_cases import digest
from quantizer_policy_cases import observations_of, quantized, recipe_named, run, write

FLOATS = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
INT8 = "body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
#: Smoothing folds factors into the rows that make the expert's values.
SMOOTH = INT8.replace("body: {format: int8}", "body: {format: int8, group: channel}") + (
    "activations: {format: int8, mode: static}\ntransforms: {smoothing: 0.5}\n"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def largest(
    checkpoint: PolicyCheckpoint, observations: Observations, folder: Path, *, cross_once: bool = False
) -> dict[str, list[np.ndarray]]:
    """The largest magnitudes of keys and values by head, by module, of graphs as a build puts them together."""
    layers = prefix_layers(build_policy(checkpoint, bounds=BOUNDS, cross_once=cross_once)["prefix"])
    stages = PlainStages(checkpoint, "portable", folder, change=_stored, cross_once=cross_once)
    found: dict[str, list[np.ndarray]] = {}
    for one in observations:
        features = stages.run("vision", {"images": one.images})["image_features"]
        ids = one.token_ids[None].astype(np.int64)
        rows = features.shape[0] * features.shape[1] + ids.shape[1] + int(checkpoint.kind == "smolvla")
        feeds = {
            "image_features": features.reshape(1, -1, features.shape[-1]),
            "token_ids": ids,
            "prefix_mask": np.ones((1, rows), np.int64),
            "state": one.state[None].astype(np.float32),
        }
        made = stages.run("prefix", feeds)
        for layer in layers:
            seen = [np.abs(made[name]).max(axis=(0, 2, 3)) for name in layer.tensors.values()]
            found[layer.module] = [np.maximum(*pair) for pair in zip(found.get(layer.module, seen), seen, strict=True)]
    return found


def _stored(stage: Stage) -> None:
    """Take a checkpoint's codes over."""
    quantize_stage(stage, stored_recipe("stored"))


@pytest.mark.parametrize("case", ["pi05", "pi0", "smolvla"])
@pytest.mark.parametrize(
    ("kv", "top"), [("{format: int8, scope: head}", 127), ("{format: fp8}", 448)], ids=["int8", "fp8"]
)
def test_scales_are_those_of_all_observations(case: str, kv: str, top: int, tmp_path: Path) -> None:
    checkpoint = policy_checkpoint(case)
    observations = observations_of(checkpoint, tmp_path / "data", 3)
    made = quantized(tmp_path / "made", checkpoint, FLOATS + f"kv: {kv}\n", observations)
    assert made.quantization is not None
    assert made.quantization.kv_dtype == ("int8" if top == 127 else "float8_e4m3")
    scales = made.quantization.kv_scales
    wanted = largest(checkpoint, observations, tmp_path / "plain")
    if case == "smolvla":
        wanted |= largest(checkpoint, observations, tmp_path / "once", cross_once=True)
        assert sum(".lm_expert." in module for module in wanted) == 2
    assert scales.keys() == wanted.keys()
    for module, ends in wanted.items():
        for scale, end in zip(scales[module], ends, strict=True):
            expected = end if "head" in kv else end.max(keepdims=True)
            np.testing.assert_allclose(scale * np.float32(top), expected, rtol=2e-5)


def test_values_that_smoothing_scales_have_the_scales_of_what_they_become(tmp_path: Path) -> None:
    """The made checkpoint's own keys and values reach the ends that its scales are for."""
    checkpoint = policy_checkpoint("smolvla")
    observations = observations_of(checkpoint, tmp_path / "data", 2)
    made = quantized(tmp_path / "q", checkpoint, SMOOTH + "kv: {format: int8}\n", observations)
    plain = quantized(tmp_path / "f", checkpoint, FLOATS + "kv: {format: int8}\n", observations)
    assert made.quantization is not None
    assert plain.quantization is not None
    ends = largest(made, observations, tmp_path / "once", cross_once=True)
    changed = 0
    for module, pair in ends.items():
        scales, before = (one.kv_scales[module] for one in (made.quantization, plain.quantization))
        for scale, old, end in zip(scales, before, pair, strict=True):
            assert float(scale[0]) * 127 == pytest.approx(float(end.max()), rel=0.06)  # inputs and weights are rounded
            changed += abs(float(old[0]) / float(scale[0]) - 1) > 0.1
    assert changed  # without the factors these would be too far off


@pytest.mark.parametrize("recipe", ["mixed-edge", "nvfp4+fp8-kv", "pi05-fp8+fp8-kv"])
def test_builtin_recipes_with_a_cache_fit_policies(recipe: str, tmp_path: Path) -> None:
    checkpoint = policy_checkpoint("pi05")
    observations = observations_of(checkpoint, tmp_path / "data", 2)
    made = quantized(tmp_path / "made", checkpoint, recipe, observations)
    assert made.quantization is not None
    assert len(made.quantization.kv_scales) == checkpoint.sizes.text.layers
    assert made.quantization.kv_dtype == ("int8" if recipe == "mixed-edge" else "float8_e4m3")


def test_a_recipe_takes_over_the_stages_of_the_one_it_extends() -> None:
    one, other = load_recipe("pi05-fp8"), load_recipe("pi05-fp8+fp8-kv")
    assert one.kv is None
    assert other.kv is not None
    assert other.stages.keys() == one.stages.keys()
    checkpoint = policy_checkpoint("pi05")
    tables = [preview_policy(checkpoint, recipe) for recipe in (one, other)]
    for name in tables[0]:
        rows = [[{**row, "where": ""} for row in table[name].rows] for table in tables]
        assert rows[0] == rows[1]
    assert [table["prefix"].kv for table in tables] == [None, "float8_e4m3/tensor"]


def test_the_same_gives_the_same_bytes(tmp_path: Path) -> None:
    checkpoint, recipe = policy_checkpoint("smolvla"), INT8 + "kv: {format: fp8, scope: head}\n"
    made = []
    for index, threads in enumerate((1, 2)):
        observations = observations_of(checkpoint, tmp_path / f"data{index}", 2)
        done = run(checkpoint, recipe, observations, threads=threads)
        made.append(digest(write(tmp_path / str(index), checkpoint, recipe, observations, done)))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("recipe", "formats"),
    [
        ("kv: {format: int8}\n", "int8/tensor"),
        ("stages: {prefix: {kv: {format: fp8, scope: head}}}\n", "float8_e4m3/head"),
        ("kv: {format: int8}\nstages: {prefix: {kv: none}}\n", None),
        ("kv: {format: int8}\nstages: {denoise: {body: {format: int4}}}\n", "int8/tensor"),
    ],
)
def test_the_prefix_decides(recipe: str, formats: str | None) -> None:
    found = preview_policy(policy_checkpoint("smolvla"), recipe_named(INT8 + recipe))
    assert {name: one.kv for name, one in found.items()} == {"vision": None, "prefix": formats, "denoise": None}
    plans = plan_policy(policy_checkpoint("smolvla"), recipe_named(INT8 + recipe)).plans
    taps = {name: [tap.module for caches in plan.caches for tap in caches] for name, plan in plans.items()}
    assert [len(found) for found in taps.values()] == [0, 4, 2]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("stages: {denoise: {kv: {format: fp8}}}\n", r"r\.yaml:4: a policy has one set.* out of the stage denoise"),
        ("kv: {format: int8}\nstages: {vision: {kv: none}}\n", r"r\.yaml:5: a policy has one set.* stage vision"),
        ("kv: {format: int8}\n", "give it calibration data"),
        ("stages: {prefix: {kv: {format: int8}}}\n", "give it calibration data"),
    ],
)
def test_what_a_recipe_may_not_ask_for(recipe: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        run(policy_checkpoint("pi05"), INT8 + recipe, None)


def test_a_dry_run_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(POLICY_GOLDENS / "pi05" / "checkpoint")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(INT8 + "kv: {format: int8, scope: head}\n")
    assert main(["quantize", source, "--recipe", str(recipe), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("; cache int8/head") == 1
    assert main(["quantize", source, "--recipe", str(recipe), "--dry-run", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert {name: one["kv"] for name, one in stages.items()} == {
        "vision": None,
        "prefix": "int8/head",
        "denoise": None,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: q.update(kv_dtype=None), "scales without a dtype"),
        (lambda q: q.update(kv_dtype="int4"), "The cache's dtype is unknown"),
        (lambda q: q["kv_modules"].pop(), "belongs to nothing that quantization_config names"),
        (lambda q: q["kv_modules"].append("prefix"), "has no tensor prefix.key_scale"),
    ],
)
def test_a_changed_folder_is_refused(change: object, message: str, tmp_path: Path) -> None:
    checkpoint = policy_checkpoint("pi0")
    observations = observations_of(checkpoint, tmp_path / "data", 1)
    quantized(tmp_path / "made", checkpoint, FLOATS + "kv: {format: int8}\n", observations)
    path = tmp_path / "made" / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"])  # type: ignore[operator]
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        open_policy(tmp_path / "made")
