"""Who builds an engine, for which GPU, and what is refused before any work is done."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from edgewright.errors import MissingExtraError, PlatformError, ToolError, UsageError
from edgewright.targets import find_target, goal_key
from edgewright.targets.platform import find_platform, read_platform, shipped_platforms
from edgewright.targets.tensorrt import tool

ADA, ORIN, THOR, SPARK = (find_platform(name) for name in ("rtx-4090", "orin", "thor", "dgx-spark"))


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Put programs, and no others, on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return put


def test_every_nvidia_platform_says_its_capability() -> None:
    for name, platform in shipped_platforms().items():
        assert (platform.compute_capability is not None) == (platform.compiler == "tensorrt"), name


@pytest.mark.parametrize(
    ("platform", "arch"), [(ADA, "sm89"), (ORIN, "sm87"), (THOR, "sm110"), (SPARK, "sm121")], ids=lambda p: str(p)[:20]
)
def test_platforms_give_the_gpu(platform, arch: str, on_path) -> None:  # type: ignore[no-untyped-def]
    assert tool.asked_of(platform, {"builder": "script"}).arch == arch


def test_auto_takes_what_is_there(on_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(tool, "has_rtx", lambda: True)
    assert tool.asked_of(ADA, {}).builder == tool.RTX
    assert tool.asked_of(ORIN, {}).builder == tool.SCRIPT  # no GPU of the kind here, and RTX builds for none of them
    on_path("trtexec", "exit 0")
    assert tool.asked_of(ORIN, {}).builder == tool.SCRIPT
    on_path("nvidia-smi", "echo 8.7")
    assert tool.asked_of(ORIN, {}).builder == tool.TRTEXEC
    monkeypatch.setattr(tool, "has_rtx", lambda: False)
    assert tool.asked_of(ADA, {}).builder == tool.SCRIPT


@pytest.mark.parametrize(
    ("platform", "options", "words"),
    [
        (None, {}, "name the platform with --for"),
        (find_platform("cpu"), {}, "names no compute_capability"),
        (None, {"capability": "ada"}, "capability=ada is no compute capability"),
        (ADA, {"capability": "8.6"}, "isn't that of the platform rtx-4090, which is 8.9"),
        (ADA, {"builder": "polygraphy"}, "known are auto, rtx, trtexec, script"),
        (ORIN, {"builder": "rtx"}, "not 8.7: use builder=script"),
        (ADA, {"workspace": "0"}, "workspace=0 is no whole number"),
        (ADA, {"batch": "many"}, "batch=many is no whole number"),
        (ADA, {"plugins": "/nowhere/libfoo.so"}, "The plug-in library /nowhere/libfoo.so is not there"),
    ],
)
def test_what_is_wrong_costs_nothing(platform, options: dict[str, str], words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=words):
        find_target("tensorrt").require(platform, options)


def test_two_plugins_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lib.so").write_bytes(b"")
    with pytest.raises(UsageError, match="Two plug-in libraries have one file name"):
        tool.asked_of(ADA, {"plugins": f"{tmp_path}/a/lib.so:{tmp_path}/b/lib.so"})


def test_plugins_are_libraries(tmp_path: Path) -> None:
    """They are copied beside the scripts, whose names they can't have."""
    for name in ("build_engine.sh", "libmine.so", "libmine.so.10"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=r"build_engine\.sh is no \.so file"):
        tool.asked_of(ADA, {"plugins": str(tmp_path / "build_engine.sh"), "builder": "script"})
    found = tool.asked_of(ADA, {"plugins": f"{tmp_path}/libmine.so.10:{tmp_path}/libmine.so", "builder": "script"})
    assert [path.name for path in found.plugins] == ["libmine.so.10", "libmine.so"]


def test_a_missing_builder_is_named(on_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(tool, "has_rtx", lambda: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgewright\[tensorrt\]'"):
        tool.asked_of(ADA, {"builder": "rtx"})
    with pytest.raises(ToolError, match="trtexec is not on the PATH"):
        tool.asked_of(ADA, {"builder": "trtexec"})
    on_path("trtexec", "exit 0")
    on_path("nvidia-smi", "echo 8.6")
    with pytest.raises(UsageError, match=r"capability is 8\.6, not 8\.9"):
        tool.asked_of(ADA, {"builder": "trtexec"})


def test_builders_and_plugins_decide_over_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "has_rtx", lambda: False)
    library = tmp_path / "lib.so"
    library.write_bytes(b"1")
    options = {"plugins": str(library)}
    keys = [goal_key("tensorrt", ADA, options)]
    library.write_bytes(b"2")
    keys.append(goal_key("tensorrt", ADA, options))
    monkeypatch.setattr(tool, "has_rtx", lambda: True)
    keys.append(goal_key("tensorrt", ADA, options))
    keys.append(goal_key("tensorrt", replace(ADA, compute_capability="8.6"), options))
    assert all(keys[i] != keys[j] for i in range(4) for j in range(i))


@pytest.mark.parametrize("value", ["8.9", "89", '"sm89"'])
def test_a_capability_in_a_platform_file_is_checked(value: str, tmp_path: Path) -> None:
    """A number without quotes would lose the zero of 12.0."""
    shipped = resources.files("edgewright.targets") / "platforms" / "rtx-4090.yaml"
    text = shipped.read_text(encoding="utf-8").replace('compute_capability: "8.9"', f"compute_capability: {value}")
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlatformError, match=r"mine\.yaml:13.*compute_capability"):
        read_platform(path)
