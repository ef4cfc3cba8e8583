"""`edgewright targets`: what is there, what isn't, and how to get it."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from edgewright.cli import targets
from edgewright.dialects import LOWERINGS
from edgewright.errors import MissingExtraError
from edgewright.plugins import ENGINES, TARGETS
from edgewright.runtime.engine import engine_names
from edgewright.targets import target_names
from edgewright.targets.external.tool import tool_names
from external_tools import on_path
from plugin_packages import describe

from .conftest import Cli


def test_everything_built_in_is_listed(cli: Cli) -> None:
    found = json.loads(cli("targets", "--json").out)
    assert [one["name"] for one in found["targets"]] == list(target_names())
    assert [one["name"] for one in found["dialects"]] == list(LOWERINGS)
    assert [one["name"] for one in found["engines"]] == list(engine_names())
    assert [one["name"] for one in found["tools"]] == list(tool_names())
    (cpu,) = [one for one in found["targets"] if one["name"] == "cpu"]
    assert cpu == {
        "name": "cpu",
        "package": "edgewright",
        "version": metadata.version("edgewright"),
        "compiler": None,
        "install": None,
        "dialect": "onnxruntime",
        "options": {},
        "problem": None,
    }
    text = cli("targets").out
    assert "\n  cpu " in text
    assert "dialect onnxruntime" in text
    sentence = (
        "Horizon hb_compile (Journey 6) needs the program hb_compile, which is not there: it comes with Horizon's"
    )
    assert sentence in text


def test_a_compiler_that_is_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without(name: str) -> str:
        if name == "openvino":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    monkeypatch.setattr("edgewright.targets.compiler_of", lambda name: "openvino" if name == "cpu" else None)
    (cpu,) = [one for one in targets.listed()["targets"] if one["name"] == "cpu"]
    assert cpu["compiler"] == {"package": "openvino", "version": None}
    assert cpu["install"] in ("pip install 'edgewright[openvino]'", "pip install openvino")
    assert f"openvino not installed: {cpu['install']}" in cli("targets").out


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MissingExtraError("X is not installed: pip install 'edgewright[x]'."), "X is not installed: pip install"),
        (ModuleNotFoundError("no", name="xyz"), "It needs the package xyz, which is not installed."),
    ],
)
def test_a_target_that_cannot_be_loaded_says_why(
    error: Exception, words: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("edgewright.targets.find_target", fail)
    result = cli("targets")
    assert result.code == 0
    assert words in result.out


def test_what_packages_bring(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(
        tmp_path / "site", "odd-package", "2.5", {TARGETS: {"odd": "no_such:plug"}, ENGINES: {"odd": "no_such:plug"}}
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = json.loads(cli("targets", "--json").out)
    odd = found["targets"][-1]
    assert (odd["name"], odd["package"], odd["version"], odd["dialect"]) == ("odd", "odd-package", "2.5", None)
    assert "The package odd-package, which brings odd, can't be imported" in odd["problem"]
    assert found["engines"][-1] == {"name": "odd", "package": "odd-package", "version": "2.5"}
    assert "\n  odd " in cli("targets").out
    assert "of odd-package 2.5" in cli("targets").out


def test_a_program_that_is_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, tmp_path)
    (tmp_path / "vendorcc").rename(tmp_path / "tvmc")
    tools = {one["name"]: one for one in json.loads(cli("targets", "--json").out)["tools"]}
    assert (tools["tvmc"]["version"], tools["tvmc"]["problem"]) == ("3.2.1", None)
    assert tools["tvmc"]["options"].keys() == {"target", "opt_level"}
    assert tools["qairt-converter"]["version"] is None
    assert "  tvmc                TVM (tvmc) 3.2.1\n" in cli("targets").out
