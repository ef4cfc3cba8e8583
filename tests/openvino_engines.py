"""What the tests of OpenVINO share: a golden compiled for it, and loaded on one thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conftest import lowered
from edgewright.bundle.manifest import StageEntry
from edgewright.checkpoint import Checkpoint
from edgewright.graph import Stage
from edgewright.graph.writer import write_stage
from edgewright.quant.recipe import Recipe
from edgewright.runtime.engines.openvino import OpenVinoEngine, open_engine
from edgewright.targets.backend import StageWork
from edgewright.targets.openvino import BACKEND

PREFIX = "stages/llm"


def compiled(stage: Stage, root: Path, options: Mapping[str, str] | None = None) -> StageEntry:
    """Write a lowered stage into a bundle's folder and compile it."""
    write_stage(stage, root / PREFIX)
    return BACKEND.compile(StageWork("llm", root, PREFIX, stage.contract, options=options or {}))


def loaded(stage: Stage, root: Path, options: Mapping[str, str] | None = None) -> OpenVinoEngine:
    """Compile a lowered stage and load it."""
    return open_engine(root, compiled(stage, root, options), threads=1, share_cores=False)


def openvino_engine(
    checkpoint: Checkpoint, root: Path, recipe: str | Recipe = "float32", options: Mapping[str, str] | None = None
) -> OpenVinoEngine:
    """Build, quantize, lower, compile and load the llm stage of a checkpoint."""
    return loaded(lowered(checkpoint, "openvino", recipe), root, options)
