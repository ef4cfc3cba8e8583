from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgewright.build.pipeline import _seal
from edgewright.bundle import check_files, read_manifest

from .conftest import Cli
from .tiny import the_sentence

#: The levels of an int8 bundle against a golden that holds its checkpoint.
LEVELS = ["weights", "ops", "engine", "quality", "golden"]


@pytest.fixture
def made(cli: Cli, llama: Path, tmp_path: Path) -> Path:
    """A fresh int8 bundle of `llama`, not verified."""
    output = tmp_path / "bundle"
    assert cli("deploy", llama, "-o", output, "--recipe", "int8", "--no-verify").code == 0
    return output


def test_a_verdict_is_printed_and_recorded(cli: Cli, made: Path, llama: Path) -> None:
    result = cli("verify", made, "--against", llama)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "verdict   passed"
    assert [line.split(":")[0] for line in lines[1:]] == [f"  {level}" for level in LEVELS]
    manifest = read_manifest(made)
    check_files(made, manifest)
    assert manifest.verdict["status"] == "passed"
    assert set(manifest.verdict["levels"]) == set(LEVELS)
    assert json.loads((made / "reports" / "verify.json").read_text())["status"] == "passed"
    assert "**passed**" in (made / "README.md").read_text()
    assert "verdict   passed" in cli("inspect", made).out


def test_json(cli: Cli, made: Path, llama: Path) -> None:
    data = json.loads(cli("verify", made, "--against", llama, "--json").out)
    assert data["status"] == "passed"
    assert data["levels"]["quality"]["status"] == "passed"
    assert data == json.loads((made / "reports" / "verify.json").read_text())


def test_without_a_source_only_files_are_checked(cli: Cli, made: Path) -> None:
    files = len(read_manifest(made).files)
    result = cli("verify", made)
    assert result.code == 0
    assert result.out == (
        f"files     all {files} as they were written\n"
        "verdict   cannot check here: the numbers were not compared, give --against CHECKPOINT\n"
        "recorded  not checked\n"
    )
    data = json.loads(cli("verify", made, "--json").out)
    assert data == {"status": "not checked", "files": files, "recorded": {"status": "not checked"}}


def test_a_wrong_engine_fails(cli: Cli, made: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import edgewright.verify

    class Wrong:
        passed = False

        def reason(self) -> str:
            return "engine: the cosine is 0.5."

        def to_json(self) -> dict[str, Any]:
            return {"status": "failed", "levels": {"engine": {"status": "failed", "summary": "cosine 0.5"}}}

    monkeypatch.setattr(edgewright.verify, "verify", lambda *args, **kwargs: Wrong())
    result = cli("verify", made, "--against", llama)
    assert result.code == 1
    assert result.out == "verdict   failed\n  engine: failed, cosine 0.5\n"
    the_sentence(result.err, "the bundle failed verification: engine: the cosine is 0.5")
    assert read_manifest(made).verdict["status"] == "failed"


def test_a_bundle_that_can_not_be_written(cli: Cli, made: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def refuse(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.parent == made.parent:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        real(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", refuse)
    result = cli("verify", made, "--against", llama)
    assert result.code == 0
    assert result.out.startswith("verdict   passed\n")
    (line,) = [line for line in result.err.splitlines() if line.startswith("note: the verdict was not recorded")]
    assert "can't be written (Read-only file system)" in line
    assert read_manifest(made).verdict == {"status": "not checked"}


def test_another_checkpoint(cli: Cli, made: Path, talker: Path) -> None:
    result = cli("verify", made, "--against", talker)
    assert result.code == 3
    the_sentence(result.err, "not built from this checkpoint")
    result = cli("verify", made, "--against", talker / "nowhere")
    assert result.code == 3
    the_sentence(result.err, "nowhere does not exist")


def test_where_when_and_why_are_printed(cli: Cli, made: Path, llama: Path, tmp_path: Path) -> None:
    """A norm of the engine gets another epsilon: the command says so, in words, as JSON and as a page."""
    graph = made / "stages" / "llm" / "engine.onnx"
    model = onnx.load(graph, load_external_data=False)
    nodes = [n for n in model.graph.node if n.op_type == "SkipSimplifiedLayerNormalization" and "layers.1" in n.name]
    (epsilon,) = [a for a in nodes[-1].attribute if a.name == "epsilon"]
    epsilon.f = 0.5
    graph.write_bytes(model.SerializeToString())
    _seal(made, dataclasses.replace(read_manifest(made), files={}))
    page = tmp_path / "deep" / "page.html"
    result = cli("verify", made, "--against", llama, "--page", page)
    assert result.code == 1
    where, when, why, note = result.out.splitlines()[-4:]
    assert where == "where     layer 1 post_attention_layernorm (RMSNorm, in engine.onnx)"
    assert when == "when      from position 0, in prefill"
    assert why.startswith("why       norm: epsilon 0.5 instead of 0.002")
    assert note == "note      the graph is right: compiling it brought the fault in"
    the_sentence(result.err, "first wrong at layer 1 post_attention_layernorm, from position 0, in prefill")
    text = page.read_text()
    assert "layer 1 post_attention_layernorm" in text
    report = json.loads((made / "reports" / "verify.json").read_text())
    assert report["localisation"]["cause"]["class"] == "norm"
    assert set(read_manifest(made).verdict) == {"status", "levels"}


def test_another_bundle_gives_no_verdict(cli: Cli, made: Path, plain_bundle: Path) -> None:
    result = cli("verify", made, "--against", plain_bundle)
    assert result.code == 0, result.err
    assert result.out.startswith("verdict   passed\n  bundles: passed, ")
    assert read_manifest(made).verdict == {"status": "not checked"}


def test_options_that_need_something_to_compare_with(cli: Cli, made: Path, tmp_path: Path) -> None:
    for options in (["--page", tmp_path / "page.html"], ["--live", "python"]):
        result = cli("verify", made, *options)
        assert result.code == 2
        the_sentence(result.err, "need --against")
