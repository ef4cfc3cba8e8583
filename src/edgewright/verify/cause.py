"""The cause classes, and one likely cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgewright.verify.semantic import Op

#: The cause classes.
CLASSES = (
    "window",
    "rope",
    "mask",
    "bias",
    "scale",
    "soft cap",
    "norm",
    "activation",
    "head layout",
    "weight bytes",
    "routing",
    "cache",
    "wiring",
)


@dataclass(frozen=True)
class Cause:
    """A likely cause: its class, in words, and which relative error is left when the reference is changed so.

    `left` is None where the class follows from the pattern of the error only. `op` is the op at fault where it is not
    the one whose result differs, because the candidate has no result of it.
    """

    kind: str
    words: str
    left: float | None = None
    op: Op | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the cause for the report."""
        left = None if self.left is None or self.left == float("inf") else float(f"{self.left:.3g}")
        return {"class": self.kind, "words": self.words, "error_left": left}
