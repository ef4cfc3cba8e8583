"""The live comparison: in an environment with torch and transformers where there is one, and its failures anywhere."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.pipeline import deploy
from edgewright.errors import HostError
from edgewright.graph import Stage
from edgewright.verify import live, verify

PYTHON = os.environ.get("EDGEWRIGHT_TRANSFORMERS_PYTHON", "")
needs_transformers = pytest.mark.skipif(not PYTHON, reason="EDGEWRIGHT_TRANSFORMERS_PYTHON names no python")
CASE = TEXT_GOLDENS / "mistral_window"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy(CASE, tmp_path_factory.mktemp("b") / "bundle", recipe="float32", verify=False).path


@needs_transformers
def test_the_graph_agrees_with_transformers(bundle: Path) -> None:
    report = verify(bundle, CASE, live=PYTHON, threads=1)
    assert report.passed, report.reason()
    assert list(report.levels)[-1] == "live"
    (scenario,) = report.to_json()["levels"]["live"]["scenarios"]
    assert scenario.startswith("prefill (transformers ")


@needs_transformers
def test_a_wrong_family_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The family's graph gets a wrong window: transformers knows better, and the layer and the cause are named."""
    build = live.build_llm

    def wrong(*args: Any, **kwargs: Any) -> Stage:
        stage = build(*args, **kwargs)
        node = [n for n in stage.graph if n.op_type == "Attention"][1]
        node.attributes["window"] = ir.convenience.convert_attributes({"window": 5})[0]
        return stage

    monkeypatch.setattr(live, "build_llm", wrong)
    report = verify(bundle, CASE, live=PYTHON, threads=1)
    assert not report.passed
    assert report.localisation is not None
    assert report.localisation.layer == 1
    assert report.localisation.positions[0] == 5
    assert report.localisation.cause.kind == "window"
    assert "window 8 instead of 5" in report.localisation.cause.words


def test_an_environment_without_transformers(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"transformers can't run the checkpoint .*ModuleNotFoundError"):
        verify(bundle, CASE, live=sys.executable, threads=1)
    with pytest.raises(HostError, match="can't be run for the live comparison"):
        verify(bundle, CASE, live=tmp_path / "no-python", threads=1)


def test_a_process_that_answers_nothing(bundle: Path) -> None:
    with pytest.raises(HostError, match="it said nothing"):
        verify(bundle, CASE, live=str(shutil.which("true")), threads=1)
