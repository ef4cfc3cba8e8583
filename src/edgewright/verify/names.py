"""Which value of a lowered graph is which value of the graph before lowering.

Lowering keeps the names of most values. Where it fuses, it follows rules: a norm that takes a residual sum in is called
after the norm and gives `<norm>:normed` and `<norm>:sum`; linears that read one input are one linear named
`<parent>.a+b+c`, whose result holds the parts side by side, or whose Split gives them one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from edgewright.runtime.embedding import INPUT
from edgewright.verify.graphs import Array, Graph
from edgewright.verify.semantic import Op, Semantic


@dataclass(frozen=True)
class Tap:
    """A value of the candidate, or the columns `[start, stop)` of one."""

    name: str
    columns: tuple[int, int] | None = None

    def read(self, values: dict[str, Array]) -> Array:
        """Return the array out of a call's values."""
        array = values[self.name]
        return array if self.columns is None else array[..., self.columns[0] : self.columns[1]]


def match(reference: Semantic, candidate: Graph, fed: str | None = None) -> dict[str, Tap]:
    """Return the tap of every value of the reference that the candidate has, in the reference's order.

    `fed` is the one that a candidate with its embedding table outside takes instead of token ids.
    """
    taps = {name: Tap(name) for op in reference.ops for name in op.outputs if name in candidate.made}
    if fed is not None and INPUT in candidate.inputs:
        taps[fed] = Tap(INPUT)
    for op in reference.ops:
        if f"{op.name}:normed" in candidate.made:
            taps.setdefault(op.outputs[0], Tap(f"{op.name}:normed"))
        if f"{op.name}:sum" in candidate.made and op.inputs[0]:
            taps.setdefault(op.inputs[0], Tap(f"{op.name}:sum"))
    last = {op.module: op for op in reference.ops if "Linear" in op.type}
    for node in candidate.nodes:
        path = node.name.split("/", 1)[0]
        if "+" in path.rsplit(".", 1)[-1] and node.output:
            parts = [last.get(name) for name in part_names(path)]
            if all(part is not None for part in parts):
                _parts(taps, [p for p in parts if p is not None], list(node.output), node.op_type, reference.width)
    found = [(name, tap) for name, tap in taps.items() if name in reference.made and name not in reference.fixed]
    return dict(sorted(found, key=lambda item: reference.order[item[0]]))


def part_names(path: str) -> list[str]:
    """Return the module paths that a merged linear's path `<parent>.a+b+c` stands for."""
    parent, _, names = path.rpartition(".")
    return [f"{parent}.{name}" if parent else name for name in names.split("+")]


def _parts(
    taps: dict[str, Tap], parts: list[Op], outputs: list[str], kind: str, width: Callable[[str], int | None]
) -> None:
    """Add the taps of a merged linear's parts: outputs of its Split, or columns of its result."""
    if kind == "Split" and len(outputs) == len(parts):
        for part, output in zip(parts, outputs, strict=True):
            taps[part.outputs[0]] = Tap(output)
    elif len(outputs) == 1 and re.fullmatch(r"[^/]+/\w+:0", outputs[0]) and all(width(p.outputs[0]) for p in parts):
        start = 0
        for part in parts:
            stop = start + (width(part.outputs[0]) or 0)
            taps.setdefault(part.outputs[0], Tap(outputs[0], (start, stop)))
            start = stop
