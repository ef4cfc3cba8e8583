from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgewright.errors import PlatformError, UsageError
from edgewright.targets.platform import (
    CONFIDENCES,
    FOLDER_VARIABLE,
    SOURCED,
    find_platform,
    platform_names,
    read_platform,
    shipped_platforms,
)

BOARD = """\
title: My board
aliases: [board]
memory_bytes: 4000000000
bandwidth_bytes_per_s: null
peak_ops_per_s: {int8: 2.0e+12}
float: float16
weights: [int4]
activations: []
caches: [int8]
compiler: null
engine: mine
sources:
  memory_bytes: {title: "Its data sheet", confidence: datasheet}
  bandwidth_bytes_per_s: {confidence: unknown}
  peak_ops_per_s: {title: "A blog", confidence: reported}
  formats: {title: "Tried out", confidence: reported}
"""
PLATFORMS = shipped_platforms()


@pytest.fixture(autouse=True)
def no_platforms_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))


def written(folder: Path, text: str, name: str = "my-board.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_platform_that_is_asked_for_ships() -> None:
    wanted = (
        "jetson-agx-orin-64gb jetson-agx-orin-32gb jetson-orin-nx-16gb jetson-orin-nano-8gb jetson-orin-nano-8gb-super "
        "jetson-agx-thor drive-thor dgx-spark rtx-4090 rtx-5090 snapdragon-8-gen-2 snapdragon-8-gen-3 "
        "snapdragon-8-elite snapdragon-x-elite sa8255p sa8775p sa8797p intel-core-ultra-cpu intel-core-ultra-gpu "
        "intel-core-ultra-npu x86-64-avx2 x86-64-avx512-vnni arm-cpu horizon-j5 horizon-j6p raspberry-pi-5-8gb cpu"
    )
    assert set(wanted.split()) <= PLATFORMS.keys() == set(platform_names())


@pytest.mark.parametrize("name", PLATFORMS)
def test_numbers_have_sources_and_make_sense(name: str) -> None:
    platform = PLATFORMS[name]
    assert platform.sources.keys() == set(SOURCED)
    assert {source.confidence for source in platform.sources.values()} <= set(CONFIDENCES)
    assert platform.sources["formats"].title
    assert "int8" in platform.weights
    peaks = platform.peak_ops_per_s
    for narrow, wide in (("float16", "float32"), ("int8", "float16"), ("fp8", "float16"), ("nvfp4", "fp8")):
        assert peaks.get(narrow, 9e99) >= 1.5 * peaks.get(wide, 0), (narrow, wide)
    if platform.memory_bytes is not None:
        assert 2 << 30 <= platform.memory_bytes <= 128 << 30
        assert platform.memory_bytes % (1 << 30) == 0
    assert platform.bandwidth_bytes_per_s is None or 10e9 < platform.bandwidth_bytes_per_s < 2e12


def test_some_numbers_of_data_sheets() -> None:
    orin, thor, pi = (PLATFORMS[name] for name in ("jetson-agx-orin-64gb", "jetson-agx-thor", "raspberry-pi-5-8gb"))
    assert orin.bandwidth_bytes_per_s == 204.8e9
    # 275 TOPS of int8 with sparsity: 170 of the GPU, half of them dense, and the accelerators'.
    assert 2 * orin.peak_ops_per_s["int8"] == pytest.approx(170e12, rel=0.01)
    assert 2 * thor.peak_ops_per_s["nvfp4"] == 2070e12
    assert (thor.memory_bytes, thor.bandwidth_bytes_per_s) == (128 << 30, 273e9)
    assert pi.bandwidth_bytes_per_s == 4267e6 * 4
    assert pi.float == "float32"
    assert orin.float == "float16"


def test_names_of_before_still_work() -> None:
    known = {
        "cpu": "cpu",
        "jetson-orin": "jetson-agx-orin-64gb",
        "orin": "jetson-agx-orin-64gb",
        "jetson-thor": "jetson-agx-thor",
        "drive-thor": "drive-thor",
        "rtx-ada": "rtx-4090",
        "rtx-blackwell": "rtx-5090",
        "snapdragon-htp": "snapdragon-htp",
        "jetson-orin-nx": "jetson-orin-nx-16gb",
    }
    assert {name: find_platform(name).name for name in known} == known


def test_every_alias_is_one_of_one_platform() -> None:
    aliases = [alias for platform in PLATFORMS.values() for alias in platform.aliases]
    assert len(aliases) == len({*aliases})
    assert not {*aliases} & PLATFORMS.keys()
    for platform in PLATFORMS.values():
        assert [find_platform(alias).name for alias in platform.aliases] == [platform.name] * len(platform.aliases)


@pytest.mark.parametrize(
    ("name", "near"),
    [("jetson-orinn", "jetson-orin"), ("snapdragon", "snapdragon-8-elite"), ("rpi4", "rpi5"), ("zzz", "known are")],
)
def test_an_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=re.escape(near)):
        find_platform(name)


@pytest.mark.parametrize("name", ["../cpu", "/etc/passwd", "cpu.yaml", "", "CPU", "a\nb"])
def test_names_lead_nowhere_else(name: str) -> None:
    with pytest.raises(UsageError, match="is unknown"):
        find_platform(name)


def test_a_file_is_a_platform(tmp_path: Path) -> None:
    board = read_platform(written(tmp_path, BOARD))
    assert (board.name, board.title, board.memory_bytes) == ("my-board", "My board", 4_000_000_000)
    assert board.bandwidth_bytes_per_s is None
    assert (board.peak_ops_per_s, board.float) == ({"int8": 2e12}, "float16")
    assert (board.weights, board.activations, board.caches) == ({"int4"}, frozenset(), {"int8"})
    assert (board.compiler, board.engine) == (None, "mine")
    assert board.sources["peak_ops_per_s"].title == "A blog"


@pytest.mark.parametrize("where", ["variable", "configuration"])
def test_a_folder_adds_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    folder = tmp_path / "edgewright" / "platforms"
    written(folder, BOARD)
    written(folder, BOARD.replace("My board", "My own RTX").replace("[board]", "[]"), "rtx-5090.yaml")
    if where == "variable":
        monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert find_platform("my-board").title == find_platform("board").title == "My board"
    assert find_platform("rtx-5090").title == "My own RTX"  # the user's goes first
    assert find_platform("cpu").title == "CPU"
    assert "my-board" in platform_names()


def test_aliases_may_stand_in_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, BOARD.replace("aliases: [board]", "aliases:\n- board\n- other"))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert find_platform("other").name == "my-board"


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "/nowhere/at/all")
    with pytest.raises(PlatformError, match=f"{FOLDER_VARIABLE} names .*nowhere.*no folder"):
        find_platform("cpu")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("weights: [int4]", "weights: [int5]", r"my-board\.yaml:7: the format of weights 'int5' is unknown"),
        ("weights: [int4]", "weights: int4", r"my-board\.yaml:7: weights are a list"),
        ("weights: [int4]\n", "", r"my-board\.yaml:1: a platform needs weights as well"),
        ("float: float16", "float: int8", r"my-board\.yaml:6: the float type 'int8' is unknown"),
        ("memory_bytes: 4000000000", "memory_bytes: -1", r"my-board\.yaml:3: memory_bytes .* must be a number"),
        ("memory_bytes: 4000000000", "memory_bytes: .inf", r"my-board\.yaml:3: memory_bytes .* must be a number"),
        ("memory_bytes: 4000000000", "memory_bytes: .nan", r"my-board\.yaml:3: memory_bytes .* must be a number"),
        ("memory_bytes: 4000000000", "memory_bytes: 4 GB", r"my-board\.yaml:3: memory_bytes .* must be a number"),
        (
            "memory_bytes: 4000000000",
            "memory_bytes: null",
            r"my-board\.yaml:13: memory_bytes has no number, so its conf",
        ),
        ("bandwidth_bytes_per_s: null", "bandwidth_bytes_per_s: 1.0e+10", r"bandwidth_bytes_per_s has a number, so it"),
        ("{int8: 2.0e+12}", "{int9: 2.0e+12}", r"my-board\.yaml:5: unknown key 'int9'; did you mean int8"),
        (
            "confidence: reported}\n  f",
            "confidence: sure}\n  f",
            r"my-board\.yaml:15: the confidence 'sure' is unknown",
        ),
        ('{title: "A blog", confidence: reported}', "{confidence: reported}", r"a source that is known has a title"),
        ("engine: mine", "engin: mine", r"my-board\.yaml:11: unknown key 'engin'; did you mean engine"),
        ("title: My board\n", "title: My board\ntitle: Other\n", r"my-board\.yaml:2: the key 'title' stands twice"),
        ("aliases: [board]", "aliases: [../x]", r"my-board\.yaml:2: the alias '\.\./x'"),
        ("title: My board", "title: &a My board", r"my-board\.yaml:1: not valid YAML \(anchors"),
        ("title: My board", "title: !!python/object:os.system x", r"my-board\.yaml:1: not valid YAML"),
        ("title: My board", "title: [", r"not valid YAML"),
        (BOARD, "", r"my-board\.yaml: expected a mapping"),
        (BOARD, "- 1\n", r"my-board\.yaml:1: expected a mapping"),
        (BOARD, "#" * 70_000, r"my-board\.yaml is too large"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in BOARD
    with pytest.raises(PlatformError, match=message):
        read_platform(written(tmp_path, BOARD.replace(before, after, 1)))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match=r"can't be read \(No such file"):
        read_platform(tmp_path / "none.yaml")
    with pytest.raises(PlatformError, match=r"can't be read \(Is a directory"):
        read_platform(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlatformError, match="no UTF-8"):
        read_platform(tmp_path / "bytes.yaml")
    with pytest.raises(PlatformError, match="named after its file"):
        read_platform(written(tmp_path, BOARD, "My Board.yaml"))
