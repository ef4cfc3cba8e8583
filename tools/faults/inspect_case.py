"""What a golden case's graph has, for the generators of faults to choose from."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fault import GOLDENS

from edgewright.checkpoint import open_checkpoint
from edgewright.models import build_llm
from edgewright.verify.locate import layer_of
from edgewright.verify.semantic import Op, Semantic


@dataclass(frozen=True)
class Case:
    """A golden case: its ops as built, and its config's rope factor where it has one."""

    name: str
    semantic: Semantic

    def ops(self, *types: str) -> list[Op]:
        """Return the ops of some types that are in a layer, in order."""
        return [op for op in self.semantic.ops if op.type in types and layer_of(op.module) is not None]

    def of_layer(self, layer: int, *types: str) -> list[Op]:
        """Return the ops of some types of one layer."""
        return [op for op in self.ops(*types) if layer_of(op.module) == layer]

    def linears(self, pattern: str = "") -> Iterator[Op]:
        """Yield the linears whose module matches."""
        yield from (op for op in self.ops("Linear") if re.search(pattern, op.module))

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers."""
        return sorted({n for op in self.semantic.ops if (n := layer_of(op.module)) is not None})


@functools.cache
def case_of(name: str) -> Case:
    """Build a golden case and look at it."""
    return Case(name, Semantic(build_llm(open_checkpoint(GOLDENS / name))))
