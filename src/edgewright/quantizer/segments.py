"""A float stage cut into segments, one a decoder layer, so that calibration holds one layer at a time.

Every node belongs to the prefix, to a layer by its module path, or to the suffix. A value that a later segment reads
is fed to it; what follows from positions alone is computed again, which costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.builder import EW

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|/|$)")


@dataclass(frozen=True)
class Segment:
    """A run of nodes: its place, a title for progress, the values it is `fed`, and those it `gives` to later ones."""

    index: int
    title: str
    fed: tuple[str, ...]
    gives: tuple[str, ...]
    nodes: tuple[ir.Node, ...] = field(repr=False)


def cut(stage: Stage, wanted: Sequence[str] | None = None) -> list[Segment]:
    """Return the segments of a semantic stage in order; `wanted` outputs are given besides, by default the first."""
    nodes = list(stage.graph)
    place, layers = _places(nodes)
    segments = max(place.values()) + 1
    made = {id(value): place[id(node)] for node in nodes for value in node.outputs}
    learned = _learned(stage, nodes)
    fed: list[dict[str, None]] = [{} for _ in range(segments)]
    gives: list[dict[str, None]] = [{} for _ in range(segments)]
    for node in nodes:
        here = place[id(node)]
        for value in node.inputs:
            if value is None or id(value) not in made or id(value) not in learned:
                continue
            assert value.name is not None
            if made[id(value)] < here:
                fed[here][value.name] = None
                gives[made[id(value)]][value.name] = None
    for value in stage.graph.outputs if wanted is not None else stage.graph.outputs[:1]:
        assert value.name is not None
        if wanted is None or value.name in wanted:
            gives[made[id(value)]][value.name] = None
    return [
        Segment(
            index,
            "embedding" if index == 0 else f"layer {index - 1}" if index <= layers else "head",
            tuple(fed[index]),
            tuple(gives[index]),
            tuple(node for node in nodes if place[id(node)] == index),
        )
        for index in range(segments)
    ]


def _places(nodes: Sequence[ir.Node]) -> tuple[dict[int, int], int]:
    """Return the segment of every node (0 before the layers, then one a layer, then the rest), and how many layers."""
    layers = [int(m.group(1)) if (m := _LAYER.search(node.name or "")) else None for node in nodes]
    last = max((layer for layer in layers if layer is not None), default=-1)
    place: dict[int, int] = {}
    reached = 0
    for node, layer in zip(nodes, layers, strict=True):
        if layer is not None:
            reached = max(reached, layer + 1)
            place[id(node)] = layer + 1
        else:
            makers = [value.producer() for value in node.inputs if value is not None]
            behind = max((place.get(id(maker), 0) for maker in makers if maker is not None), default=0)
            place[id(node)] = behind if reached <= last else last + 2 if behind > last else behind
    return place, last + 1


def _learned(stage: Stage, nodes: Sequence[ir.Node]) -> set[int]:
    """Return the values that depend on a weight of the checkpoint; all others follow from shapes and positions."""
    learned: set[int] = set()
    for node in nodes:
        weighty = node.domain == EW and node.op_type in ("Embedding", "Linear")
        if weighty or any(value is not None and id(value) in learned for value in node.inputs):
            learned.update(id(value) for value in node.outputs)
    return learned
