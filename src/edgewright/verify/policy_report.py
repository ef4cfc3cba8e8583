"""What is measured of a policy and what it must reach: distances of tensors, bounds by format, the levels' reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: How many faults a summary spells out.
_SHOWN = 3


@dataclass(frozen=True)
class Gap:
    """How far a tensor is from its reference.

    `max_error` is the largest absolute difference and `rmse` the root of the mean square, both over the reference's
    largest magnitude; `cosine` is that of the whole tensors.
    """

    max_error: float
    cosine: float
    rmse: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures; those that are no numbers become None."""
        return {name: float(f"{v:.4g}") if math.isfinite(v) else None for name, v in vars(self).items()}


def gap(given: Array, wanted: Array) -> Gap:
    """Compare a tensor with its reference; one that is not finite or of another shape is infinitely far."""
    if given.shape != wanted.shape or not np.isfinite(given).all():
        return Gap(math.inf, 0.0, math.inf)
    a, b = given.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    scale = max(float(np.abs(b).max(initial=0.0)), 1e-30)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms > 0 else float(not a.any() and not b.any())
    difference = a - b
    rmse = float(np.sqrt(np.square(difference).mean())) if difference.size else 0.0
    return Gap(float(np.abs(difference).max(initial=0.0)) / scale, cosine, rmse / scale)


@dataclass(frozen=True)
class Bound:
    """The largest `max_error` and the smallest cosine that pass; None is no bound."""

    max_error: float | None
    cosine: float | None = None

    def faults(self, found: Gap) -> list[str]:
        """Return in words what is exceeded."""
        words = []
        if self.max_error is not None and not found.max_error <= self.max_error:
            words.append(f"max error {found.max_error:.3g} > {self.max_error:g}")
        if self.cosine is not None and not found.cosine >= self.cosine:
            words.append(f"cosine {found.cosine:.5f} < {self.cosine:g}")
        return words


#: What a stage's outputs and the actions must reach, by the coarsest format of weights and inputs.
BOUNDS = {
    "float32": Bound(1e-4, 0.99999),
    "float16": Bound(0.02, 0.9995),
    "int8": Bound(0.2, 0.99),
    "fp8": Bound(0.6, 0.95),
    "int4": Bound(None, 0.85),
}
#: What an exact rewrite may change in float32: sums in another order, over all steps.
EXACT = Bound(1e-5)


@dataclass(frozen=True)
class GapsReport:
    """One level: a gap for each thing that was compared, and what could not be compared here.

    `more` are further figures for the report. What is in `apart` has a bound of its own.
    """

    bound: Bound
    gaps: Mapping[str, Gap]
    unchecked: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    apart: Mapping[str, Bound] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """Return in words what exceeds its bound."""
        bounds = {name: self.apart.get(name, self.bound) for name in self.gaps}
        return [f"{name}: {', '.join(words)}" for name, g in self.gaps.items() if (words := bounds[name].faults(g))]

    @property
    def worst(self) -> str:
        """What is farthest from its reference; empty where nothing was compared."""
        return max(self.gaps, key=lambda name: self.gaps[name].max_error, default="")

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        return {
            "status": status_of(self.faults, self.unchecked, compared=bool(self.gaps)),
            "summary": self._summary(),
            "threshold": vars(self.bound),
            **({"thresholds": {name: vars(bound) for name, bound in self.apart.items()}} if self.apart else {}),
            "worst": self.worst,
            "compared": {name: g.to_json() for name, g in self.gaps.items()},
            **({"not_checked": list(self.unchecked)} if self.unchecked else {}),
            **self.more,
        }

    def _summary(self) -> str:
        parts = []
        if faults := self.faults:
            rest = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            parts.append("; ".join(faults[:_SHOWN]) + rest)
        if self.gaps:
            worst = self.gaps[self.worst]
            cosine = min(g.cosine for g in self.gaps.values())
            figures = f"max error {worst.max_error:.2g} ({self.worst}), smallest cosine {cosine:.5f}"
            parts.append(f"{figures} over {len(self.gaps)} results")
        return "; ".join([*parts, *self.unchecked]) or "nothing to compare"


@dataclass(frozen=True)
class SpecReport:
    """Level `spec`: what stands around the graphs (spec, statistics, tokenizer, schedule) against the checkpoint."""

    faults: Sequence[str]
    compared: int
    unchecked: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        words = [*self.faults] or [f"{self.compared} values as the checkpoint says"]
        return {
            "status": status_of(self.faults, self.unchecked),
            "summary": "; ".join([*words, *self.unchecked]),
            **({"not_checked": list(self.unchecked)} if self.unchecked else {}),
        }


def status_of(faults: Sequence[str], unchecked: Sequence[str], *, compared: bool = True) -> str:
    """Return a level's verdict."""
    if faults:
        return "failed"
    if unchecked:
        return "partly checked" if compared else "not checked"
    return "passed"
