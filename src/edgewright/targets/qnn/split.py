"""Cuts a graph into parts whose weights and caches stay below a limit, where one activation goes on to the next."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from edgewright.dialects.qnn_graph import StaticGraph
from edgewright.errors import UsageError


def cuts_of(graph: StaticGraph, sizes: Mapping[str, int], limit: int) -> list[int]:
    """Return before which nodes a graph is cut, so that no part's weights and caches have more than `limit` bytes.

    `sizes` are those of the graph's constants and caches. Raises UsageError where what lies between two places that
    can be cut has more.
    """
    cuts: list[int] = []
    held, allowed, since = 0, 0, 0
    places = set(_places(graph))
    for index, node in enumerate(graph.nodes):
        if index in places:
            allowed, since = index, 0
        weight = sum(sizes.get(name, 0) for name in node.input)
        held, since = held + weight, since + weight
        if held > limit:
            if since > limit:
                raise UsageError(
                    f"The option part-bytes is {limit}, and what can't be cut apart at {node.name} has {since} bytes "
                    "of weights and caches: give more, or a smaller context."
                )
            cuts.append(allowed)
            held = since
    return cuts


def parts_of(graph: StaticGraph, cuts: Sequence[int]) -> list[StaticGraph]:
    """Return a graph's parts in order; each takes the inputs it uses and what the part before gives."""
    bounds = [0, *cuts, len(graph.nodes)]
    parts = []
    for start, stop in itertools.pairwise(bounds):
        nodes = graph.nodes[start:stop]
        made = {name for node in nodes for name in node.output}
        read = {name for node in nodes for name in node.input}
        before = {name for node in graph.nodes[:start] for name in node.output}
        after = {name for node in graph.nodes[stop:] for name in node.input}
        parts.append(
            dataclasses.replace(
                graph,
                nodes=nodes,
                inputs=[*sorted(read & before), *(name for name in graph.inputs if name in read)],
                outputs=[*(name for name in graph.outputs if name in made), *sorted(made & after)],
            )
        )
    return parts


def _places(graph: StaticGraph) -> Iterator[int]:
    """Yield the nodes before which exactly one activation is alive."""
    last = {name: index for index, node in enumerate(graph.nodes) for name in node.input}
    alive: set[str] = set()
    for index, node in enumerate(graph.nodes):
        if len(alive) == 1:
            yield index
        alive.update(name for name in node.output if last.get(name, -1) > index)
        alive = {name for name in alive if last[name] > index}


def crossing(parts: Sequence[StaticGraph]) -> list[str]:
    """Return the activations that go from a part to the next."""
    return [name for part in parts[:-1] for name in part.outputs if any(name in other.inputs for other in parts)]
