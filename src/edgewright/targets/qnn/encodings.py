"""Encodings of activations: the range each tensor had, and one scale and offset for all that must share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgewright.dialects.qnn_graph import MASK, StaticGraph
from edgewright.runtime.engines.qnn import Encoding

Ranges = Mapping[str, tuple[float, float]]
#: How much wider than seen a range is made, by bits: other texts than the calibration's go further.
_MARGINS = {8: 1.2, 16: 1.5}
#: A hidden score stands so far below the lowest one that is seen: e^-16 is a ten-millionth.
_HIDDEN = 16.0
_SMALLEST = 1e-6


def encode(low: float, high: float, bits: int) -> Encoding:
    """Return the encoding of a range in 8 or 16 bits; zero is always a code."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < _SMALLEST:
        high = low + _SMALLEST
    scale = (high - low) / ((1 << bits) - 1)
    return Encoding(f"uint{bits}", scale, round(low / scale))


def groups_of(graph: StaticGraph) -> dict[str, str]:
    """Return, for every tensor that shares its encoding with others, the name of the first of them."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for a, b in graph.tied:
        first, second = sorted((find(a), find(b)))
        leader[second] = first
    return {name: find(name) for name in leader}


def encodings_of(graph: StaticGraph, ranges: Ranges, kv_bits: int) -> dict[str, Encoding]:
    """Return the encoding of every activation, constants of the graph's tables included.

    `ranges` are those observed and those of tables. What goes into the caches has `kv_bits`.
    """
    groups = groups_of(graph)
    caches = {groups[name] for name in graph.outputs if name in groups and name != "logits"}
    spans = {name: span for name, span in ranges.items() if name in graph.shapes}
    exact = {groups.get(name, name): span for name, span in graph.fixed.items()}
    joined = _joined((groups.get(name, name), span) for name, span in spans.items()) | exact
    found: dict[str, Encoding] = {}
    for name in graph.shapes:
        group = groups.get(name, name)
        if group not in joined:
            continue
        bits = kv_bits if group in caches else 16
        margin = 1.0 if group in exact else _MARGINS[bits]
        low, high = joined[group]
        found[name] = encode(low * margin, high * margin, bits)
    return found | _masked(graph, groups, found)


def _joined(spans: Iterable[tuple[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    joined: dict[str, tuple[float, float]] = {}
    for group, (low, high) in spans:
        before = joined.get(group, (low, high))
        joined[group] = (min(before[0], low), max(before[1], high))
    return joined


def _masked(graph: StaticGraph, groups: Mapping[str, str], found: Mapping[str, Encoding]) -> dict[str, Encoding]:
    """Return the encodings of masks and of masked scores.

    A masked score ends a little below the lowest that is seen, where all that is hidden saturates.
    """
    result: dict[str, Encoding] = {}
    depth = _HIDDEN
    for masked, scores in graph.masked.items():
        span = found[scores]
        low, high = span.offset * span.scale, (span.offset + 65535) * span.scale
        depth = max(depth, high - low + _HIDDEN)
        code = encode(low - _HIDDEN, high, 16)
        same = groups.get(masked, masked)
        result |= {name: code for name in graph.shapes if groups.get(name, name) == same}
    return result | {name: encode(-depth, 0.0, 16) for name in graph.inputs if name.startswith(MASK)}
