"""Builds whose stages run on different engines: verified, recorded, compiled again, chosen by measurement."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.build import choice, pipeline
from edgewright.build.choice import REPORT
from edgewright.build.engines import engine_request
from edgewright.build.pipeline import compile_bundle, deploy
from edgewright.bundle import check_files, read_manifest
from edgewright.checkpoint import open_checkpoint
from edgewright.cli import main
from edgewright.errors import BundleError, HostError, MissingExtraError, UnsupportedFormatError, UsageError
from edgewright.runtime.llm import LLM
from edgewright.runtime.policy import Policy
from edgewright.targets.openvino import BACKEND
from edgewright.verify import verify_bundle
from policy_builds import deploy_policy


@pytest.fixture(scope="module")
def pair(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair") / "b"
    return deploy(source, folder, recipe="int8", engines=engine_request("prefill=openvino")).path


def test_a_pair_is_verified_through_both(pair: Path) -> None:
    manifest = read_manifest(pair)
    check_files(pair, manifest)
    assert manifest.verdict["status"] == "passed"
    assert set(manifest.verdict["levels"]) == {
        "weights", "ops", "engine", "quality", "prefill weights", "prefill ops",
    }  # fmt: skip
    assert {name: (e.dialect, e.runtime) for name, e in manifest.stages.items()} == {
        "llm": ("onnxruntime", "onnxruntime"),
        "prefill": ("openvino", "openvino"),
    }


def test_a_fault_in_the_second_stage_is_found(pair: Path, source: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pair, tmp_path / "b"))
    manifest = read_manifest(folder)
    weights = folder / "stages" / "prefill" / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[4096:4160] = bytes(64)
    weights.write_bytes(data)
    pipeline._seal(folder, _without(manifest, "stages/prefill/weights.bin"))
    report = verify_bundle(folder, open_checkpoint(source))
    assert not report.passed
    assert report.levels["prefill weights"].faults
    assert not report.levels["weights"].faults


def _without(manifest: Any, name: str) -> Any:
    files = {key: entry for key, entry in manifest.files.items() if key != name}
    return dataclasses.replace(manifest, files=files)


def test_a_bundle_of_several_engines_is_compiled_again_for_each(pair: Path, tmp_path: Path) -> None:
    again = compile_bundle(pair, tmp_path / "again")
    assert {name: e.runtime for name, e in again.manifest.stages.items()} == {
        "llm": "onnxruntime",
        "prefill": "openvino",
    }
    ids = list(range(40))
    one, two = (LLM.load(path, threads=1).session().append(ids) for path in (pair, again.path))
    np.testing.assert_array_equal(one, two)
    with pytest.raises(BundleError, match="in the onnxruntime dialect, which openvino can't run"):
        compile_bundle(pair, tmp_path / "other", target="openvino")
    assert not (tmp_path / "other").exists()


def test_stages_of_a_policy_on_different_engines(tmp_path: Path) -> None:
    engines = engine_request("vision=openvino,denoise=openvino")
    built = deploy_policy("pi05", tmp_path / "b", "policy-int8", engines=engines, verify=True)
    assert built.manifest.verdict["status"] == "passed"
    assert [entry.runtime for entry in built.manifest.stages.values()] == ["openvino", "onnxruntime", "openvino"]
    again = deploy_policy("pi05", tmp_path / "b", "policy-int8", engines=engines, verify=True)
    assert again.reused


def test_what_a_model_hasnt_is_refused_before_anything_is_done(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no stage denoise in a language model: its stages are llm, prefill"):
        deploy(source, tmp_path / "b", engines=engine_request("denoise=openvino"))
    with pytest.raises(UsageError, match="no stage llm in a policy: its stages are vision, prefix, denoise"):
        deploy_policy("pi05", tmp_path / "b", engines=engine_request("llm=openvino"))
    with pytest.raises(UsageError, match="--engine chooses among the engines of --target cpu, and openvino has one"):
        deploy(source, tmp_path / "b", target="openvino", engines=engine_request("openvino"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["openvino", "prefill=openvino", "auto"])
def test_an_engine_that_is_not_installed(
    engine: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else real(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'edgewright\[openvino\]'"):
        deploy(source, tmp_path / "b", engines=engine_request(engine))
    assert deploy(source, tmp_path / "b", recipe="float32", verify=False).path.exists()


MS = {"onnxruntime": {"prefill": 100.0, "decode": 10.0}, "openvino": {"prefill": 50.0, "decode": 20.0}}


def fake_worker(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let measurements be numbers of ours; returns the stages in the order they are asked for."""
    asked: list[str] = []

    def run(folder: Path, stage: str, threads: int | None = None) -> dict[str, Any]:
        engine = read_manifest(folder).stages[stage].runtime
        asked.append(f"{stage} on {engine}")
        ms = MS[engine] if stage == "llm" else {"run": 5.0 if (stage == "prefix") == (engine == "openvino") else 9.0}
        return {"load_ms": 7.0, "peak_bytes": 1000, "ms": {phase: [number] for phase, number in ms.items()}}

    monkeypatch.setattr(choice, "run_worker", run)
    return asked


def test_engines_by_measurement(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    asked = fake_worker(monkeypatch)
    args = ["deploy", str(source), "-o", str(tmp_path / "b"), "--recipe", "float32", "--no-verify", "--engine", "auto"]
    assert main(args) == 0
    assert asked == ["llm on onnxruntime", "llm on openvino", "llm on openvino", "llm on onnxruntime", *asked[:2]]
    manifest = read_manifest(tmp_path / "b")
    assert [entry.runtime for entry in manifest.stages.values()] == ["onnxruntime", "openvino"]
    report = json.loads((tmp_path / "b" / REPORT).read_bytes())
    assert report["engines"] == {"llm": "onnxruntime", "prefill": "openvino"}
    assert report["measured"][1]["ms"] == MS["openvino"]
    assert "llm on onnxruntime, prefill on openvino" in manifest.notes[-1]
    out, table = capsys.readouterr()
    assert "engines   llm on ONNX Runtime, prefill on OpenVINO\n" in out
    card = (tmp_path / "b" / "README.md").read_text(encoding="utf-8")
    assert "| engines | llm on ONNX Runtime, prefill on OpenVINO |" in card
    assert "<- llm" in table
    assert "<- prefill" in table
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]
    # The same is not measured again.
    assert main(args) == 0
    assert len(asked) == 6


def test_engines_of_a_policy_by_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worker(monkeypatch)
    refused = "OpenVINO has no form for it"

    def compile_stage(work: Any, compile_: Any = BACKEND.compile) -> Any:
        if work.name == "denoise":
            raise UnsupportedFormatError(refused)
        return compile_(work)

    monkeypatch.setattr(BACKEND, "compile", compile_stage)
    built = deploy_policy("pi0", tmp_path / "b", engines=engine_request("auto"))
    assert [entry.runtime for entry in built.manifest.stages.values()] == ["onnxruntime", "openvino", "onnxruntime"]
    report = json.loads((built.path / REPORT).read_bytes())
    assert report["refused"] == {"denoise on openvino": refused}
    assert len(report["measured"]) == 5
    again = compile_bundle(built.path, tmp_path / "again")
    assert REPORT not in again.manifest.files  # it was measured elsewhere
    assert Policy.load(again.path, threads=1).spec.kind == "pi0"


def test_a_stage_that_runs_nowhere(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "run_worker", lambda folder, stage: {"error": "its process ended with -11"})
    with pytest.raises(HostError, match=r"No engine runs the stage llm here \(its process ended with -11; its"):
        deploy(source, tmp_path / "b", recipe="float32", engines=engine_request("auto"))
    assert not list(tmp_path.iterdir())
