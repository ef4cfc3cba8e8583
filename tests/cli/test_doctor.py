from __future__ import annotations

import json
import os
from importlib import metadata

import pytest

from edgewright import __version__
from edgewright.bundle import this_machine
from edgewright.cli import _health

from .conftest import Cli


def test_json(cli: Cli) -> None:
    result = cli("doctor", "--json")
    assert result.code == 0
    data = json.loads(result.out)
    assert data["versions"]["edgewright"] == __version__
    assert data["versions"]["onnxruntime"] == metadata.version("onnxruntime")
    assert data["machine"]["features"] == list(this_machine().features)
    assert data["machine"]["logical_cores"] == os.cpu_count()
    assert 1 <= data["machine"]["physical_cores"] <= data["machine"]["logical_cores"]
    assert 0 < data["memory"]["available_bytes"] <= data["memory"]["total_bytes"]
    assert data["disk"]["free_bytes"] > 0
    assert data["extras"]["host"]["missing"] == []
    assert data["extras"]["host"]["packages"]["onnx"] == metadata.version("onnx")
    assert "dev" not in data["extras"]
    assert data["engine"] == {"ok": True, "detail": "a graph of one node ran"}


def test_text(cli: Cli) -> None:
    result = cli("doctor")
    assert result.code == 0
    assert ["extra", "host", "present"] in [line.split() for line in result.out.splitlines()]
    assert result.out.endswith("works: a graph of one node ran\n")


def test_a_missing_extra_says_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = metadata.version

    def version(name: str) -> str:
        if name in ("onnx-ir", "pyyaml"):
            raise metadata.PackageNotFoundError(name)
        return plain(name)

    monkeypatch.setattr(_health.metadata, "version", version)
    assert "lacks onnx-ir, pyyaml: pip install 'edgewright[host]'" in cli("doctor").out


def test_an_engine_that_does_not_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["SomeExecutionProvider"])
    result = cli("doctor")
    assert result.code == 4
    assert "DOES NOT WORK: this ONNX Runtime has no CPU provider" in result.out
    assert json.loads(cli("doctor", "--json").out)["engine"]["ok"] is False


def test_without_proc(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_health, "_proc", lambda name: "")
    data = json.loads(cli("doctor", "--json").out)
    assert data["memory"] == {"total_bytes": None, "available_bytes": None}
    assert data["machine"]["cpu"] is None
    assert "unknown available of unknown" in cli("doctor").out
