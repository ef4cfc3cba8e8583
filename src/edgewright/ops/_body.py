"""How a semantic op's reference body is written: ONNX text, specialised for one node's attributes and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Large negative score of a hidden position: finite, so that a fully hidden row stays finite too.
HIDDEN_SCORE = -1.0e30


@dataclass(frozen=True)
class Call:
    """One use of an op: its attributes, which formal inputs are given, how many outputs are wanted (None: all)."""

    attributes: Mapping[str, Any]
    given: tuple[bool, ...]
    results: int | None = None

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]


@dataclass(frozen=True)
class Op:
    """A semantic op: its name in the `ew` domain, formal inputs and outputs, and the body as ONNX text statements."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: Callable[[Call], str]


def number(value: float) -> str:
    """Spell a float so that the ONNX text parser reads the same float32 back."""
    text = repr(float(value))
    return text if any(c in text for c in ".en") else text + ".0"


def ints(name: str, *values: int) -> str:
    """Spell a statement that defines the int64 vector `name`."""
    return f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values))}}}>()\n"


def scalar(name: str, value: float) -> str:
    """Spell a statement that defines the float32 scalar `name`."""
    return f"{name} = Constant<value = float {{{number(value)}}}>()\n"
