from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from edgewright.bundle import check_files, read_manifest

from .conftest import Cli
from .tiny import the_sentence


@pytest.fixture
def made(cli: Cli, llama: Path, tmp_path: Path) -> Path:
    """A fresh int8 bundle of `llama`, not verified."""
    output = tmp_path / "bundle"
    assert cli("deploy", llama, "-o", output, "--recipe", "int8", "--no-verify").code == 0
    return output


def test_a_verdict_is_printed_and_recorded(cli: Cli, made: Path, llama: Path) -> None:
    result = cli("verify", made, "--source", llama)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "verdict   passed"
    assert [line.split(":")[0] for line in lines[1:]] == ["  weights", "  engine", "  quality"]
    manifest = read_manifest(made)
    check_files(made, manifest)
    assert manifest.verdict["status"] == "passed"
    assert set(manifest.verdict["levels"]) == {"weights", "engine", "quality"}
    assert json.loads((made / "reports" / "verify.json").read_text())["status"] == "passed"
    assert "**passed**" in (made / "README.md").read_text()
    assert "verdict   passed" in cli("inspect", made).out


def test_json(cli: Cli, made: Path, llama: Path) -> None:
    data = json.loads(cli("verify", made, "--source", llama, "--json").out)
    assert data["status"] == "passed"
    assert data["levels"]["quality"]["status"] == "passed"
    assert data == json.loads((made / "reports" / "verify.json").read_text())


def test_without_a_source_only_files_are_checked(cli: Cli, made: Path) -> None:
    files = len(read_manifest(made).files)
    result = cli("verify", made)
    assert result.code == 0
    assert result.out == (
        f"files     all {files} as they were written\n"
        "verdict   cannot check here: the numbers were not compared, give --source CHECKPOINT\n"
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

    monkeypatch.setattr(edgewright.verify, "verify_bundle", lambda *args, **kwargs: Wrong())
    result = cli("verify", made, "--source", llama)
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
    result = cli("verify", made, "--source", llama)
    assert result.code == 0
    assert result.out.startswith("verdict   passed\n")
    (line,) = [line for line in result.err.splitlines() if line.startswith("note: the verdict was not recorded")]
    assert "can't be written (Read-only file system)" in line
    assert read_manifest(made).verdict == {"status": "not checked"}


def test_another_checkpoint(cli: Cli, made: Path, talker: Path) -> None:
    result = cli("verify", made, "--source", talker)
    assert result.code == 3
    the_sentence(result.err, "not built from this checkpoint")
    result = cli("verify", made, "--source", talker / "nowhere")
    assert result.code == 3
    the_sentence(result.err, "nowhere does not exist")
