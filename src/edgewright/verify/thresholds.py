"""What a bundle must reach to pass, by what it computes with.

`engine` compares the engine with a float32 reference that uses the very weights the bundle ships: it bounds the error
of kernels, int8 activations included. `quality` compares the engine with the float32 model: it bounds what quantization
cost, and only catches a wreck; the measured figures are what one decides by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgewright.formats import FloatFormat, Format, IntFormat, MxFormat, ScaledFormat
from edgewright.quant.apply import Applied
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
    "fp8": Threshold(kl=0.1, max_error=0.5, cosine=0.9),
    "int4": Threshold(kl=1.0),
}
#: The same for a golden: its logits were computed by another program, whose own rounding counts, too.
GOLDEN = {**QUALITY, "float32": Threshold(kl=1e-5, max_error=1e-3, cosine=0.9999)}
#: What a cache of codes adds, by its dtype: to the distance from the float32 model, and, as a value between two codes
#: may be rounded either way, to the distance from a reference with the same scales.
CACHE_QUALITY = {"int8": Threshold(kl=0.03), "float8_e4m3fn": Threshold(kl=0.1)}
CACHE_ENGINE = {"int8": Threshold(kl=5e-3, max_error=0.1), "float8_e4m3fn": Threshold(kl=5e-3, max_error=0.2)}
#: What rounding the inputs of linears adds to the distance from the float32 model, by bits of the inputs.
INPUT_QUALITY = {8: Threshold(kl=0.1), 4: Threshold(kl=1.0)}
#: What computing in another type than float32 adds to either distance; uint16 are activations rounded everywhere.
COMPUTES = {
    "float16": Threshold(kl=1e-3, max_error=0.02, cosine=0.999),
    "bfloat16": Threshold(kl=1e-2, max_error=0.1, cosine=0.99),
    "uint16": Threshold(kl=0.01, max_error=0.1, cosine=0.99),
}
_ORDER = ("float32", "float16", "int8", "fp8", "int4")


def with_cache(threshold: Threshold, allowance: dict[str, Threshold], cache: str) -> Threshold:
    """Return a threshold with what a cache of dtype `cache` adds to it; cosines are then no longer bounded."""
    if cache not in allowance:
        return threshold
    more = allowance[cache]
    errors = [t.max_error for t in (threshold, more) if t.max_error is not None]
    return Threshold(threshold.kl + more.kl, sum(errors) if len(errors) == 2 else None)


def with_type(threshold: Threshold, kind: str, applied: Sequence[Applied] = ()) -> Threshold:
    """Return a threshold with what computing in another type than float32 adds to it.

    Where inputs of the modules in `applied` are rounded, one that lies near the middle of two codes in float32 may be
    rounded the other way: a share of what rounding them costs at all.
    """
    if kind not in COMPUTES:
        return threshold
    more = COMPUTES[kind]
    bits = _input_bits(applied)
    if bits is not None:
        more = Threshold(more.kl + INPUT_QUALITY[bits].kl / 4)
    cosine = None if threshold.cosine is None or more.cosine is None else min(threshold.cosine, more.cosine)
    if threshold.max_error is None or more.max_error is None:
        return Threshold(threshold.kl + more.kl, None, cosine)
    return Threshold(threshold.kl + more.kl, threshold.max_error + more.max_error, cosine)


def quality_of(applied: Sequence[Applied]) -> Threshold:
    """Return the bound on the distance from the float32 model, for weights and inputs together."""
    weights = QUALITY[coarsest(a.format for a in applied)]
    bits = _input_bits(applied)
    return weights if bits is None else Threshold(weights.kl + INPUT_QUALITY[bits].kl)


def _input_bits(applied: Sequence[Applied]) -> int | None:
    """Return the bits of the coarsest rounded inputs, None where none are rounded."""
    bits = [4 if a.inputs.name in ("int4", "nvfp4", "mxfp4") else 8 for a in applied if a.inputs is not None]
    return min(bits, default=None)


def rounds_inputs(applied: Sequence[Applied]) -> bool:
    """Return whether any module rounds its inputs, in its kernel or before it."""
    return any(
        a.inputs is not None or (isinstance(a.format, IntFormat) and a.format.int8_activations)
        for a in applied
        if a.kind != "embedding"
    )


def coarsest(formats: Iterable[Format]) -> str:
    """Return the name of the coarsest weight format used, as QUALITY spells it."""
    return coarser([_class(fmt) for fmt in formats])


def coarser(names: Sequence[str]) -> str:
    """Return the coarsest of some names of QUALITY."""
    return max(names, key=_ORDER.index, default="float32")


def _class(fmt: Format) -> str:
    if isinstance(fmt, FloatFormat):
        return "float16" if fmt.dtype == "bfloat16" else fmt.dtype
    if isinstance(fmt, IntFormat):
        return f"int{fmt.bits}"
    if isinstance(fmt, ScaledFormat):
        return "int8" if fmt.element == "int8" else "fp8"
    return "fp8" if fmt == MxFormat("e4m3") else "int4"
