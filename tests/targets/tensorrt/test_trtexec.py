"""trtexec as a builder: it is run in the stage's folder, and speaks for itself where it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.pipeline import deploy
from edgewright.bundle import read_manifest
from edgewright.errors import TargetMismatchError, ToolError
from edgewright.runtime.llm import LLM
from edgewright.targets.platform import find_platform

GOOD = """
echo '&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec'
for word in "$@"; do case "$word" in --saveEngine=*) printf engine > "${word#--saveEngine=}";; esac; done
printf timings > engine.timing
"""
BAD = """
echo '[01/01/2027-00:00:00] [E] Error[9]: Skipping tactic due to insufficient memory'
echo '[01/01/2027-00:00:00] [E] Engine could not be created from network' >&2
exit 1
"""


@pytest.fixture
def trtexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Put a program called trtexec before all others on the PATH."""

    def put(text: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "trtexec").write_text("#!/bin/sh\n" + text, encoding="utf-8")
        (folder / "trtexec").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return put


def build(output: Path, **options: str) -> None:
    deploy(
        TEXT_GOLDENS / "llama",
        output,
        recipe="float16",
        target="tensorrt",
        platform=find_platform("orin"),
        options=options,
        max_context=32,
        verify=False,
    )


def test_the_engine_and_its_version_are_taken_over(trtexec, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trtexec(GOOD)
    build(tmp_path / "b", builder="trtexec")
    entry = read_manifest(tmp_path / "b").stages["llm"]
    assert entry.machine is not None
    assert (entry.runtime, entry.machine.arch, entry.machine.version) == ("tensorrt", "sm87", "10.3.0")
    assert (tmp_path / "b" / "stages" / "llm" / "engine.trt").read_bytes() == b"engine"
    assert not (tmp_path / "b" / "stages" / "llm" / "engine.timing").exists()  # it holds this machine's clock


def test_its_failure_is_told_in_its_own_words(trtexec, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trtexec(BAD)
    with pytest.raises(ToolError, match=r"can't build llm \(exit 1\): Error\[9\]: Skipping tactic due to insufficient"):
        build(tmp_path / "b", builder="trtexec")
    assert not (tmp_path / "b").exists()


def test_an_engine_that_is_not_there_is_a_failure(trtexec, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trtexec("echo done\n")
    with pytest.raises(ToolError, match=r"can't build llm \(exit 0\): done"):
        build(tmp_path / "b", builder="trtexec")


def test_scripts_leave_a_bundle_for_the_device(tmp_path: Path) -> None:
    library = tmp_path / "libattention.so"
    library.write_bytes(b"code")
    build(tmp_path / "b", builder="script", plugins=str(library))
    folder = tmp_path / "b" / "stages" / "llm"
    entry = read_manifest(tmp_path / "b").stages["llm"]
    assert entry.engine is None
    assert (folder / "engine" / "libattention.so").read_bytes() == b"code"
    assert "--staticPlugins=engine/libattention.so" in (folder / "engine" / "build_engine.sh").read_text(
        encoding="utf-8"
    )
    assert str(tmp_path) not in (folder / "engine.plan.json").read_text(encoding="utf-8")
    with pytest.raises(TargetMismatchError, match="compiled for sm87"):
        LLM.load(tmp_path / "b")
