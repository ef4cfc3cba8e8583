"""Which nodes of a bundle's graph a layer of its engine runs: by name where it has one, by its place in the graph else.

An engine fuses nodes, and opens the bodies of functions. What it keeps are names of nodes, or of the values between
them. A layer covers the nodes between the values it takes and those it gives that both graphs know; of these the
nodes that are layers themselves are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

#: What may follow a node's name where an engine adds something to it.
_BREAKS = "/_:. +["
_RANGE = "..."


@dataclass(frozen=True)
class EngineNode:
    """A node of the engine's graph; values are any names that tell them apart. `originals` are nodes that it names."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    originals: tuple[str, ...] = ()


@dataclass
class _Known:
    """A bundle's graph: its nodes in order, who makes a value, and what a node takes and gives."""

    order: list[str] = field(default_factory=list)
    kind: dict[str, str] = field(default_factory=dict)
    maker: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Owners:
    """Finds the nodes of `graph` that layers run. `engine` is the engine's own graph, where there is one.

    A name that several nodes have stands for all of them.
    """

    def __init__(self, graph: ir.Graph, engine: Sequence[EngineNode] = ()) -> None:
        self._known = _read(graph)
        self._longest = max(map(len, self._known.kind), default=0)
        self._engine = list(engine)
        self._by_name = {node.name: index for index, node in enumerate(self._engine) if node.name}
        self._maker = {value: index for index, node in enumerate(self._engine) for value in node.outputs if value}
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(self._engine):
            for value in node.inputs:
                self._readers.setdefault(value, []).append(index)
        self._named = [self._own(node) for node in self._engine]
        self._modules: dict[str, list[str]] = {}
        for name in dict.fromkeys(self._known.order):
            self._modules.setdefault(name.partition("/")[0], []).append(name)
        # An engine that keeps the names of values tells more than one that has names of nodes alone.
        self._by_value = any(value in self._known.maker for node in self._engine for value in node.outputs)
        # Values that both graphs have: those of the engine's nodes, or those of the nodes that they name.
        self._shared = {value for index in range(len(self._engine)) for value in self._values(index)}
        # Nodes that are layers by their own names.
        self._layers = {
            name for node in self._engine for one in (*node.originals, node.name) for name in self._node(one)
        }
        self._found: dict[int, tuple[str, ...]] = {}

    def kind(self, node: str) -> str:
        """Return the op of a node of the graph."""
        return self._known.kind[node]

    @property
    def order(self) -> Sequence[str]:
        """The nodes of the graph, in its order."""
        return self._known.order

    def of(self, name: str, place: int = -1, originals: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the nodes that a layer runs, in the graph's order; none where nothing leads to one."""
        index = self._index(name, place)
        if index is not None:
            return self._covered(index)
        found = [node for original in (*originals, name) for node in self._spelled(original)]
        return self._sorted(found) or self._of_module(name)

    def _index(self, name: str, place: int) -> int | None:
        if name in self._by_name:
            return self._by_name[name]
        # A node without a name is spelled by its op and its place.
        here = self._engine[place] if 0 <= place < len(self._engine) else None
        return place if here is not None and not here.name and name == f"{here.kind}_{place}" else None

    def _own(self, node: EngineNode) -> tuple[str, ...]:
        """Return the nodes that an engine's node names."""
        return tuple(dict.fromkeys(one for name in (*node.originals, node.name) for one in self._spelled(name)))

    def _spelled(self, name: str) -> tuple[str, ...]:
        """Return the nodes that a name stands for: its own, a value's maker, or the longest that it begins with."""
        return self._node(name) or tuple(self._known.maker[one] for one in (name,) if one in self._known.maker)

    def _node(self, name: str) -> tuple[str, ...]:
        """Return the nodes that a name spells: that one, a range, or the longest that it begins with."""
        known = self._known
        if name in known.kind:
            return (name,)
        first, dots, last = name.partition(_RANGE)
        if dots and first in known.kind and last in known.kind:
            return self._range(first, last)
        for end in range(min(len(name) - 1, self._longest), 0, -1):
            if name[end] in _BREAKS and name[:end] in known.kind:
                return (name[:end],)
        return ()

    def _range(self, first: str, last: str) -> tuple[str, ...]:
        """Return the nodes on the ways from one node to another."""
        onward = self._reach([first], forward=True)
        back = self._reach([last], forward=False)
        return self._sorted(onward & back) or (first, last)

    def _reach(self, names: Iterable[str], *, forward: bool) -> set[str]:
        known, seen = self._known, set(names)
        todo = list(seen)
        readers: dict[str, list[str]] = {}
        if forward:
            for node, values in known.inputs.items():
                for value in values:
                    readers.setdefault(value, []).append(node)
        while todo:
            node = todo.pop()
            if forward:
                near = [one for value in known.outputs[node] for one in readers.get(value, ())]
            else:
                near = [known.maker[value] for value in known.inputs[node] if value in known.maker]
            fresh = [one for one in near if one not in seen]
            seen.update(fresh)
            todo.extend(fresh)
        return seen

    def _sorted(self, names: Iterable[str]) -> tuple[str, ...]:
        wanted = set(names)
        if len(wanted) < 2:
            return tuple(wanted)
        return tuple(name for name in self._known.order if name in wanted)

    def _covered(self, index: int) -> tuple[str, ...]:
        if index not in self._found:
            found = set(self._named[index])
            if self._by_value:
                found |= self._between(index)
            self._found[index] = self._sorted(found) or self._beside(index)
        return self._found[index]

    def _beside(self, index: int) -> tuple[str, ...]:
        """Return the nodes of the module that a name begins with, else those of what reads its values or makes them."""
        if mine := self._of_module(self._engine[index].name, self._engine[index].kind):
            return mine
        for forward in (True, False):
            seen, todo, found = {index}, [index], set[str]()
            while todo:
                for near in self._steps(todo.pop(), forward=forward):
                    names = self._named[near] or self._of_module(self._engine[near].name)
                    found.update(names)
                    if not names and near not in seen:
                        seen.add(near)
                        todo.append(near)
            if found:
                return self._sorted(found)
        return ()

    def _steps(self, index: int, *, forward: bool) -> list[int]:
        node = self._engine[index]
        if forward:
            return [reader for value in node.outputs for reader in self._readers.get(value, ())]
        return [self._maker[value] for value in node.inputs if value in self._maker]

    def _of_module(self, name: str, kind: str = "") -> tuple[str, ...]:
        """Return the nodes of the module that stands before the slash: those of the op, or all.

        An op is of a kind where the name of one is within the other's, such as RMS and RMSNorm.
        """
        module, slash, _ = name.partition("/")
        nodes = tuple(self._modules.get(module, ()) if slash else ())
        ops = {node: self._known.kind[node].lower() for node in nodes}
        alike = tuple(node for node in nodes if kind and (ops[node] in kind.lower() or kind.lower() in ops[node]))
        return alike or nodes

    def _between(self, index: int) -> set[str]:
        """Return the nodes, no layers themselves, that stand between what an engine's node takes and what it gives."""
        below, above = self._nearest(index, forward=True), self._nearest(index, forward=False)
        passed, found, known = set(above), set[str](), self._known
        ends = {value for value in below if value not in passed}
        todo = list(ends)
        while todo:
            value = todo.pop()
            maker = known.maker.get(value)
            if maker is None or value in passed or (value in self._shared and value not in ends):
                continue
            passed.add(value)
            found.add(maker)
            todo.extend(known.inputs[maker])
        return {name for name in found if name not in self._layers} | (found & set(self._named[index]))

    def _nearest(self, index: int, *, forward: bool) -> list[str]:
        """Return the nearest values above or below an engine's node that the graph knows as well."""
        node = self._engine[index]
        todo = self._values(index) if forward else list(node.inputs)
        seen, found = set(todo), []
        while todo:
            value = todo.pop()
            if value in self._known.maker:
                found.append(value)
                continue
            steps = self._readers.get(value, []) if forward else [self._maker[value]] if value in self._maker else []
            for step in steps:
                for near in self._values(step) if forward else self._from(step):
                    if near not in seen:
                        seen.add(near)
                        todo.append(near)
        return found

    def _values(self, index: int) -> list[str]:
        """Return what an engine's node gives: what the nodes that it names give, where its own values are unknown."""
        node = self._engine[index]
        if any(value in self._known.maker for value in node.outputs) or not self._named[index]:
            return list(node.outputs)
        return [value for name in self._named[index] for value in self._known.outputs[name]]

    def _from(self, index: int) -> list[str]:
        """Return what stands for an engine's node on the way up: values that the graph knows, else its inputs."""
        values = self._values(index)
        return values if any(value in self._known.maker for value in values) else list(self._engine[index].inputs)


def _read(graph: ir.Graph) -> _Known:
    known = _Known()
    for node in graph:
        name = node.name or ""
        known.order.append(name)
        known.kind[name] = node.op_type
        known.inputs[name] = known.inputs.get(name, ()) + _names(node.inputs)
        known.outputs[name] = known.outputs.get(name, ()) + _names(node.outputs)
        known.maker |= dict.fromkeys(_names(node.outputs), name)
    return known


def _names(values: Iterable[ir.Value | None]) -> tuple[str, ...]:
    """Return the names of values; one that is left out has none."""
    return tuple(value.name for value in values if value is not None and value.name)


def engine_nodes(graph: ir.Graph) -> list[EngineNode]:
    """Return an ONNX graph as an engine's."""
    return [EngineNode(node.name or "", node.op_type, _names(node.inputs), _names(node.outputs)) for node in graph]
