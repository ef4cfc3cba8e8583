"""Small graphs, profiles and files that the tests of profiles are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from edgewright.profile.profile import Layer, Peaks, Phase, Profile, Span

GOLDENS = Path(__file__).parent.parent / "goldens" / "profiles"


def graph_of(nodes: Sequence[tuple[str, str, Sequence[str], Sequence[str]]]) -> ir.Graph:
    """A graph of nodes (name, op, inputs, outputs) whose values are called as they are given."""
    values: dict[str, ir.Value] = {}

    def value(name: str) -> ir.Value:
        return values.setdefault(name, ir.Value(name=name))

    made = []
    for name, op, inputs, outputs in nodes:
        made.append(ir.Node("", op, [value(one) for one in inputs], outputs=[value(one) for one in outputs], name=name))
    produced = {one for _, _, _, outputs in nodes for one in outputs}
    given = [one for name, one in values.items() if name not in produced]
    return ir.Graph(given, [values[nodes[-1][3][0]]], nodes=made, name="g", opset_imports={"": 21})


def layer(
    name: str,
    times_ms: Sequence[float],
    *,
    module: str = "",
    group: str = "no module",
    kind: str = "MatMul",
    macs: Mapping[str, int] | None = None,
    moved: int = 0,
    mean_ms: float | None = None,
) -> Layer:
    """A layer of one module."""
    mean = sum(times_ms) / len(times_ms) if mean_ms is None else mean_ms
    modules = (module,) if module else ()
    return Layer(name, kind, "llm", modules, group, 1, tuple(times_ms), mean, None, (), dict(macs or {}), moved)


def profile_of(*phases: Phase, peaks: Peaks | None = None) -> Profile:
    """A profile of phases."""
    return Profile("bundle", "llama", {"llm": "onnxruntime 1"}, 2, peaks or Peaks(""), phases, 1000, 500, ("a note",))


def decode_phase() -> Phase:
    """Two runs of 10 and 14 ms: a product of 4 and 6 ms, a norm of 1 ms each, and 2 and 3 ms of no module."""
    layers = (
        layer("q/Linear", (4.0, 6.0), module="a.q_proj", group="attention", macs={"int8": 3_000_000}, moved=8_000_000),
        layer("n/RMSNorm", (1.0, 1.0), module="a.norm", group="norm", kind="RMSNorm", moved=400),
        layer("copy", (2.0, 3.0), kind="Copy"),
    )
    spans = (Span(0, 100.0, 4000.0), Span(1, 4100.0, 1000.0), Span(2, 6000.0, 2000.0))
    return Phase(
        "decode", {"tokens": 1, "past": 32}, layers, (10.0, 14.0), 12.0, (8.0, 9.0), True, 7, 9, timeline=spans
    )


def write_json(path: Path, data: object) -> Path:
    """Write a JSON file and return its path."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return path
