"""The target `external` from end to end, with stand-ins for other vendors' compilers."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.tiny import llama_folder
from conftest import TEXT_GOLDENS, golden
from edgewright.build.pipeline import Built, compile_bundle, deploy, export
from edgewright.bundle import check_files, read_manifest
from edgewright.errors import OutputError, TargetMismatchError, ToolError, UsageError
from edgewright.runtime.engine import open_engine
from edgewright.runtime.session import Session
from edgewright.targets import goal_key
from edgewright.targets.external.backend import BACKEND
from edgewright.targets.platform import find_platform
from external_tools import on_path, tool_file
from policy_builds import deploy_policy

LLAMA = TEXT_GOLDENS / "llama"


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def build(tmp_path: Path, mode: str = "good", name: str = "b", **changes: Any) -> Built:
    options = {"tool": str(tool_file(tmp_path / "vendor.yaml", mode, **changes))}
    return deploy(LLAMA, tmp_path / name, recipe="float32", target="external", options=options, verify=False)


def engine_files(bundle: Path, stage: str = "llm") -> dict[str, bytes]:
    folder = bundle / "stages" / stage / "engine"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_product_log_and_record_are_in_the_bundle(tmp_path: Path) -> None:
    words = [{"each": "inputs", "words": ["--in", "{name}:{dtype}:{shape}"]}]
    command = ["vendorcc", "good", "{model}", "{output}", "{stage}-{option:speed}", *words]
    built = build(
        tmp_path,
        commands=[command],
        products=["output/net.bin", "output/*.json"],
        options={"speed": {"default": "fast", "values": ["fast", "slow"]}},
        shapes={"batch": 1, "seq": 4, "capacity": 16, "positions": 1},
        static=True,
        files={"config.txt": "for {stage}, braces {{}}"},
    )
    files = engine_files(built.path)
    assert set(files) == {"net.bin", "net.json", "tool.json", "tool.log"}
    assert json.loads(files["net.json"])[:5] == [
        "llm-fast",
        "--in",
        "input_ids:int64:1,4",
        "--in",
        "past_lengths:int64:1",
    ]
    record = json.loads(files["tool.json"])
    assert (record["tool"], record["version"], record["products"]) == ("vendor", "3.2.1", ["net.bin", "net.json"])
    assert record["commands"][0][:5] == ["vendorcc", "good", "model.onnx", "output", "llm-fast"]
    assert record["samples"] == {"count": 2, "format": "raw", "kind": "seeded token ids", "seed": 0}
    assert record["log_sha256"] == hashlib.sha256(files["tool.log"]).hexdigest()
    log = files["tool.log"].decode()
    assert "in WORK: ['calibration', 'config.txt', 'model.onnx', 'output', 'weights.bin']" in log
    assert str(tmp_path) not in log + files["tool.json"].decode()
    entry = read_manifest(built.path).stages["llm"]
    assert (entry.runtime, entry.engine, entry.dialect) == ("vendor", "stages/llm/engine/net.bin", "onnx-qdq")
    assert entry.contract.bounds["seq"] == (1, 256)
    assert {path.name for path in (built.path / "stages" / "llm").iterdir()} == {"model.onnx", "weights.bin", "engine"}
    check_files(built.path, built.manifest)


def test_the_same_build_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(tmp_path, name="one")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    second = build(tmp_path, name="two")
    assert engine_files(first.path) == engine_files(second.path)
    assert build(tmp_path, name="one").reused
    # Another tool file of the same name is another build.
    with pytest.raises(OutputError, match="one"):
        build(tmp_path, name="one", title="Vendor compiler 2")


def test_what_decides_over_a_product(tmp_path: Path) -> None:
    """Files that the tool is told of; and its programs, where they can't be asked for a version."""
    speed = {"default": "none"}
    file, data = tool_file(tmp_path / "vendor.yaml", options={"speed": speed}), tmp_path / "speed.json"
    mute = tool_file(tmp_path / "mute.yaml", version=...)
    script = tool_file(tmp_path / "script.yaml", commands=[["vendorcc", "good", str(tmp_path / "script.py")]])
    given = {"tool": str(file), "set": f"speed={data}"}

    def told() -> list[Any]:
        return [goal_key("external", None, options) for options in (given, {"tool": str(mute)}, {"tool": str(script)})]

    every = []
    for place in (data, tmp_path / "bin" / "vendorcc", tmp_path / "script.py"):
        every.append(told())
        with place.open("a") as stream:
            stream.write("# more\n")
    every.append(told())
    changed = [[one != two for one, two in zip(*pair, strict=True)] for pair in itertools.pairwise(every)]
    assert changed == [[True, False, False], [False, True, False], [False, False, True]]
    assert json.dumps(every[-1])


def test_it_runs_nowhere_here_and_its_graph_stands_in(tmp_path: Path) -> None:
    built = build(tmp_path)
    entry = built.manifest.stages["llm"]
    with pytest.raises(TargetMismatchError, match="The bundle's stage runs on vendor, for which nothing is installed"):
        open_engine(built.path, entry)
    found = BACKEND.stand_in(built.path, entry, 1)
    assert found is not None
    engine, sentence = found
    assert sentence.startswith("The product of Vendor compiler does not run here")
    reference = golden("llama")
    logits = Session(engine).append(reference.ids, logits="all")
    np.testing.assert_allclose(logits, reference.logits, rtol=1e-3, atol=1e-4)


def test_a_text_calibrates_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "talker")
    options = {"tool": str(tool_file(tmp_path / "vendor.yaml")), "samples": "3"}
    built = deploy(source, tmp_path / "b", target="external", options=options, verify=False)
    record = json.loads(engine_files(built.path)["tool.json"])
    assert record["samples"] == {"count": 3, "format": "raw", "kind": "text", "seed": 0}
    none = deploy(source, tmp_path / "c", target="external", options={**options, "samples": "0"}, verify=False)
    assert json.loads(engine_files(none.path)["tool.json"])["samples"]["kind"] == "none"


def test_exported_folders_and_policies(tmp_path: Path) -> None:
    options = {"tool": str(tool_file(tmp_path / "vendor.yaml"))}
    export(LLAMA, tmp_path / "e", dialect="onnx-qdq")
    built = compile_bundle(tmp_path / "e", tmp_path / "b", target="external", options=options)
    again = compile_bundle(built.path, tmp_path / "c", target="external", options=options)
    assert engine_files(built.path) == engine_files(again.path)
    policy = deploy_policy("smolvla", tmp_path / "p", target="external", options=options)
    assert {name: set(engine_files(policy.path, name)) for name in policy.manifest.stages} == {
        name: {"net.bin", "tool.json", "tool.log"} for name in ("vision", "prefix", "denoise")
    }


@pytest.mark.parametrize(
    ("mode", "changes", "sentence"),
    [
        (
            "words",
            {},
            r"^Vendor compiler failed \(exit code 3\) on the stage llm and said: ERROR: layer 7 has a shape ",
        ),
        (
            "words",
            {"errors": ...},
            r"said: INFO all is well / ERROR: layer 7 has a shape that I don't like / goodbye; all",
        ),
        (
            "silent",
            {},
            r"failed \(exit code 9\) on the stage llm and said nothing; all it said is in .*vendor-llm\.log",
        ),
        ("killed", {}, r"failed \(signal 9\) on the stage llm"),
        ("hangs", {"timeout_s": 1, "environment": {"TOLD": "told"}}, r"was not done after 1 s on the stage llm"),
        ("nothing", {}, r"ended without an error and left nothing that matches output/net\.bin"),
        ("outside", {}, r"changed stages/llm/weights\.bin of the bundle, which is outside its own folder"),
        ("link", {}, r"left output/net\.bin, which is a link: products must be files of its own folder"),
        ("linked folder", {"products": ["output/*/net.bin"]}, r"left output/all/net\.bin, which is a link"),
        ("pipe", {}, r"left output/net\.bin, which is no plain file"),
        ("odd name", {"products": ["output/*"]}, r"left a product called 'net\\udcff', which no bundle can name"),
        ("good", {"products": ["output/net.bin", "*.txt"], "files": {"x.txt": "x"}}, r"nothing that matches \*\.txt"),
    ],
)
def test_failures_have_the_tools_own_words(mode: str, changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=sentence) as error:
        build(tmp_path, mode, **changes)
    assert str(error.value).endswith(".")
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "cache", "vendor.yaml"}
    if mode == "words":
        log = (tmp_path / "cache" / "edgewright" / "tools" / "vendor-llm.log").read_text()
        assert log.splitlines() == [
            "$ vendorcc words model.onnx output",
            "reading model.onnx",
            "INFO all is well",
            "ERROR: layer 7 has a shape that I don't like",
            "goodbye",
        ]


def test_other_codes_may_mean_success(tmp_path: Path) -> None:
    built = build(
        tmp_path,
        commands=[["vendorcc", "silent", "x", "y"], ["vendorcc", "good", "{model}", "{output}"]],
        success=[0, 9],
    )
    assert engine_files(built.path)["tool.log"].startswith(
        b"$ vendorcc silent x y\n$ vendorcc good model.onnx output\n"
    )


def test_a_huge_log_is_cut(tmp_path: Path) -> None:
    log = engine_files(build(tmp_path, "talks", log_bytes=2000).path)["tool.log"].decode()
    assert len(log) < 2200
    assert "\n[598000 bytes are left out]\n" in log
    assert log.endswith("\nthe last word\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "The target external needs to know the compiler: add --target-option tool=NAME, one of hb_compile"),
        ({"shapes": "seq"}, "--target-option shapes='seq' isn't of the form NAME=VALUE"),
        ({"shapes": "seq=x"}, "the size of seq must be a whole number"),
        ({"set": "speed=warp"}, "speed can't be 'warp'; it is one of fast, slow"),
        ({"set": "warp=1"}, "Vendor compiler has no option 'warp'; it has speed"),
        ({"samples": "-1"}, "samples must be a whole number"),
        ({"timeout": "0"}, "timeout must be a whole number from 1"),
        ({"jobs": "1"}, "The target external takes no option jobs; it takes tool, shapes"),
    ],
)
def test_wrong_options_are_refused_before_work(options: dict[str, str], sentence: str, tmp_path: Path) -> None:
    speed = {"speed": {"default": "fast", "values": ["fast", "slow"]}}
    tool = {"tool": str(tool_file(tmp_path / "vendor.yaml", options=speed))} if options else {}
    with pytest.raises(UsageError) as error:
        deploy(LLAMA, tmp_path / "b", target="external", options={**tool, **options}, verify=False)
    assert sentence in str(error.value)


def test_platforms_that_a_tool_does_not_know(tmp_path: Path) -> None:
    file = tool_file(
        tmp_path / "vendor.yaml",
        options={"arch": {"default": "a"}},
        platforms={"horizon-j6m": {"arch": "m"}},
        arch="{option:arch}",
    )
    for platform, arch in ((None, "a"), ("horizon-j6m", "m")):
        found = find_platform(platform) if platform else None
        built = deploy(
            LLAMA, tmp_path / arch, target="external", platform=found, options={"tool": str(file)}, verify=False
        )
        assert json.loads(engine_files(built.path)["tool.json"])["arch"] == arch
    with pytest.raises(UsageError, match="doesn't compile for Horizon Journey 5; it does for horizon-j6m"):
        BACKEND.require(find_platform("horizon-j5"), {"tool": str(file)})


def test_programs_that_are_missing_or_dumb(tmp_path: Path) -> None:
    for name, words in (("hb_compile", "OpenExplorer"), ("qairt-converter", "AI Runtime SDK"), ("tvmc", "apache-tvm")):
        with pytest.raises(ToolError, match=f"needs the program {name}, which is not there: .*{words}"):
            BACKEND.require(None, {"tool": name})
    file = tool_file(
        tmp_path / "vendor.yaml", version={"command": ["vendorcc", "--version"], "pattern": "release (.*)"}
    )
    with pytest.raises(
        ToolError, match=r"doesn't say its version when it is asked by vendorcc --version \(Vendor comp"
    ):
        BACKEND.require(None, {"tool": str(file)})


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never happened")


def running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_interrupt_ends_the_tool_and_leaves_nothing(tmp_path: Path) -> None:
    told = tmp_path / "told"
    file = tool_file(tmp_path / "vendor.yaml", "hangs", environment={"TOLD": str(told)})
    words = ["deploy", str(LLAMA), "-o", str(tmp_path / "b"), "--no-verify", "--target", "external"]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgewright", *words, "--target-option", f"tool={file}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: told.is_file() and len(told.read_text().split()) == 2)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "edgewright: interrupted"
    wait_for(lambda: not any(map(running, told.read_text().split())))
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "cache", "vendor.yaml", "told"}
