"""What the tests of the QNN back end share: small stages, and their graphs on ONNX Runtime's CPU provider."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from conftest import golden, lowered, write_source
from edgewright.bundle.manifest import StageEntry
from edgewright.dialects.qnn_graph import MASK, StaticGraph
from edgewright.dialects.qnn_static import spell
from edgewright.graph.writer import write_stage
from edgewright.runtime.engines.qnn import QnnEngine, Run, masks
from edgewright.runtime.session import Session
from edgewright.targets.backend import StageWork
from edgewright.targets.platform import find_platform
from edgewright.targets.qnn import BACKEND
from edgewright.targets.qnn.graphs import model_of
from edgewright.targets.qnn.weights import Weights

PLATFORM = "snapdragon-8-gen-3"
#: Small enough for the simulator.
SMALL = {"ar": "4", "context": "24", "tokens": "24"}


class FloatFile:
    """Stands in for a `WeightFile`: every weight as float32, so that a graph computes what the checkpoint says."""

    def __init__(self, weights: Weights, graph: StaticGraph) -> None:
        self.tensors: dict[str, Any] = {}
        self.encodings: dict[str, Any] = {}
        self.vectors: dict[str, np.ndarray] = {}
        for name, source in graph.sources.items():
            if source.kind == "vector":
                self.vectors[name] = weights.vector(source)
                continue
            rows = np.concatenate(list(weights.blocks(source)))
            self.vectors[name] = rows if source.kind == "table" else np.ascontiguousarray(rows.T)


def spelled(case: str, folder: Path, rows: int, context: int, recipe: str = "float32") -> tuple[StaticGraph, Weights]:
    """Lower a golden, write it to `folder` and spell its static graph."""
    stage = lowered(golden(case).checkpoint, "qnn", recipe)
    write_stage(stage, folder)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    graph = spell(model, [layer.past_key for layer in stage.contract.kv], rows=rows, context=context)
    return graph, Weights(model, folder)


def float_logits(graph: StaticGraph, weights: Weights, ids: np.ndarray) -> np.ndarray:
    """Run a static graph in float32 over ids, call by call, with the weights as they are stored."""
    model = model_of(graph, FloatFile(weights, graph), None, "test")  # type: ignore[arg-type]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    tables = {name: weights.tensor(stored) for name, stored in graph.tables.items()}
    caches = {name: np.zeros(graph.shapes[name], np.float32) for name in graph.inputs if name.startswith("past_")}
    logits = []
    for past in range(0, len(ids), graph.rows):
        fed = ids[past : past + graph.rows]
        tokens = np.zeros((1, graph.rows), dtype=np.int32)
        tokens[0, : len(fed)] = fed
        windows = {name: graph.windows[name] for name in graph.inputs if name.startswith(MASK)}
        feeds: dict[str, np.ndarray] = {"input_ids": tokens, **caches}
        for name, seen in masks(windows, graph.rows, past, graph.context).items():
            feeds[name] = np.where(seen, 0, -1e9).astype(np.float32)[None, None]
        feeds |= {name: table[past : past + graph.rows][None, None] for name, table in tables.items()}
        found = dict(zip(graph.outputs, session.run(graph.outputs, feeds), strict=True))
        logits.append(found["logits"][0, : len(fed)])
        for name, cache in caches.items():
            new, end = found[f"{name.removesuffix('_in')}_out"], past + graph.rows
            if name.startswith("past_key"):
                cache[..., past:end] = new[..., : cache.shape[3] - past]
            else:
                cache[:, :, past:end] = new[:, :, : cache.shape[2] - past]
    return np.concatenate(logits)


def work_of(source: Path, root: Path, recipe: str = "int8", **options: str) -> StageWork:
    """Write a bundle's beginnings for a checkpoint folder, as a build does before it compiles."""
    from edgewright.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(source)
    stage = lowered(checkpoint, "qnn", recipe)
    write_stage(stage, root / "stages" / "llm")
    (root / "sidecars").mkdir()
    for name, data in checkpoint.sidecars().items():
        (root / "sidecars" / name).write_bytes(data)
    given = {**SMALL, **options}
    return StageWork("llm", root, "stages/llm", stage.contract, platform=find_platform(PLATFORM), options=given)


@functools.cache
def compiled(folder: Path, case: str = "qwen3", recipe: str = "int8") -> tuple[Path, StageEntry]:
    """Compile a golden with a tokenizer below `folder`, once for all tests."""
    source = write_source(folder / "source", case)
    root = folder / "bundle"
    root.mkdir(parents=True)
    return root, BACKEND.compile(work_of(source, root, recipe))


def description(root: Path, entry: StageEntry) -> dict[str, Any]:
    """Return a compiled stage's description."""
    assert entry.engine is not None
    found: dict[str, Any] = json.loads((root / entry.engine).read_text(encoding="utf-8"))
    return found


def cpu_engine(root: Path, entry: StageEntry) -> QnnEngine:
    """Return an engine over the graphs in codes on ONNX Runtime's CPU provider."""
    folder = (root / str(entry.engine)).parent

    def opening(part: Mapping[str, Any], kind: str) -> Run:
        session = ort.InferenceSession(str(folder / part[kind]["graph"]), providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        taken = [value.name for value in session.get_inputs()]

        def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return dict(zip(names, session.run(names, {name: feeds[name] for name in taken}), strict=True))

        return run

    return QnnEngine(folder, description(root, entry), entry.contract, opening)


def logits_of(engine: QnnEngine, ids: np.ndarray) -> np.ndarray:
    """Feed ids in three appends: some, one, the rest."""
    session = Session(engine)
    return np.concatenate([session.append(part, "all") for part in (ids[:9], ids[9:10], ids[10:])])


def greedy(engine: QnnEngine, prompt: np.ndarray, count: int) -> list[int]:
    """Return the tokens that a prompt continues with."""
    session, found = Session(engine), []
    row = session.append(prompt)
    for _ in range(count):
        found.append(int(row[-1].argmax()))
        row = session.append([found[-1]])
    return found


def divergence(wanted: np.ndarray, got: np.ndarray) -> float:
    """Return the mean of KL(wanted || got) over rows of logits, in nats."""

    def logs(x: np.ndarray) -> np.ndarray:
        centred = x - x.max(axis=-1, keepdims=True)
        return np.asarray(centred - np.log(np.exp(centred).sum(axis=-1, keepdims=True)))

    a, b = logs(wanted.astype(np.float64)), logs(got.astype(np.float64))
    return float((np.exp(a) * (a - b)).sum(axis=-1).mean())
