"""Level `graph`: what no scenario is long enough to show."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import onnx
import pytest

from conftest import CASES, TEXT_GOLDENS, golden, lowered
from edgewright.build.pipeline import _seal, export
from edgewright.bundle import read_manifest
from edgewright.checkpoint import open_checkpoint
from edgewright.graph.writer import write_stage
from edgewright.verify import verify_bundle
from edgewright.verify.structure import check_graph

GRAPH = "stages/llm/model.onnx"


@pytest.fixture
def long_window(tmp_path: Path) -> Path:
    """A Mistral whose window of 1,000 tokens no scenario reaches."""
    source = tmp_path / "source"
    source.mkdir()
    for path in (TEXT_GOLDENS / "mistral_head_dim16").iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"sliding_window": 1000, "max_position_embeddings": 4096}))
    return source


def test_another_long_window_is_found(long_window: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    export(long_window, bundle, dialect="onnxruntime")
    assert verify_bundle(bundle, open_checkpoint(long_window), threads=1).passed
    model = onnx.load(bundle / GRAPH, load_external_data=False)
    node = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"][1]
    (field,) = [a for a in node.attribute if a.name == "local_window_size"]
    assert field.i == 1000
    field.i = 700
    onnx.save(model, bundle / GRAPH)
    _seal(bundle, dataclasses.replace(read_manifest(bundle), files={}))
    report = verify_bundle(bundle, open_checkpoint(long_window), threads=1)
    assert not report.passed
    assert [name for name, level in report.levels.items() if level.faults] == ["graph"]
    place = report.localisation
    assert place is not None
    assert (place.layer, place.cause.kind) == (1, "window")
    assert "local_window_size is 700 where 1000 is expected" in report.reason()


def test_another_body_is_found(long_window: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    export(long_window, bundle, dialect="portable")
    text = (bundle / GRAPH).read_bytes()
    model = onnx.load_from_string(text)
    (body,) = [f for f in model.functions if f.name == "Attention"]
    (width,) = [n for n in body.node if list(n.output) == ["width"]]
    width.attribute[0].t.int64_data[:] = [700]
    onnx.save(model, bundle / GRAPH)
    _seal(bundle, dataclasses.replace(read_manifest(bundle), files={}))
    report = verify_bundle(bundle, open_checkpoint(long_window), threads=1)
    assert [name for name, level in report.levels.items() if level.faults] == ["graph"]
    assert "model.layers.0.self_attn/Attention: its body is another one" in report.reason()


def test_other_initializers_are_found(long_window: Path, tmp_path: Path) -> None:
    stage = lowered(open_checkpoint(long_window), "onnxruntime")
    write_stage(stage, tmp_path)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    model.graph.initializer[0].doc_string = "another"
    onnx.save(model, tmp_path / "model.onnx")
    report = check_graph(lowered(open_checkpoint(long_window), "onnxruntime"), tmp_path / "model.onnx")
    assert report is not None
    assert "initializers" in report.words


@pytest.mark.parametrize("case", CASES[::4])
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_graphs_come_out_the_same_twice(case: str, dialect: str, tmp_path: Path) -> None:
    write_stage(lowered(golden(case).checkpoint, dialect, "int4"), tmp_path)
    assert check_graph(lowered(golden(case).checkpoint, dialect, "int4"), tmp_path / "model.onnx") is None
