"""The CPU compiler: bit for bit the graph it was given, and no second copy of the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from conftest import golden, lowered
from edgewright.bundle import this_machine
from edgewright.bundle.settings import EngineSettings
from edgewright.errors import UnsupportedFormatError
from edgewright.graph.writer import write_stage
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.session import Session
from edgewright.targets import find_target, target_names
from edgewright.targets.cpu import BACKEND, compile_stage, settings_for


@pytest.mark.parametrize(
    ("case", "recipe"),
    [
        *(("qwen3", recipe) for recipe in ("float32", "float16", "int8", "int4")),
        ("llama_rope_yarn", "int4"),
        ("gemma3_text_softcap", "float16"),
        ("gemma3_text_softcap", "int8"),
        ("smollm3_window", "float32"),
    ],
)
def test_the_engine_computes_exactly_what_the_graph_does(case: str, recipe: str, tmp_path: Path) -> None:
    reference = golden(case)
    stage = lowered(reference.checkpoint, "onnxruntime", recipe)
    write_stage(stage, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    entry = compile_stage(tmp_path, "stages/llm", stage.contract, half_weights=recipe == "float16")
    assert {path.name for path in tmp_path.iterdir()} - {"engine.bin"} == {"model.onnx", "weights.bin", "engine.onnx"}
    assert all((tmp_path / name).read_bytes() == data for name, data in before.items())
    assert (entry.graph, entry.engine) == ("stages/llm/model.onnx", "stages/llm/engine.onnx")
    assert entry.machine == this_machine()

    settings = EngineSettings.from_json(entry.settings)
    assert settings == settings_for("onnxruntime", half_weights=recipe == "float16")
    logits = []
    for name in ("model.onnx", "engine.onnx"):
        session = Session(OnnxRuntimeEngine(tmp_path / name, stage.contract, settings, threads=1), first_capacity=20)
        parts = [session.append(reference.ids[:30], logits="all"), *(session.append([i]) for i in reference.ids[30:40])]
        logits.append(np.concatenate(parts))
    np.testing.assert_array_equal(*logits)

    # Weights stay where they are: what the compiler made anew is small change.
    extra = tmp_path / "engine.bin"
    assert not extra.exists() or extra.stat().st_size < 0.1 * (tmp_path / "weights.bin").stat().st_size
    locations = set()
    for tensor in onnx.load(tmp_path / "engine.onnx", load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            locations |= {entry.value for entry in tensor.external_data if entry.key == "location"}
        else:
            assert len(tensor.raw_data) <= 1024
    assert locations <= {"weights.bin", "engine.bin"}
    assert (tmp_path / "engine.onnx").stat().st_size < 120_000


def test_compiling_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    engines = []
    for name in ("a", "b"):
        stage = lowered(golden("qwen3").checkpoint, "onnxruntime", "int4")
        write_stage(stage, tmp_path / name)
        compile_stage(tmp_path / name, "stages/llm", stage.contract, half_weights=False)
        engines.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert engines[0] == engines[1]


def test_a_graph_that_the_engine_refuses(tmp_path: Path) -> None:
    stage = lowered(golden("qwen3").checkpoint, "onnxruntime")
    write_stage(stage, tmp_path)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    model.graph.node[3].op_type = "NoSuchOp"
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedFormatError, match="ONNX Runtime"):
        compile_stage(tmp_path, "stages/llm", stage.contract, half_weights=False)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "weights.bin"}


def test_target_names() -> None:
    assert "cpu" in target_names()
    assert find_target("cpu") is BACKEND
    assert settings_for("onnxruntime", half_weights=False).optimization == "disabled"
    assert settings_for("onnxruntime", half_weights=True).optimization == "all"
    assert settings_for("portable", half_weights=False).optimization == "all"
