"""Modules: a tree whose attribute names are the checkpoint's tensor names, and whose `forward` builds graph nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from edgewright.graph import GraphBuilder, Weight


class Parameter:
    """A tensor the checkpoint must hold: its shape, and `plus`, a number added to every element when it is read.

    `name` is set by `Module.assign_names`, `weight` when the checkpoint is bound.
    """

    def __init__(self, *shape: int, plus: float = 0.0) -> None:
        self.shape = shape
        self.plus = plus
        self.name = ""
        self.weight: Weight | None = None

    def value(self, g: GraphBuilder) -> ir.Value:
        """Return the graph's initializer for this parameter."""
        assert self.weight is not None, f"parameter {self.name} was not bound to a checkpoint"
        return g.weight(self.weight)


class Module:
    """A node of the tree. Children and parameters are its attributes; a list of modules is numbered."""

    path = ""

    def children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of the direct children, list items as `name.index`."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, Module):
                        yield f"{name}.{index}", item

    def assign_names(self, path: str = "") -> None:
        """Set `path` of every module and `name` of every parameter; a shared parameter keeps its first name."""
        self.path = path
        prefix = f"{path}." if path else ""
        for name, value in vars(self).items():
            if isinstance(value, Parameter) and not value.name:
                value.name = prefix + name
        for name, child in self.children():
            child.assign_names(prefix + name)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it."""
        yield self
        for _, child in self.children():
            yield from child.modules()

    def parameters(self) -> Iterator[Parameter]:
        """Yield every parameter of the tree once."""
        seen: set[int] = set()
        for parameter in self._all_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter

    def _all_parameters(self) -> Iterator[Parameter]:
        for value in vars(self).values():
            if isinstance(value, Parameter):
                yield value
        for _, child in self.children():
            yield from child._all_parameters()

    def __call__(self, g: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
        with g.scope(self.path):
            return self.forward(g, *args, **kwargs)

    def forward(self, g: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
        """Append this module's nodes. A module that only holds others, which are called one by one, has none."""
        raise NotImplementedError(type(self).__name__)
