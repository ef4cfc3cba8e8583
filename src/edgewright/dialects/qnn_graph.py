"""A graph of fixed size in the making: float nodes, their shapes, and what is known of the encodings they will have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Shape = tuple[int, ...]
IDS, MASK, COS, SIN = "input_ids", "attention_mask", "position_ids_cos", "position_ids_sin"
#: The op that gives a value another encoding; of floats it is the identity.
CONVERT = "Convert"


@dataclass(frozen=True)
class Source:
    """Where a constant's values come from: initializers of the dialect's graph, and how its op reads them.

    `kind` is "linear" (`[in, out]`, the transpose of the stored weight), "table" (rows as stored) or "vector".
    """

    kind: str
    module: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class StaticGraph:
    """A graph in the making: float nodes in order, all shapes, and what is known of encodings.

    `constants` are small arrays that stand in the graph, `sources` the weights by the name of the constant they are.
    `tied` pairs tensors that must have one encoding, since the op between them only moves numbers. `fixed` are ranges
    that need no observation. `masked` maps a masked score to the score. `tables` are the dialect's initializers of
    rotation by the input that takes their rows, `windows` the window of each mask's input, None for all.
    """

    rows: int
    context: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    tied: list[tuple[str, str]] = field(default_factory=list)
    fixed: dict[str, tuple[float, float]] = field(default_factory=dict)
    masked: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    windows: dict[str, int | None] = field(default_factory=dict)

    @property
    def past(self) -> int:
        """Slots of the past: what the context holds besides the rows."""
        return self.context - self.rows

    def add(
        self, op_type: str, inputs: Sequence[str], output: str, shape: Sequence[int], *more: str, **attributes: Any
    ) -> str:
        """Append a node with one output, or with `more` of the same shape; returns the first."""
        for name in (output, *more):
            self.shapes[name] = tuple(int(d) for d in shape)
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [output, *more], name=output, **attributes))
        return output

    def moved(self, op_type: str, source: str, inputs: Sequence[str], output: str, shape: Shape, **given: Any) -> str:
        """Append a node that only moves numbers, so that its output has its source's encoding."""
        self.tied.append((source, output))
        return self.add(op_type, [source, *inputs], output, shape, **given)

    def reshape(self, x: str, output: str, *shape: int) -> str:
        """Append a Reshape, unless it would change nothing."""
        if self.shapes[x] == shape:
            return x
        return self.moved("Reshape", x, [self.ints(shape)], output, shape)

    def transpose(self, x: str, output: str, *perm: int) -> str:
        """Append a Transpose."""
        return self.moved("Transpose", x, [], output, tuple(self.shapes[x][axis] for axis in perm), perm=list(perm))

    def ints(self, values: Sequence[int]) -> str:
        """Return a constant of whole numbers."""
        name = "ints_" + "_".join(map(str, values))
        self.constants[name] = np.asarray(values, dtype=np.int64)
        return name

    def number(self, value: float) -> str:
        """Return a constant number, `[1]`."""
        name = f"number_{float(np.float32(value))!r}"
        self.constants[name] = np.asarray([value], dtype=np.float32)
        return name

    def input(self, name: str, *shape: int) -> str:
        """Return an input, which is declared with its first use."""
        if name not in self.inputs:
            self.inputs.append(name)
            self.shapes[name] = shape
        return name
