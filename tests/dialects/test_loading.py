"""Graphs that every checker accepts and that ONNX Runtime's optimizer once broke: they load, also saved and again."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from conftest import golden, lowered, relative_error
from edgewright.bundle.settings import EngineSettings
from edgewright.checkpoint import open_checkpoint
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.quant.recipe_file import parse_recipe
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.session import Session
from edgewright.targets.cpu import settings_for

STATIC = Path(__file__).parents[1] / "goldens" / "prequantized" / "ct-w8a8-static"


@pytest.mark.parametrize("dialect", ["portable", "onnx-qdq"])
def test_static_inputs_with_a_zero_point(dialect: str, tmp_path: Path) -> None:
    """The optimizer makes int8 uint8 around such a pair of nodes: they load, and stay int8 where we run them."""
    checkpoint = open_checkpoint(STATIC)
    ids = list(range(1, 12))
    results = []
    for count, settings in enumerate(
        (EngineSettings("all"), EngineSettings("disabled"), settings_for(dialect, half_weights=False))
    ):
        stage = lowered(checkpoint, dialect, "stored")
        write_stage(stage, tmp_path / str(count))
        engine = OnnxRuntimeEngine(tmp_path / str(count) / MODEL_FILE, stage.contract, settings, threads=1)
        results.append(Session(engine).append(ids, "all"))
    assert relative_error(results[2], results[1]) < 1e-5


@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe"])
def test_bodies_inside_a_loop_share_no_names_with_those_outside(case: str, tmp_path: Path) -> None:
    """Table and experts are picked by one op; saved by the optimizer, its values had one name in both graphs."""
    recipe = parse_recipe(
        "body: {format: fp8, group: block}\nlm_head: {format: float32}\nembedding: {format: fp8, group: row-block}\n",
        "r.yaml",
    )
    write_stage(lowered(golden(case).checkpoint, "onnxruntime", recipe), tmp_path)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.log_severity_level = 3
    for name in (MODEL_FILE, "saved.onnx"):
        ort.InferenceSession(str(tmp_path / name), options, providers=["CPUExecutionProvider"])
        options = ort.SessionOptions()
        options.log_severity_level = 3
