"""The process that measures a stage: what it runs, and what it says when that goes wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MakeBundle
from edgewright.bench import stage_worker
from edgewright.build.choice import run_worker
from edgewright.bundle import read_manifest
from edgewright.contract import TensorContract
from policy_builds import deploy_policy


def answer(monkeypatch: pytest.MonkeyPatch, capsys: Any, **job: Any) -> dict[str, Any]:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"threads": 1, **job})))
    assert stage_worker.main() == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_language_model(shared_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    calls: list[int] = []
    real = stage_worker.prefill_s
    monkeypatch.setattr(stage_worker, "prefill_s", lambda llm, ids: calls.append(len(ids)) or real(llm, ids))
    found = answer(monkeypatch, capsys, folder=str(shared_bundle("int4")), stage="llm")
    assert set(found["ms"]) == {"prefill", "decode"}
    assert set(calls) == {255}  # the context has no room for more
    assert len(calls) == 1 + len(found["ms"]["prefill"])
    assert all(ms > 0 for phase in found["ms"].values() for ms in phase)
    assert found["load_ms"] > 0


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy_policy("pi0", tmp_path_factory.mktemp("policy") / "b").path


@pytest.mark.parametrize("stage", ["vision", "prefix", "denoise"])
def test_the_stages_of_a_policy(policy: Path, stage: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    found = answer(monkeypatch, capsys, folder=str(policy), stage=stage)
    assert set(found["ms"]) == {"run"}
    assert min(found["ms"]["run"]) > 0


def test_sizes_are_those_of_one_observation(policy: Path) -> None:
    manifest = read_manifest(policy)
    spec = stage_worker.policy_spec(manifest)
    contracts = {name: entry.contract for name, entry in manifest.stages.items()}
    sizes = stage_worker.sizes_of(spec, contracts["denoise"], contracts["prefix"])
    slots = len(spec.cameras) * spec.image_tokens
    assert sizes["batch"] == 1
    assert sizes["views"] == len(spec.cameras)
    assert sizes["prefix"] == slots + spec.max_tokens
    assert sizes["horizon"] == spec.horizon


def test_inputs_are_numbers_that_a_stage_may_see() -> None:
    random = np.random.default_rng(0)

    def made(name: str, dtype: str) -> np.ndarray:
        return stage_worker._input(TensorContract(name, dtype, ("batch", 64)), {"batch": 2}, random)

    assert (made("prefix_mask", "int64") == 1).all()
    assert (made("token_ids", "int64") == 0).all()
    assert 0.5 < made("x_t", "float32").std() < 1.5
    codes = made("prefix_key.0", "float8_e4m3fn")
    assert codes.dtype == np.uint8
    assert codes.max() < 0x7F  # no NaN
    assert made("prefix_key.0", "int8").min() > 0


def test_what_is_wrong_with_a_bundle_is_the_answer(tmp_path: Path, policy: Path) -> None:
    assert "does not exist" in run_worker(tmp_path / "none", "llm", 1)["error"]
    assert "process ended with 1 (KeyError: 'no such'" in run_worker(policy, "no such", 1)["error"]
