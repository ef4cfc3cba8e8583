"""From a failed comparison to a place, a time and a cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewright.bundle.manifest import StageEntry
from edgewright.bundle.settings import EngineSettings
from edgewright.files import inside
from edgewright.runtime.embedding import INPUT, SIDECAR
from edgewright.verify.cause import Cause
from edgewright.verify.causes import explain
from edgewright.verify.graphs import Graph
from edgewright.verify.locate import Check, Divergence, Locator, layer_of
from edgewright.verify.reference import LEFT_OUT
from edgewright.verify.report import Localisation
from edgewright.verify.semantic import Op, Semantic
from edgewright.verify.tensors import TensorPair, tensor_cause

ONNX_RUNTIME = "onnxruntime"
Wrong = Callable[[str], TensorPair | None]
#: How the graph of another engine is run: constants that are folded would be all weights, decoded to float32.
_UNFOLDED = EngineSettings("basic", config={"optimization.disable_specified_optimizers": LEFT_OUT})


@dataclass(frozen=True)
class Candidate:
    """The folder of a bundle and its stage."""

    root: Path
    entry: StageEntry

    def running(self) -> Graph:
        """Return the graph that runs; of an engine that ONNX Runtime can't look into, the graph it was made of."""
        return self.graph(self.compiled or self.entry.graph)

    @property
    def compiled(self) -> str | None:
        """The engine's file, where ONNX Runtime can run it with taps."""
        return self.entry.engine if self.entry.runtime == ONNX_RUNTIME else None

    def graph(self, name: str) -> Graph:
        """Return one of the stage's graphs."""
        given = self.entry.settings
        settings = EngineSettings.from_json(given) if self.entry.runtime == ONNX_RUNTIME else _UNFOLDED
        return Graph(inside(self.root, name), settings)


def describe(
    found: Divergence, locator: Locator, candidate: Candidate, wrong: Wrong, *, origin: str | None = None
) -> Localisation:
    """Put a divergence that `locator` found into words, with its likely cause.

    `wrong` knows the tensors whose shipped bytes are wrong. `origin` is the graph that was looked at, where that is not
    the one that runs.
    """
    cause, tried = explain(locator.shortened(found), locator.semantic, wrong)
    entry, notes = candidate.entry, []
    if all(locator.taps[check.value].name == INPUT for check in found.failed):
        origin = SIDECAR
    elif origin is None and candidate.compiled is not None:
        if locator.differs_in(found, candidate.graph(entry.graph)):
            notes.append("the graph that was compiled has the fault already")
        else:
            origin = candidate.compiled
            notes.append("the graph is right: compiling it brought the fault in")
    origin = origin or entry.graph
    return localisation_of(found, cause, tried, Path(origin).name, notes)


def localisation_of(
    found: Divergence, cause: Cause, tried: Sequence[Cause], origin: str, notes: Sequence[str]
) -> Localisation:
    """Put a divergence and its cause into words; `origin` says what has the fault."""
    op = cause.op or found.op
    check = max(found.failed, key=lambda c: c.worst)
    return Localisation(
        place=place_of(op),
        layer=layer_of(op.module),
        module=op.module,
        op=op.type,
        scenario=found.scenario.name,
        phase=found.call.phase,
        positions=tuple(sorted({p for c in found.failed for p in c.positions()})),
        cause=cause,
        tried=tuple(tried),
        origin=origin,
        nodes=tuple(found.nodes),
        error=check.worst,
        bound=check.bound,
        errors=_by_position(check),
        layers=_by_layer(found.checks),
        notes=tuple(notes),
    )


def of_tensor(pair: TensorPair, semantic: Semantic) -> Localisation | None:
    """Return the localisation of a wrong tensor whose effect is too small to be seen in any result."""
    readers = [op for op in semantic.ops if pair.name in (str(name).removesuffix(".float") for name in op.inputs)]
    if not readers:
        return None
    op = readers[0]
    cause = tensor_cause(pair, op, semantic)
    notes = ("no result differs by more than its bound: the tensor itself was compared",)
    return Localisation(place_of(op), layer_of(op.module), op.module, op.type, "", "", (), cause, notes=notes)


def place_of(op: Op) -> str:
    """Spell a place as people say it: `layer 3 self_attn.q_proj`, `embed_tokens`, `positions`."""
    layer = layer_of(op.module)
    if layer is None:
        return op.module.removeprefix("model.") or op.name
    inner = op.module.split(f".{layer}", 1)[1].removeprefix(".")
    return f"layer {layer} {inner or op.name.rsplit('/', 1)[1]}"


def _by_position(check: Check) -> tuple[tuple[int, float], ...]:
    worst: dict[int, float] = {}
    for row, first in zip(check.error, check.first, strict=True):
        for index, value in enumerate(row):
            position = int(first) + index
            worst[position] = max(worst.get(position, 0.0), float(value))
    return tuple(sorted(worst.items()))


def _by_layer(checks: Sequence[Check]) -> tuple[tuple[str, float], ...]:
    worst: dict[str, float] = {}
    for check in checks:
        layer = layer_of(check.op.module)
        name = f"layer {layer}" if layer is not None else check.op.module.removeprefix("model.") or check.op.name
        worst[name] = max(worst.get(name, 0.0), check.worst / check.bound)
    return tuple(worst.items())
