"""What the tests of the TensorRT target share: a small llama whose sizes fit every format, quantized and lowered."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgewright.build.llm import give_cache
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.dialects import _trt_types, portable, tensorrt
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.engine import Engine
from edgewright.runtime.session import Session
from edgewright.targets.tensorrt.emulate import EmulatedEngine
from llama_files import write_llama
from quantizer_cases import recipe_of, run, samples_of, write

HALF = "lm_head: {format: float16, activations: none}\nembedding: {format: float16}\n"
WHOLE = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
#: Recipes whose formats TensorRT has, by a name.
RECIPES = {
    "float16": "body: {format: float16}\n" + HALF,
    "bfloat16": "body: {format: bfloat16}\nlm_head: {format: bfloat16}\nembedding: {format: bfloat16}\n",
    "int4": "body: {format: int4, group: 32}\n"
    "lm_head: {format: int8, group: 32}\nembedding: {format: int8, group: 32}\n",
    "int4 zero points": "body: {format: int4, group: 64, zero_point: true}\n"
    "lm_head: {format: int8, group: 32, zero_point: true}\nembedding: {format: int4, group: 32, zero_point: true}\n",
    "int8": "body: {format: int8, group: channel}\nactivations: {format: int8, mode: static}\n" + HALF,
    "fp8": "body: {format: fp8, group: tensor}\nactivations: {format: fp8, mode: static}\n" + HALF,
    "fp8 weights": "body: {format: fp8, group: block}\nlm_head: {format: fp8, group: channel}\n"
    "embedding: {format: fp8, group: row-block}\n",
    "nvfp4": "body: {format: nvfp4}\nactivations: {format: nvfp4, mode: static}\n" + HALF,
    "nvfp4 weights": "body: {format: nvfp4}\nlm_head: {format: nvfp4}\nembedding: {format: nvfp4}\n",
    "mxfp8": "body: {format: mxfp8}\nactivations: {format: mxfp8}\n" + HALF,
    "int8 cache": "kv: {format: int8, scope: head}\n" + WHOLE,
    "fp8 cache": "kv: {format: fp8}\n" + WHOLE,
}
#: Where the checkpoints are, which no test changes; it goes with the process.
_FOLDER = tempfile.TemporaryDirectory(prefix="edgewright-tensorrt-")
IDS = np.random.default_rng(3).integers(0, 99, 30)


@functools.cache
def checkpoint_of(recipe: str) -> Checkpoint:
    """Quantize the small llama, of one layer, as a recipe says; the checkpoint is what `stored` takes over."""
    folder = Path(_FOLDER.name) / recipe.replace(" ", "-")
    plain = open_checkpoint(write_llama(folder / "plain", num_hidden_layers=1))
    parsed, samples = recipe_of(RECIPES[recipe]), samples_of(plain, count=2, length=16)
    return open_checkpoint(write(folder / "made", plain, parsed, samples, run(plain, parsed, samples)))


def stage_in(checkpoint: Checkpoint, recipe: str | Recipe = "stored", context: int = 48) -> Stage:
    """Build the stage of a checkpoint, with the cache that it was calibrated for."""
    stage = build_llm(checkpoint, max_context=context)
    quantize_stage(stage, load_recipe(recipe) if isinstance(recipe, str) else recipe)
    if checkpoint.quantization is not None:
        stage.cache = give_cache(stage, checkpoint, checkpoint.quantization)
    return stage


def emulated(stage: Stage, folder: Path) -> Engine:
    """Write a lowered stage and compute it on the CPU."""
    write_stage(stage, folder)
    return EmulatedEngine(folder / MODEL_FILE, stage.contract, threads=1)


def reference(stage: Stage, folder: Path) -> Engine:
    """Write a stage in the portable dialect and load it."""
    from conftest import engine_of

    return engine_of(portable.lower(stage, emulate=True), folder)


def logits(engine: Engine, ids: np.ndarray = IDS, prompt: int = 22) -> np.ndarray:
    """Feed a prompt and then tokens one by one; returns the logits of all."""
    session = Session(engine)
    rows = [session.append(ids[:prompt], logits="all")]
    rows += [session.append(ids[i : i + 1], logits="all") for i in range(prompt, len(ids))]
    return np.concatenate(rows)


def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every body be float32, so that spellings can be compared with the reference to the last digits."""
    monkeypatch.setattr(tensorrt, "body_type", lambda nodes: ir.DataType.FLOAT)
    assert _trt_types.body_type([]) == ir.DataType.FLOAT
