"""Builds of robot policies: bundles that give the originals' actions, and the rules that all builds follow."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.build import pipeline
from edgewright.build.key import policy_record
from edgewright.build.pipeline import compile_bundle, deploy
from edgewright.build.sources import PolicyRequest
from edgewright.bundle import check_files, read_manifest
from edgewright.checkpoint.policy import PolicyOptions
from edgewright.errors import BundleError, ConfigError, OutputError, UsageError, VerificationError
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.spec import Limits
from edgewright.targets import cpu
from edgewright.verify.policy_golden import policy_scenarios
from policy_builds import deploy_policy, export_policy, request_for, source_of
from policy_goldens import POLICY_CASES, POLICY_GOLDENS, policy_checkpoint

#: Of actions that are about 1 to 5: float32 sums in another order; eight bits, which ten steps add up.
TOLERANCE = {"float32": 1e-4, "int8": 0.15}


@pytest.mark.parametrize("recipe", ["float32", "int8"])
@pytest.mark.parametrize("case", POLICY_CASES)
def test_verified_bundles_give_the_originals_actions(case: str, recipe: str, tmp_path: Path) -> None:
    built = deploy_policy(case, tmp_path / "b", recipe, verify=True)
    assert built.manifest.verdict["status"] == "passed"
    assert set(built.manifest.verdict["levels"]) == {"spec", "weights", "stages", "features", "actions"}
    check_files(built.path, read_manifest(built.path))
    policy, compared = Policy.load(built.path, threads=1), 0
    for scenario in policy_scenarios(POLICY_GOLDENS / case, policy.spec):
        if scenario.steps != policy.spec.steps:
            continue
        chunks = policy.infer_batch(scenario.observations, scenario.noise)
        for chunk, wanted, real in zip(chunks, scenario.normalized, scenario.actions, strict=True):
            error = np.abs(chunk.normalized[:, : wanted.shape[1]] - wanted).max()
            assert error < TOLERANCE[recipe]
            assert recipe == "float32" or error > 1e-4  # eight bits leave a trace
            if recipe == "float32":
                np.testing.assert_allclose(chunk.actions, real, rtol=0, atol=1e-4 * np.abs(real).max())
            compared += 1
    assert compared


@pytest.mark.parametrize("case", ["pi05", "pi0", "smolvla"])
def test_every_number_of_steps_without_a_table(case: str, tmp_path: Path) -> None:
    built = deploy_policy(case, tmp_path / "b", policy=request_for(case, {"time-table": False}))
    assert "schedule" not in built.manifest.model
    policy = Policy.load(built.path, threads=1)
    seen = set()
    for scenario in policy_scenarios(POLICY_GOLDENS / case, policy.spec):
        chunks = policy.infer_batch(scenario.observations, scenario.noise, scenario.steps)
        for chunk, wanted in zip(chunks, scenario.normalized, strict=True):
            assert np.abs(chunk.normalized[:, : wanted.shape[1]] - wanted).max() < 1e-4
        seen.add(scenario.steps)
    assert seen == {1, 3, 10}


def test_what_the_manifest_says(tmp_path: Path) -> None:
    built = deploy_policy("pi05", tmp_path / "b", "int8")
    manifest, checkpoint = built.manifest, policy_checkpoint("pi05")
    model = manifest.model
    assert model["model_type"] == "pi05"
    assert model["policy"] == checkpoint.spec.to_json()
    assert model["parameters"] == sum(int(np.prod(t.shape)) for t in checkpoint.tensors.values())
    assert model["layers"] == {"vision": 2, "prefix": 3, "denoise": 3}
    assert model["features"]["kv-only"] is True
    assert model["features"]["loop"] == "step"
    assert model["schedule"]["steps"] == checkpoint.spec.steps
    assert list(manifest.stages) == ["vision", "prefix", "denoise"]
    assert all(entry.engine == f"stages/{name}/engine.onnx" for name, entry in manifest.stages.items())
    assert manifest.source == policy_record(checkpoint)
    assert "tokenizer/tokenizer.json" in manifest.source["files"]
    for name, rule in checkpoint.ignored:
        assert any(name in note and rule in note for note in manifest.notes)
    modules = {module["module"]: module for module in manifest.recipe["modules"]}
    assert modules["action_in_proj"]["dtype"] == "float32"
    assert modules["action_in_proj"]["kind"] == "projection"
    assert all(m.get("bits") == 8 for m in modules.values() if m["kind"] != "projection")
    per_stage = manifest.recipe["stages"]
    assert sum(stage["modules"] for stage in per_stage.values()) == manifest.recipe["summary"]["modules"]
    sidecars = checkpoint.sidecars()
    assert {(built.path / "sidecars" / name).read_bytes() for name in sidecars} == set(sidecars.values())
    card = (built.path / "README.md").read_text(encoding="utf-8")
    assert "observation.images.base_0_rgb" in card
    assert "in 10 denoise steps" in card


def test_limits_and_options_are_recorded(tmp_path: Path) -> None:
    limits = Limits(maximum=(1.0,) * 7, deadline_ms=50.0, fallback="stop")
    asked = request_for("pi05_libero", limits=limits, delta_mask=(True, False))
    built = deploy_policy("pi05_libero", tmp_path / "b", policy=asked)
    assert built.manifest.model["policy"]["limits"] == limits.to_json()
    said = built.manifest.model["options"]
    assert said["discrete_state"] is False
    assert said["delta_mask"] == [True, False]
    assert "tokenizer" not in said
    assert str(POLICY_GOLDENS) not in json.dumps(built.manifest.to_json())


def test_an_unchanged_build_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = deploy_policy("pi0", tmp_path / "b")
    monkeypatch.setattr("edgewright.build.policy.build_featured", None)  # would fail if anything were built
    again = deploy_policy("pi0", tmp_path / "b")
    assert again.reused
    assert again.manifest.key == first.manifest.key


@pytest.mark.parametrize(
    "more",
    [
        {"recipe": "int8"},
        {"policy": request_for("pi0", steps=4)},
        {"policy": request_for("pi0", {"time-table": False})},
        {"policy": request_for("pi0", delta_mask=(True,))},
        {"policy": request_for("pi0", limits=Limits(deadline_ms=5.0))},
        {"verify": True},
    ],
    ids=["recipe", "steps", "feature", "mask", "limits", "verify"],
)
def test_other_options_are_another_build(more: dict[str, Any], tmp_path: Path) -> None:
    deploy_policy("pi0", tmp_path / "b")
    with pytest.raises(OutputError, match="exists already"):
        deploy_policy("pi0", tmp_path / "b", **more)


def test_force_replaces_a_bundle_and_never_the_source(tmp_path: Path) -> None:
    deploy_policy("pi0", tmp_path / "b")
    assert deploy_policy("pi0", tmp_path / "b", "int8", force=True).manifest.recipe["name"] == "int8"
    source = Path(shutil.copytree(source_of("pi05"), tmp_path / "source"))
    with pytest.raises(OutputError, match="source exists and is no bundle"):
        deploy(source, source, recipe="float32", verify=False, force=True)


def test_a_failed_verification_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_stage = cpu.compile_stage

    def damage(folder: Path, *args: Any, **kwargs: Any) -> Any:
        raw = bytearray((folder / "weights.bin").read_bytes())
        raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
        (folder / "weights.bin").write_bytes(raw)
        return compile_stage(folder, *args, **kwargs)

    monkeypatch.setattr(cpu, "compile_stage", damage)
    with pytest.raises(VerificationError, match="failed verification and was not kept: weights:"):
        deploy_policy("pi0", tmp_path / "b", verify=True)
    assert not list(tmp_path.iterdir())


def test_too_little_space_is_said_before_weights_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 1000, 1000))
    monkeypatch.setattr(pipeline, "write_stage", None)
    with pytest.raises(OutputError, match="The build needs"):
        deploy_policy("pi0", tmp_path / "b")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dialect", ["portable", "onnx-qdq", "onnxruntime"])
def test_exports_run_in_every_dialect(dialect: str, tmp_path: Path) -> None:
    exported = export_policy("pi05", tmp_path / "e", dialect=dialect)
    assert exported.manifest.target is None
    assert {entry.dialect for entry in exported.manifest.stages.values()} == {dialect}
    policy = Policy.load(exported.path, threads=1)
    scenario = next(s for s in policy_scenarios(POLICY_GOLDENS / "pi05", policy.spec) if s.steps == 10)
    (chunk,) = policy.infer_batch(scenario.observations, scenario.noise)
    assert np.abs(chunk.normalized - scenario.normalized[0]).max() < 1e-4


def test_an_export_compiles_to_the_bytes_that_deploy_makes(tmp_path: Path) -> None:
    export_policy("pi0", tmp_path / "e", dialect="onnxruntime", recipe="int8")
    compiled = compile_bundle(tmp_path / "e", tmp_path / "c")
    deployed = deploy_policy("pi0", tmp_path / "d", "int8")
    mine, theirs = compiled.manifest.files, deployed.manifest.files
    assert mine.keys() == theirs.keys()
    assert {name for name in mine if mine[name] != theirs[name]} <= {"README.md"}
    assert compiled.manifest.verdict == {"status": "not checked"}
    export_policy("pi0", tmp_path / "p")
    with pytest.raises(BundleError, match="in the portable dialect"):
        compile_bundle(tmp_path / "p", tmp_path / "x")


def test_what_has_no_meaning_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-context"):
        deploy_policy("pi05", tmp_path / "b", max_context=64)
    llama = POLICY_GOLDENS.parent / "text" / "llama"
    with pytest.raises(UsageError, match="--steps, --feature"):
        deploy(llama, tmp_path / "b", policy=PolicyRequest(PolicyOptions(steps=3), {"loop": "graph"}))
    with pytest.raises(ConfigError, match="discrete_state"):
        deploy(source_of("pi05_libero"), tmp_path / "b", recipe="float32")
    with pytest.raises(UsageError, match="loop"):
        deploy_policy("pi05", tmp_path / "b", policy=request_for("pi05", {"loop": "graph", "time-table": False}))
    assert not list(tmp_path.iterdir())
