"""Work that the plan counts, given to the layers that do it. Every piece of work goes to one layer, or to none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgewright.plan.work import Work


@dataclass
class Placed:
    """What a layer has to do in a run: multiply-adds by the numbers multiplied, and bytes that move."""

    macs: dict[str, int]
    bytes: int = 0

    def add(self, work: Work) -> None:
        """Add a piece of work."""
        if work.macs:
            self.macs[work.multiplies] = self.macs.get(work.multiplies, 0) + work.macs
        self.bytes += work.bytes


@dataclass(frozen=True)
class Doer:
    """A layer as work is placed: the nodes that it runs, its own op, its mean time."""

    nodes: tuple[str, ...]
    kind: str
    mean_ms: float


def place(
    work: Sequence[Work], doers: Sequence[Doer], kind_of: Callable[[str], str]
) -> tuple[list[Placed], Sequence[Work]]:
    """Return what each layer does and the work that no layer was found for.

    A piece of work is of a module and an op. It goes to the layers that run a node of that module and op; else to the
    module's layers that are such an op themselves; else to any of the module's. Those that run the fewest nodes besides
    go first. Where as many pieces as layers are found, they go in order; else all go to the one that takes longest.
    `kind_of` tells the op of a node.
    """
    placed = [Placed({}) for _ in doers]
    by_node: dict[tuple[str, str], list[int]] = {}
    by_kind: dict[tuple[str, str], list[int]] = {}
    by_module: dict[tuple[str, str], list[int]] = {}
    for index, doer in enumerate(doers):
        for node in doer.nodes:
            module = node.rsplit("/", 1)[0]
            _add(by_node, (module, kind_of(node)), index)
            _add(by_kind, (module, doer.kind), index)
            for path in {module, *_paths(node)}:
                _add(by_module, (path, ""), index)
    pieces: dict[tuple[str, str], list[Work]] = {}
    for item in work:
        pieces.setdefault((item.module, item.op), []).append(item)
    left: list[Work] = []
    for key, items in pieces.items():
        found = by_node.get(key) or by_kind.get(key) or by_module.get((key[0], ""))
        if not found:
            left += items
            continue
        fewest = min(len(doers[index].nodes) for index in found)
        found = [index for index in found if len(doers[index].nodes) == fewest]
        longest = max(found, key=lambda index: doers[index].mean_ms)
        for index, item in zip(found if len(found) == len(items) else [longest] * len(items), items, strict=True):
            placed[index].add(item)
    return placed, left


def _paths(node: str) -> list[str]:
    """Return the modules that a node was made for, those of linears that were joined one by one."""
    parent, dot, last = node.partition("/")[0].rpartition(".")
    return [f"{parent}{dot}{name}" for name in last.split("+")]


def _add(where: dict[tuple[str, str], list[int]], key: tuple[str, str], index: int) -> None:
    found = where.setdefault(key, [])
    if not found or found[-1] != index:
        found.append(index)
