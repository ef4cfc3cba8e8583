from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgewright import LLM
from edgewright.bundle import check_files, read_manifest

from .conftest import Cli
from .tiny import GOLDENS, the_sentence


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_an_exported_graph_computes_the_golden(cli: Cli, dialect: str, llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "graph"
    result = cli("export", llama, "-o", output, "--dialect", dialect)
    assert result.code == 0
    assert f"-> recipe float32 -> {dialect} graph -> " in result.err
    assert "target    none (exported, not compiled)" in result.out
    manifest = read_manifest(output)
    check_files(output, manifest)
    assert manifest.stages["llm"].dialect == dialect
    assert manifest.target is None
    domains = {node.domain for node in onnx.load(output / "stages/llm/model.onnx").graph.node}
    assert ("com.microsoft" in domains) == (dialect == "onnxruntime")
    with np.load(GOLDENS / "text" / "llama" / "expected.npz") as expected:
        logits = LLM.load(output).session().append(expected["ids"][0], logits="all")
        np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)


def test_exporting_again_does_nothing(cli: Cli, llama: Path, tmp_path: Path) -> None:
    words = ("export", llama, "-o", tmp_path / "graph", "--json")
    made = json.loads(cli(*words).out)
    assert made["recipe"] == {"name": "float32", "formats": {"float32": 23}, "bit_exact": 23, "modules": 23}
    assert json.loads(cli(*words).out) == {**made, "reused": True}
    result = cli(*words, "--dialect", "onnxruntime")
    assert result.code == 4
    the_sentence(result.err, "exists already")


def test_unknown_dialect(cli: Cli, llama: Path, tmp_path: Path) -> None:
    result = cli("export", llama, "-o", tmp_path / "graph", "--dialect", "npu")
    assert result.code == 2
    the_sentence(result.err, "'npu' is unknown", "portable, onnx-qdq, onnxruntime")


def test_compile_makes_an_export_what_deploy_makes(cli: Cli, llama: Path, plain_bundle: Path, tmp_path: Path) -> None:
    exported, bundle = tmp_path / "graph", tmp_path / "bundle"
    assert cli("export", llama, "-o", exported, "--dialect", "onnxruntime").code == 0
    result = cli("compile", exported, "-o", bundle)
    assert result.code == 0
    assert "target    cpu\nverdict   not checked\n" in result.out
    ours, theirs = read_manifest(bundle), read_manifest(plain_bundle)
    check_files(bundle, ours)
    for name in ("stages/llm/engine.onnx", "stages/llm/weights.bin"):
        assert ours.files[name] == theirs.files[name]
    check_files(exported, read_manifest(exported))
    again = cli("compile", exported, "-o", bundle, "--json")
    assert again.code == 4
    the_sentence(again.err, "exists already")
    assert json.loads(cli("compile", exported, "-o", bundle, "--force", "--json").out)["target"] == "cpu"


def test_a_portable_graph_is_not_compiled(cli: Cli, llama: Path, tmp_path: Path) -> None:
    assert cli("export", llama, "-o", tmp_path / "graph").code == 0
    result = cli("compile", tmp_path / "graph", "-o", tmp_path / "bundle")
    assert result.code == 3
    the_sentence(result.err, "portable dialect", "--dialect onnxruntime")
    result = cli("compile", tmp_path / "graph", "-o", tmp_path / "bundle", "--target", "tpu")
    assert result.code == 2
    the_sentence(result.err, "'tpu' is unknown")
    assert {path.name for path in tmp_path.iterdir()} == {"graph"}
