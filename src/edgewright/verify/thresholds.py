"""What a bundle must reach to pass, by what it computes with.

`engine` compares the engine with a float32 reference that uses the very weights the bundle ships: it bounds the error
of kernels, int8 activations included. `quality` compares the engine with the float32 model: it bounds what quantization
cost, and only catches a wreck; the measured figures are what one decides by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgewright.quant.apply import Applied
from edgewright.quant.formats import FloatFormat, Format, IntFormat
from edgewright.verify.metrics import Distance


@dataclass(frozen=True)
class Threshold:
    """Largest mean KL in nats; where they are given, largest error relative to the reference's maximum and smallest
    row cosine."""

    kl: float
    max_error: float | None = None
    cosine: float | None = None

    def faults(self, d: Distance) -> list[str]:
        """Return in words what is exceeded; a KL counts when it exceeds its bound by more than two standard errors."""
        found = []
        if self.max_error is not None and not d.max_error <= self.max_error:
            found.append(f"max error {d.max_error:.3g} > {self.max_error:g}")
        if self.cosine is not None and not d.cosine >= self.cosine:
            found.append(f"cosine {d.cosine:.5f} < {self.cosine:g}")
        slack = 2 * d.kl_error if d.kl_error < float("inf") else 0.0
        if not d.kl - slack <= self.kl:
            found.append(f"KL {d.kl:.3g} > {self.kl:g}")
        return found


#: By whether any kernel may round its inputs to int8.
ENGINE = {
    False: Threshold(kl=1e-5, max_error=1e-4, cosine=0.99999),
    True: Threshold(kl=0.01),
}
#: By the coarsest weight format.
QUALITY = {
    "float32": Threshold(kl=1e-5, max_error=1e-4, cosine=0.99999),
    "float16": Threshold(kl=1e-3, max_error=0.02, cosine=0.999),
    "int8": Threshold(kl=0.03, max_error=0.3, cosine=0.95),
    "int4": Threshold(kl=1.0),
}
#: The same for a golden: its logits were computed by another program, whose own rounding counts, too.
GOLDEN = {**QUALITY, "float32": Threshold(kl=1e-5, max_error=1e-3, cosine=0.9999)}
_ORDER = ("float32", "float16", "int8", "int4")


def rounds_inputs(applied: Sequence[Applied]) -> bool:
    """Return whether any module's kernel may round its inputs to int8."""
    return any(isinstance(a.format, IntFormat) and a.format.int8_activations for a in applied if a.kind != "embedding")


def coarsest(formats: Iterable[Format]) -> str:
    """Return the name of the coarsest weight format used, as QUALITY spells it."""
    return coarser([_class(fmt) for fmt in formats])


def coarser(names: Sequence[str]) -> str:
    """Return the coarsest of some names of QUALITY."""
    return max(names, key=_ORDER.index, default="float32")


def _class(fmt: Format) -> str:
    return fmt.dtype if isinstance(fmt, FloatFormat) else f"int{fmt.bits}"
