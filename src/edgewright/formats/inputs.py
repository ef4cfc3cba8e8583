"""What is done to the input of a linear before its product: rounding, and the other half of a change of its weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgewright.formats.elements import Array

#: What activations can be rounded to.
ACTIVATIONS = ("int8", "fp8", "int4", "nvfp4", "mxfp8", "mxfp4")


@dataclass(frozen=True)
class ActivationFormat:
    """Inputs rounded to a format: with one `static` scale found by calibration, or with scales made of the very inputs.

    `scope` says who shares a dynamic scale: the tensor, a token (row), or a block of columns (nvfp4: 16 under a global
    scale, static or of the tensor; mxfp8 and mxfp4: 32). `symmetric` False (int8 static only) adds a zero point.
    """

    name: str
    static: bool
    scope: str = "tensor"
    symmetric: bool = True

    @property
    def label(self) -> str:
        """The format's name as reports spell it."""
        kind = "static" if self.static else "dynamic"
        return f"{self.name} {kind} {self.scope}" + ("" if self.symmetric else " zero-point")

    def to_json(self) -> dict[str, Any]:
        """Return the format as JSON-compatible values."""
        return dict(vars(self))


@dataclass(frozen=True)
class LinearInput:
    """What a linear's input goes through, in this order.

    `permutation` int64 `[width]`: column i of the weight multiplies element permutation[i] of x. `multiply` float32
    `[width]` scales x (the weight was divided by it). `activation` rounds x, with `scale` float32 `[1]` and
    `zero_point` int8 `[1]` where it is static.
    """

    permutation: Array | None = None
    multiply: Array | None = None
    activation: ActivationFormat | None = None
    scale: Array | None = None
    zero_point: Array | None = None

    @property
    def reorders(self) -> bool:
        """Tell whether elements are put in another order and nothing else."""
        others = (self.multiply, self.activation, self.scale, self.zero_point)
        return self.permutation is not None and all(value is None for value in others)
