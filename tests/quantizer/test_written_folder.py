"""The written folder holds what was made, and opens as a checkpoint that a build takes over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.checkpoint import open_checkpoint
from edgewright.formats import BlockFormat
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import stored_recipe
from edgewright.quantizer.stream import FloatModel
from quantizer_cases import AWQ, INT4, checkpoint_of, run, samples_of, stage_of, write

CLOSE = "body: {format: int8, group: 32, algorithm: awq}\nlm_head: {format: float32}\nembedding: {format: float32}\n"


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3", "gemma3_text", "qwen3_moe", "lfm2"])
def test_a_taken_over_model_is_near_the_original(family: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family)
    samples = samples_of(checkpoint)
    folder = write(tmp_path / "out", checkpoint, CLOSE, samples, run(checkpoint, CLOSE, samples))
    row = samples.rows[0]
    original = FloatModel(stage_of(family), tmp_path / "float", None, 1)
    wanted = original.logits(original.whole(), row, np.arange(len(row)))
    stage = build_llm(open_checkpoint(folder), max_context=64)
    quantize_stage(stage, stored_recipe("stored"))
    made = FloatModel(stage, tmp_path / "made", None, 1)
    got = made.logits(made.whole(), row, np.arange(len(row)))
    assert np.linalg.norm(got - wanted) < 0.05 * np.linalg.norm(wanted)


def test_every_part_is_what_the_run_made(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)
    done = run(checkpoint, INT4, samples)
    parts = [
        {name: tensor.raw(0, tensor.row_count).tobytes() for name, tensor in done.work.tensors(index).items()}
        for index in range(len(done.work.segments))
    ]
    formats = {target.module: target.choice.weight for target in done.plan.targets}
    written = open_checkpoint(write(tmp_path / "out", checkpoint, INT4, samples, done))
    for segment in parts:
        for name, data in segment.items():
            module, _, kind = name.rpartition("/")
            if kind not in ("codes", "scales"):
                continue
            tensor = written.tensors[f"{module}.weight"]
            assert isinstance(formats[module], BlockFormat)
            encoded = tensor.encoded(0, tensor.shape[0])[kind]
            assert np.ascontiguousarray(encoded).tobytes() == data
    report = json.loads((tmp_path / "out" / "quantization_report.json").read_text())
    assert {module["module"] for module in report["modules"]} >= set(formats)


def test_config_records_recipe_data_and_origin(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)
    folder = write(tmp_path / "out", checkpoint, AWQ, samples, run(checkpoint, AWQ, samples))
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["recipe"]["body"]["bits"] == 4
    assert config["calibration"] == samples.record
    assert config["origin"]["files"]
    assert open_checkpoint(folder).quantization is not None
