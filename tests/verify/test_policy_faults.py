"""Bundles of policies with a planted fault: what is wrong must fail, at the levels that can see it."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.build.pipeline import _seal
from edgewright.bundle import read_manifest
from edgewright.errors import BundleError, GenerationError, GoldenError, UsageError
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.stages import STAGES
from edgewright.verify import policy_reference
from edgewright.verify.memory import Memory
from edgewright.verify.policy import verify_policy
from edgewright.verify.policy_against import verify_policy_against
from edgewright.verify.policy_reference import FloatStage
from edgewright.verify.report import Report
from policy_builds import Change, deploy_changed, deploy_policy, request_for, source_of, with_spec, with_tensor
from policy_goldens import POLICY_GOLDENS, TOKENIZER, policy_checkpoint

TRANSPOSED = with_tensor("encoder.layers.0.self_attn.q_proj.weight", lambda w: w.T)
SCALED = with_tensor("language_model.layers.1.self_attn.v_proj.weight", lambda w: 1.5 * w)
WITHOUT_ONE = with_tensor("language_model.layers.0.input_layernorm.weight", lambda w: w - 1.0)
STALE_TABLE = with_tensor("time_mlp_out.weight", lambda w: 1.2 * w)
SCHEDULE = with_spec(schedule="float32-sum")


def failed(report: Report) -> set[str]:
    return {name for name, level in report.levels.items() if level.faults}


@pytest.mark.parametrize(
    ("fault", "levels"),
    [
        (TRANSPOSED, {"weights", "stages", "actions"}),
        (SCALED, {"weights", "stages", "actions"}),
        (WITHOUT_ONE, {"weights", "stages", "actions"}),
        (STALE_TABLE, {"weights", "stages", "actions"}),
    ],
    ids=["transposed", "scale", "plus one", "stale table"],
)
@pytest.mark.parametrize("recipe", ["float32", "int8"])
def test_wrong_weights(
    fault: Change, levels: set[str], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy_changed(monkeypatch, "pi05", tmp_path / "b", fault, recipe)
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), threads=1)
    assert report.status == "failed"
    found = failed(report)
    assert "weights" in found
    if recipe == "float32":
        assert found == levels
    assert "features" not in found  # those are about the checkpoint's own weights


def test_the_worst_result_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy_changed(monkeypatch, "pi05", tmp_path / "b", SCALED)
    data = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), threads=1).to_json()
    stages = data["levels"]["stages"]
    assert stages["worst"] in ("prefix_value.1", "prefix_value.2", "prefix_key.2")
    gaps = stages["compared"]
    assert gaps["prefix_value.0"]["max_error"] < 1e-5 < gaps["prefix_value.1"]["max_error"]
    assert gaps["velocity of step 0"]["max_error"] < 1e-5  # denoise is fed what the reference gives
    assert len(data["levels"]["actions"]["dimensions"]) == 7
    json.dumps(data, allow_nan=False)


def test_a_wrong_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy_changed(monkeypatch, "pi05", tmp_path / "b", SCHEDULE)
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), threads=1)
    assert {"spec", "weights"} <= failed(report)
    assert "schedule is 'float32-sum' where the checkpoint says 'float64-linear'" in report.reason()


def rewritten(bundle: Path, **values: object) -> Path:
    manifest = read_manifest(bundle)
    policy = {**manifest.model["policy"], **values}
    _seal(bundle, dataclasses.replace(manifest, model={**manifest.model, "policy": policy}))
    return bundle


def test_swapped_cameras(tmp_path: Path) -> None:
    deploy_policy("pi05", tmp_path / "b")
    cameras = list(policy_checkpoint("pi05").spec.cameras)
    cameras[0], cameras[1] = cameras[1], cameras[0]
    report = verify_policy(rewritten(tmp_path / "b", cameras=cameras), policy_checkpoint("pi05"), threads=1)
    assert failed(report) == {"spec", "actions"}
    assert "cameras is" in report.reason()


def test_other_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(checkpoint: object) -> object:
        statistics = checkpoint.statistics  # type: ignore[attr-defined]
        actions = {name: 1.1 * values for name, values in statistics.actions.items()}
        return dataclasses.replace(checkpoint, statistics=dataclasses.replace(statistics, actions=actions))  # type: ignore[type-var]

    deploy_changed(monkeypatch, "pi05", tmp_path / "b", moved)  # type: ignore[arg-type]
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), threads=1)
    assert failed(report) == {"spec", "actions"}
    gaps = report.to_json()["levels"]["actions"]["compared"]
    assert gaps["normalized"]["max_error"] < 1e-4 < gaps["real units"]["max_error"]


def test_a_changed_graph(tmp_path: Path) -> None:
    """A node's attribute: the norm's epsilon is in no weight."""
    import onnx

    deploy_policy("pi05", tmp_path / "b")
    path = tmp_path / "b/stages/prefix/model.onnx"
    model = onnx.load(path, load_external_data=False)
    node = next(n for n in model.graph.node if any(a.name == "epsilon" for a in n.attribute))
    next(a for a in node.attribute if a.name == "epsilon").f = 0.5
    path.write_bytes(model.SerializeToString(deterministic=True))
    manifest = read_manifest(tmp_path / "b")
    _seal(tmp_path / "b", dataclasses.replace(manifest, files={}))
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), threads=1)
    assert "graph" in failed(report)


LARGE: dict[str, tuple[str, ...]] = {"nothing fits": ("vision", "prefix", "denoise"), "all but the prefix": ("prefix",)}


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_what_does_not_fit_into_memory_is_not_checked(
    large: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy_policy("pi05", tmp_path / "b", "int8")
    answers = iter([name not in large for name in STAGES])  # asked stage by stage
    monkeypatch.setattr(Memory, "holds", lambda self, needed: next(answers))
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), threads=1)
    assert report.passed
    data = report.to_json()
    assert data["status"] == "partly checked"
    for name in ("stages", "features", "actions"):
        assert "not checked here: needs" in data["levels"][name]["summary"]
        assert data["levels"][name]["status"] != "passed"
    assert data["levels"]["weights"]["status"] == "passed"
    compared = data["levels"]["stages"]["compared"]
    wanted = {"image_features", "velocity of step 0", "velocity of step 5", "velocity of step 9"}
    assert set(compared) == (wanted if len(large) == 1 else set())
    assert all(1e-5 < figures["max_error"] < 0.2 for figures in compared.values())


def test_a_bundle_that_is_too_large_to_compare_is_run_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy_policy("pi05", tmp_path / "b", "int8")

    def status(change: Callable[[np.ndarray], np.ndarray] | None) -> str:
        with monkeypatch.context() as patch:
            if change is not None:
                plain = Policy.infer

                def infer(self: Policy, *given: Any, **more: Any) -> Any:
                    chunk = plain(self, *given, **more)
                    return dataclasses.replace(chunk, actions=change(chunk.actions))

                patch.setattr(Policy, "infer", infer)
            report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), memory_bytes=1000, threads=1)
            return str(report.to_json()["levels"]["actions"]["status"])

    assert status(None) == "not checked"
    assert status(lambda actions: actions * np.float32(np.nan)) == "failed"
    assert status(lambda actions: actions[:-1]) == "failed"

    def broken(*given: object, **more: object) -> None:
        raise GenerationError("The engine stopped.")

    monkeypatch.setattr(Policy, "infer", broken)
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), memory_bytes=1000, threads=1)
    assert report.status == "failed"
    assert "the bundle does not run: The engine stopped" in report.reason()


def test_one_float_engine_at_a_time_and_little_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the bundle; what is the same is written once, and what was compared is deleted."""
    deploy_policy("pi05", tmp_path / "b")
    alive: weakref.WeakSet[OnnxRuntimeEngine] = weakref.WeakSet()
    most, written, together, scratch = [0], [], [0], set()
    load, write = FloatStage.load, policy_reference.write_stage

    def loaded(self: FloatStage, threads: int | None, advance: Any) -> OnnxRuntimeEngine:
        engine = load(self, threads, advance)
        alive.add(engine)
        most[0] = max(most[0], len(alive))
        return engine

    def wrote(stage: Any, folder: Path, **options: Any) -> Any:
        written.append("/".join(folder.parts[-2:]))
        scratch.add(folder.parents[1])
        together[0] = max(together[0], sum(path.is_dir() for path in folder.parents[1].iterdir()))
        return write(stage, folder, **options)

    monkeypatch.setattr(FloatStage, "load", loaded)
    monkeypatch.setattr(policy_reference, "write_stage", wrote)
    assert verify_policy(tmp_path / "b", policy_checkpoint("pi05"), threads=1).passed
    assert most[0] == 1
    assert len(written) == len(set(written))
    assert {name for name in written if name.startswith("plain/")} == {"plain/prefix"}  # which kv-only changes
    assert together[0] == 3  # the reference, the plain stages, those of one feature
    (place,) = scratch
    assert place.parent == tmp_path.resolve()
    assert not place.exists()


def test_a_limit_of_memory(tmp_path: Path) -> None:
    deploy_policy("pi0", tmp_path / "b")
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi0"), memory_bytes=1000, threads=1)
    assert report.status == "partly checked"
    assert "float32 vision and prefix and denoise" in report.to_json()["levels"]["actions"]["summary"]


@pytest.mark.parametrize(
    "features",
    [
        {"loop": "graph"},
        {"loop": "unrolled", "norm-folding": True},
        {"kv-transposed": True, "kv-only": False, "prefix-compaction": False},
        {"time-table": False, "fused-projections": False, "view-batching": False},
    ],
    ids=["loop", "unrolled", "transposed", "plain"],
)
@pytest.mark.parametrize("case", ["pi05", "smolvla"])
def test_every_rewrite_that_is_on_is_compared(case: str, features: dict[str, bool | str], tmp_path: Path) -> None:
    built = deploy_policy(case, tmp_path / "b", policy=request_for(case, features))
    report = verify_policy(tmp_path / "b", policy_checkpoint(case), threads=1)
    assert report.status == "passed", report.reason()
    off = {"loop": "step"}
    on = {name for name, value in built.manifest.model["features"].items() if value != off.get(name, False)}
    assert set(report.to_json()["levels"]["features"]["compared"]) == on


def test_against_a_checkpoint_with_the_options_of_the_build(tmp_path: Path) -> None:
    deploy_policy("pi05_libero", tmp_path / "b")
    source = source_of("pi05_libero")
    assert verify_policy_against(tmp_path / "b", source, tokenizer=TOKENIZER, threads=1).status == "passed"
    without = verify_policy_against(tmp_path / "b", source, threads=1)
    assert without.status == "partly checked"
    assert "give --tokenizer" in without.to_json()["levels"]["spec"]["summary"]
    assert without.against == {"kind": "checkpoint", "name": "checkpoint"}


def test_against_goldens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy_policy("pi0", tmp_path / "b", policy=request_for("pi0", {"time-table": False}))
    report = verify_policy_against(tmp_path / "b", POLICY_GOLDENS / "pi0", threads=1)
    assert report.status == "passed"
    assert len(report.to_json()["levels"]["golden"]["compared"]) > 10
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "golden.json").write_text('{"scenarios": {"one": {"steps": 1, "cameras": [], "prompts": ["a"]}}}')
    (broken / "golden.safetensors").write_bytes((POLICY_GOLDENS / "pi0/golden.safetensors").read_bytes())
    with pytest.raises(GoldenError, match="can't be read as a golden of this policy"):
        verify_policy_against(tmp_path / "b", broken, threads=1)
    deploy_changed(monkeypatch, "pi05", tmp_path / "w", WITHOUT_ONE)
    assert failed(verify_policy_against(tmp_path / "w", POLICY_GOLDENS / "pi05", threads=1)) == {"golden"}
    deploy_policy("pi0", tmp_path / "s", policy=request_for("pi0", steps=4))
    with pytest.raises(GoldenError, match="time-table=off"):
        verify_policy_against(tmp_path / "s", POLICY_GOLDENS / "pi0", threads=1)


def test_what_does_not_belong_together(tmp_path: Path) -> None:
    deploy_policy("pi05", tmp_path / "b")
    with pytest.raises(BundleError, match="was not built from this checkpoint"):
        verify_policy(tmp_path / "b", policy_checkpoint("pi0"))
    with pytest.raises(UsageError, match="edgewright eval"):
        verify_policy_against(tmp_path / "b", tmp_path / "b")


def test_observations_of_ones_own(tmp_path: Path) -> None:
    deploy_policy("pi05", tmp_path / "b")
    random, cameras = np.random.default_rng(3), policy_checkpoint("pi05").spec.cameras
    seen = [
        {
            "images": {n: random.integers(0, 256, (31, 43, 3), np.uint8) for n in cameras},
            "state": random.uniform(-0.5, 0.5, 8).astype(np.float32),
            "prompt": "wipe the table",
        }
        for _ in range(2)
    ]
    report = verify_policy(tmp_path / "b", policy_checkpoint("pi05"), observations=seen, threads=1)
    assert report.status == "passed"
