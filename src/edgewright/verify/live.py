"""Compares a checkpoint's float32 graph with transformers, which runs in another environment and process."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle import read_manifest
from edgewright.checkpoint import Checkpoint
from edgewright.errors import HostError, first_line
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.runtime.llm import llm_stage
from edgewright.runtime.session import Session
from edgewright.verify.cause import Cause
from edgewright.verify.causes import explain
from edgewright.verify.graphs import Array, Fed
from edgewright.verify.localise import localisation_of
from edgewright.verify.locate import Divergence, Locator, layer_of
from edgewright.verify.metrics import compare
from edgewright.verify.names import Tap
from edgewright.verify.reference import Reference, reference_of
from edgewright.verify.replay import Call
from edgewright.verify.report import Localisation, LogitsReport, Report
from edgewright.verify.scenarios import Scenario, Step, Tokens
from edgewright.verify.semantic import Semantic
from edgewright.verify.thresholds import GOLDEN

#: Tokens that are compared, and how long the other process may take, in seconds.
_TOKENS, _TIMEOUT = 64, 1800
#: Largest relative error of what lies between two of transformers' modules, in float32.
_BOUND = 3e-4


def verify_live(
    report: Report,
    checkpoint: Checkpoint,
    root: Path,
    python: str | Path,
    *,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Report:
    """Return the report with the level `live`: the float32 graph of the checkpoint against transformers.

    Raises HostError when the other process fails.
    """
    context = llm_stage(read_manifest(root)).contract.bounds["capacity"][1]
    stage = build_llm(checkpoint, max_context=context)
    with progress.step("float32 reference") as advance, reference_of(stage, advance) as reference:
        engine = reference.engine(threads)
        session = Session(engine)
        ids = np.random.default_rng(2026).integers(0, session.vocab_size, min(_TOKENS, context))
        given = session.append(ids, logits="all")
        with progress.step("run transformers"):
            answer = ask(python, checkpoint, ids, _modules(reference.semantic))
        distance = compare(given, answer["logits"]).summary()
        level = LogitsReport(GOLDEN["float32"], {f"prefill ({answer['versions']})": distance}, distance)
        place = report.localisation
        if level.faults:
            place = locate_live(reference, answer, ids, threads) or place
        levels = {**report.levels, "live": level}
        return Report(levels, place, report.against, report.remarks)


def ask(python: str | Path, checkpoint: Checkpoint, ids: Tokens, names: list[str]) -> dict[str, Any]:
    """Run the script in the other environment; returns its arrays."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    script = Path(__file__).with_name("_live.py")
    with tempfile.TemporaryDirectory(prefix="edgewright-") as work:
        request, answer = Path(work) / "request.npz", Path(work) / "answer.npz"
        np.savez(request, ids=ids[None], names=np.asarray(names))
        command = [str(python), str(script), str(folder.resolve()), str(request), str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(f"{python} can't be run for the live comparison ({first_line(error)}).") from None
        if done.returncode or not answer.is_file():
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise HostError(
                f"transformers can't run the checkpoint ({last}): --live takes the python of an environment with "
                "torch and transformers that know the model."
            )
        with np.load(answer, allow_pickle=False) as data:
            return {name: data[name] if data[name].ndim else str(data[name]) for name in data}


def _modules(semantic: Semantic) -> list[str]:
    return sorted(_results(semantic))


def _results(semantic: Semantic) -> dict[str, str]:
    """Return the values that are what a module of the same path gives, by module path.

    That is the last value of a linear, a norm, an embedding, and of a whole layer.
    """
    found: dict[str, str] = {}
    for op in semantic.ops:
        whole_layer = layer_of(op.module) is not None and op.module.rsplit(".", 1)[-1].isdigit()
        if "Linear" in op.type or "Norm" in op.type or op.type == "Embedding" or whole_layer:
            found[op.module] = op.outputs[0]
    return {module: value for module, value in found.items() if module and value not in ("logits",)}


def locate_live(reference: Reference, answer: dict[str, Any], ids: Tokens, threads: int | None) -> Localisation | None:
    """Find the first part of the graph that does not give what transformers' modules give for the same inputs."""
    semantic, graph = reference.semantic, reference.graph()
    values: dict[str, Array] = {}
    shapes: dict[str, tuple[int | str | None, ...]] = {}
    session = graph.tapped(_results(semantic).values(), threads)
    known = {value.name: value.shape for value in session.get_outputs()}
    for module, value in _results(semantic).items():
        theirs = answer.get(f"out:{module}")
        if theirs is not None and semantic.order[value] < len(semantic.ops):
            values[value] = theirs.reshape(1, len(ids), -1)
            shapes[value] = tuple(known[value])
    taps = {name: Tap(name) for name in sorted(values, key=lambda name: semantic.order[name])}
    locator = Locator(semantic, graph, graph, reference.contract, threads, taps=taps, bound=_BOUND)
    cuts = {name: Fed(np.dtype(np.float32), shapes[name]) for name in taps}
    again = graph.cut(cuts, list(cuts), threads)
    script = Scenario("prefill", (ids,), 0, (Step((ids,), True),))
    call = Call("prefill", np.zeros(1, dtype=np.int64), _feeds(reference, ids), values)
    found = locator.judge(script, call, again, list(cuts))
    return None if found is None else _described(found, semantic)


def _feeds(reference: Reference, ids: Tokens) -> dict[str, Array]:
    """Return the inputs of a first call, with empty caches."""
    n = len(ids)
    feeds: dict[str, Array] = {
        "input_ids": ids[None].astype(np.int64),
        "past_lengths": np.zeros(1, dtype=np.int64),
        "logit_positions": np.arange(n, dtype=np.int64),
        "total_lengths": np.full(1, n, dtype=np.int64),
    }
    sizes = {"batch": 1, "capacity": n}
    for tensor in reference.contract.inputs:
        if tensor.name not in feeds:
            shape = tuple(d if isinstance(d, int) else sizes[d] for d in tensor.shape)
            feeds[tensor.name] = np.zeros(shape, dtype=tensor.dtype)
    return feeds


def _described(found: Divergence, semantic: Semantic) -> Localisation:
    cause, tried = explain(found, semantic, lambda name: None)
    words = f"transformers gives what this change of the graph gives: {cause.words}"
    cause = Cause(cause.kind, words if cause.left is not None else cause.words, cause.left, cause.op)
    notes = ("the family's graph differs from transformers; the bundle was not looked at for this",)
    return localisation_of(found, cause, tried, "the family's graph", notes)
