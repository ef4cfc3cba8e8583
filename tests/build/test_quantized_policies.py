"""Bundles of quantized policies: calibrated once and kept, taken over bit for bit, the tokens' table in or outside."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.build.pipeline import Built, deploy
from edgewright.build.quantized import quantize_checkpoint, with_data
from edgewright.build.sources import PolicyRequest
from edgewright.calibration.arrays import TEXT, text_of
from edgewright.checkpoint.policy import PolicyOptions, open_policy
from edgewright.errors import BundleError, CalibrationDataError, RecipeError
from edgewright.quant.recipe import Data, Recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.quantizer.policy_observations import load_policy_observations
from edgewright.runtime.embedding import SIDECAR
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.spec import Limits
from policy_goldens import OPTIONS, POLICY_CASES, POLICY_GOLDENS, policy_checkpoint
from quantizer_cases import Watch
from quantizer_policy_cases import relative, write_observations


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def data_of(case: str, folder: Path, frames: int = 3) -> Data:
    return Data(str(write_observations(folder, policy_checkpoint(case), frames)))


def recipe_of(name: str, data: Data) -> Recipe:
    recipe = load_recipe(name)
    return with_data(recipe, data) if recipe.needs_data else recipe


def built(case: str, output: Path, recipe: Recipe | str, **options: Any) -> Built:
    asked = PolicyRequest(options=PolicyOptions(**OPTIONS[case]))
    folder = POLICY_GOLDENS / case / "checkpoint"
    return deploy(folder, output, recipe=recipe, policy=asked, verify=False, **options)


def observations(case: str, data: Data) -> list[dict[str, Any]]:
    samples = load_policy_observations(policy_checkpoint(case), data).samples
    return [
        {**{name: values for name, values in sample.items() if name != TEXT}, "task": text_of(sample)}
        for sample in samples
    ]


def actions(bundle: Path, case: str, given: list[dict[str, Any]]) -> np.ndarray:
    """Run a batch of observations of unlike prompts, which has padding."""
    policy, spec = Policy.load(bundle, threads=1), policy_checkpoint(case).spec
    shape = (len(given), spec.horizon, spec.model_action_dim)
    noise = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    return np.stack([chunk.normalized for chunk in policy.infer_batch(given, noise)])


@pytest.mark.parametrize("recipe", ["float32", "policy-int8", "pi05-fp8"])
@pytest.mark.parametrize("case", ["pi05", "pi05_libero", "smolvla"])
def test_a_table_outside_gives_the_same_bits(case: str, recipe: str, tmp_path: Path) -> None:
    data = data_of(case, tmp_path / "data")
    made = {
        place: built(case, tmp_path / place, recipe_of(recipe, data), embeddings=place)
        for place in ("inside", "outside")
    }
    assert "embedding" not in made["inside"].manifest.model
    record = made["outside"].manifest.model["embedding"]
    assert record["vocab"] == policy_checkpoint(case).sizes.text.vocab
    assert record["multiplier"] == np.float32(policy_checkpoint(case).sizes.text.width ** 0.5)
    table = tmp_path / "outside" / "sidecars" / SIDECAR
    assert table.is_file()
    if recipe == "pi05-fp8":
        header = json.loads(table.read_bytes()[8 : 8 + int.from_bytes(table.read_bytes()[:8], "little")])
        assert header["embedding"]["dtype"] == "F8_E4M3"
        assert header["embedding_scale"]["dtype"] == "F32"
        assert header["embedding_scale"]["shape"] == [record["vocab"], -(-record["hidden"] // 128)]
    given = observations(case, data)
    for batch in (given, given[:1]):
        one, other = (actions(tmp_path / place, case, batch) for place in ("inside", "outside"))
        np.testing.assert_array_equal(one, other)
    # Another table is another policy.
    values = bytearray(table.read_bytes())
    values[-4000:] = bytes(reversed(values[-4000:]))
    table.write_bytes(values)
    with pytest.raises(BundleError, match=r"changed|sha256|damaged"):
        Policy.load(tmp_path / "outside", threads=1)


def test_a_token_without_a_row_is_refused(tmp_path: Path) -> None:
    data = data_of("pi05", tmp_path / "data")
    built("pi05", tmp_path / "bundle", "float32", embeddings="outside")
    policy = Policy.load(tmp_path / "bundle", threads=1)
    stage = policy._loop._stages["prefix"]
    stage._table.vocab = 9  # type: ignore[attr-defined]
    with pytest.raises(BundleError, match="its table has 9 rows"):
        policy.infer(observations("pi05", data)[0])


@pytest.mark.parametrize("case", POLICY_CASES)
def test_a_build_calibrates_once_and_takes_over(case: str, tmp_path: Path) -> None:
    data = data_of(case, tmp_path / "data")
    given = observations(case, data)
    built(case, tmp_path / "float", "float32")
    wanted = actions(tmp_path / "float", case, given)
    first, second = Watch(), Watch()
    made = built(case, tmp_path / "one", recipe_of("w8a8", data), progress=first)
    assert "denoise loop" in first.steps
    assert made.manifest.recipe["name"] == "w8a8"
    assert made.manifest.source["origin"]["files"]
    again = built(case, tmp_path / "two", recipe_of("w8a8", data), progress=second)
    assert "denoise loop" not in second.steps
    one, two = (actions(tmp_path / name, case, given) for name in ("one", "two"))
    np.testing.assert_array_equal(one, two)
    assert 1e-4 < relative(one, wanted) < 0.05
    assert again.manifest.stages.keys() == {"vision", "prefix", "denoise"}
    # By hand it is the same.
    options = PolicyOptions(**OPTIONS[case])
    source = POLICY_GOLDENS / case / "checkpoint"
    quantize_checkpoint(source, tmp_path / "folder", recipe=recipe_of("w8a8", data), policy=options)
    deploy(tmp_path / "folder", tmp_path / "three", recipe="stored", verify=False)
    np.testing.assert_array_equal(actions(tmp_path / "three", case, given), one)


def test_limits_are_those_of_the_build_and_other_specs_are_other_work(tmp_path: Path) -> None:
    data = data_of("pi0", tmp_path / "data")
    recipe, source = recipe_of("w8a8", data), POLICY_GOLDENS / "pi0" / "checkpoint"
    steps: dict[str, list[str]] = {}
    for name, changes in {"a": {}, "b": {"limits": Limits(deadline_ms=7.0)}, "c": {"steps": 3}}.items():
        watch = Watch()
        asked = PolicyRequest(options=PolicyOptions(**OPTIONS["pi0"], **changes))
        made = deploy(source, tmp_path / name, recipe=recipe, policy=asked, verify=False, progress=watch)
        steps[name] = watch.steps
        assert made.manifest.model["policy"]["limits"]["deadline_ms"] == (7.0 if name == "b" else None)
        assert made.manifest.model["policy"]["steps"] == changes.get("steps", 10)
    assert ["denoise loop" in steps[name] for name in ("a", "b", "c")] == [True, False, True]


def test_without_observations_a_build_says_so(tmp_path: Path) -> None:
    with pytest.raises(CalibrationDataError, match="is calibrated on observations, and there is none by default"):
        built("pi05", tmp_path / "bundle", "pi05-fp8")
    assert not (tmp_path / "bundle").exists()


def test_a_quantized_policy_is_not_quantized_again(tmp_path: Path) -> None:
    data = data_of("pi05", tmp_path / "data")
    source = POLICY_GOLDENS / "pi05" / "checkpoint"
    quantize_checkpoint(source, tmp_path / "folder", recipe=recipe_of("pi05-fp8", data))
    with pytest.raises(RecipeError, match="The checkpoint is quantized already"):
        quantize_checkpoint(tmp_path / "folder", tmp_path / "again", recipe=recipe_of("pi05-fp8", data))
    with pytest.raises(RecipeError, match="would round it a second time"):
        deploy(tmp_path / "folder", tmp_path / "bundle", recipe="policy-int8", verify=False)
    spec = dataclasses.replace(open_policy(source).spec)
    assert open_policy(tmp_path / "folder").spec == spec
