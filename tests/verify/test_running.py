"""Bundles for devices that are not here: what stands in for their engines, and what the verdict then says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime as ort
import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.pipeline import deploy, export
from edgewright.bundle import read_manifest, write_manifest
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import TargetMismatchError
from edgewright.runtime.engine import open_engine
from edgewright.runtime.engines.onnxruntime import session_options
from edgewright.runtime.llm import LLM
from edgewright.verify import running, verify_bundle
from edgewright.verify.localise import Candidate
from edgewright.verify.thresholds import COMPUTES, ENGINE, with_type

SENTENCE = "The device itself never ran it."


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A bundle whose stage runs on another device's engine."""
    deploy(TEXT_GOLDENS / "llama", tmp_path / "b", recipe="float32", verify=False)
    manifest = read_manifest(tmp_path / "b")
    entry = manifest.stages["llm"]
    settings = {"computes": "float16"}
    moved = replace(entry, runtime="elsewhere", machine=None, settings=settings, engine=None)
    write_manifest(tmp_path / "b", replace(manifest, stages={"llm": moved}, target="elsewhere"))
    return tmp_path / "b"


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(root: Path, entry: Any, threads: int | None) -> Any:
        settings = {"optimization": "all", "threads": 0, "config": {}}
        return open_engine(root, replace(entry, runtime="onnxruntime", settings=settings), threads=threads), SENTENCE

    monkeypatch.setattr(running, "find_target", lambda name: SimpleNamespace(name=name, stand_in=stand_in))


@pytest.mark.parametrize("recipe", ["int4", "int8"])
def test_the_graph_of_another_engine_keeps_codes_as_codes(recipe: str, tmp_path: Path) -> None:
    """Weights that are decoded when it is loaded to be looked into would take eight times their size."""
    export(TEXT_GOLDENS / "llama", tmp_path / "b", dialect="openvino", recipe=recipe)
    entry = replace(read_manifest(tmp_path / "b").stages["llm"], runtime="openvino")
    graph = Candidate(tmp_path / "b", entry).running()
    options = session_options(graph.settings, 1)
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(str(tmp_path / "b" / entry.graph), options, providers=["CPUExecutionProvider"])
    tensors = onnx.load(tmp_path / "loaded.onnx", load_external_data=False).graph.initializer
    sizes = dict.fromkeys((onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8), 0)
    for tensor in tensors:
        if tensor.data_type in sizes:
            sizes[tensor.data_type] += math.prod(tensor.dims)
    assert 0 < sizes[onnx.TensorProto.FLOAT] < sizes[onnx.TensorProto.UINT8] / 4


def test_it_does_not_load_here(elsewhere: Path) -> None:
    with pytest.raises(TargetMismatchError, match="runs on elsewhere, for which nothing is installed here"):
        LLM.load(elsewhere)


@pytest.mark.usefixtures("stood_in")
def test_what_stands_in_is_verified_and_the_rest_is_not_claimed(elsewhere: Path) -> None:
    report = verify_bundle(elsewhere, open_checkpoint(TEXT_GOLDENS / "llama"), threads=1)
    assert report.status == "partly checked"
    said = json.loads(json.dumps(report.to_json()))["levels"]
    assert said["device"] == {"status": "not checked", "summary": SENTENCE, "not_checked": [SENTENCE]}
    assert "float16" in said["ops"]["summary"]
    assert said["quality"]["status"] == "passed"


@pytest.mark.usefixtures("stood_in")
def test_a_fault_is_found_all_the_same(elsewhere: Path) -> None:
    weights = elsewhere / "stages/llm/weights.bin"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
    weights.write_bytes(bytes(data))
    manifest = read_manifest(elsewhere)
    files = {name: entry for name, entry in manifest.files.items() if name != "stages/llm/weights.bin"}
    from edgewright.bundle.manifest import file_entries

    write_manifest(elsewhere, replace(manifest, files=file_entries(elsewhere, files)))
    report = verify_bundle(elsewhere, open_checkpoint(TEXT_GOLDENS / "llama"), threads=1)
    assert report.status == "failed"
    assert "weights" in report.reason()


def test_bounds_widen_with_the_type_that_is_computed_in() -> None:
    exact = ENGINE[False]
    assert with_type(exact, "float32") is exact
    half = with_type(exact, "float16")
    assert half.kl == pytest.approx(exact.kl + COMPUTES["float16"].kl)
    assert half.cosine == COMPUTES["float16"].cosine
    assert with_type(ENGINE[True], "uint16").max_error is None
