"""How far two sets of logits are apart: maximum error, cosine, KL divergence with its uncertainty, top-1 agreement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

#: Rows compared at once, to bound the float64 copies.
_BLOCK = 16


@dataclass(frozen=True)
class Distance:
    """Figures of `positions` rows of logits against a reference.

    `max_error` is the largest absolute difference over the reference's largest magnitude. `cosine` is the smallest
    over rows. `kl` is the mean over rows of KL(reference || candidate) in nats, `kl_error` its standard error.
    `top1` is the share of rows whose largest logit is the same token.
    """

    positions: int
    max_error: float
    cosine: float
    kl: float
    kl_error: float
    top1: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures, rounded to what they mean; not-a-number becomes None."""
        values = vars(self)
        return {k: v if isinstance(v, int) else _significant(v) for k, v in values.items()}


@dataclass(frozen=True)
class Rows:
    """Figures row by row, float64 `[rows]` each; `error` and `scale` are largest magnitudes. See `Distance`."""

    error: Array
    scale: Array
    cosine: Array
    kl: Array
    agree: Array

    def summary(self) -> Distance:
        """Return the figures of all rows together."""
        rows = len(self.kl)
        if not np.isfinite(self.kl).all():
            return Distance(rows, math.inf, 0.0, math.inf, math.inf, 0.0)
        spread = float(self.kl.std(ddof=1) / math.sqrt(rows)) if rows > 1 else math.inf
        error = float(self.error.max()) / max(float(self.scale.max()), 1e-30)
        return Distance(rows, error, float(self.cosine.min()), float(self.kl.mean()), spread, float(self.agree.mean()))


def compare(candidate: Logits, reference: Logits) -> Rows:
    """Compare logits `[rows, vocab]` row by row; a candidate row that is not finite has an infinite KL."""
    parts = [_compare(candidate[i : i + _BLOCK], reference[i : i + _BLOCK]) for i in range(0, len(reference), _BLOCK)]
    return pool(parts)


def pool(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts."""
    names = ("error", "scale", "cosine", "kl", "agree")
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def distance(candidate: Logits, reference: Logits) -> Distance:
    """Compare logits `[rows, vocab]`; anything not finite in the candidate gives infinite distances."""
    return compare(candidate, reference).summary()


def _compare(candidate: Logits, reference: Logits) -> Rows:
    finite: Array = np.asarray(np.isfinite(candidate).all(axis=1))
    c = np.where(finite[:, None], candidate, 0).astype(np.float64)
    r = reference.astype(np.float64)
    norms = np.linalg.norm(c, axis=1) * np.linalg.norm(r, axis=1)
    log_r, log_c = _log_softmax(r), _log_softmax(c)
    kl = (np.exp(log_r) * (log_r - log_c)).sum(axis=1)
    return Rows(
        error=np.abs(c - r).max(axis=1),
        scale=np.abs(r).max(axis=1),
        cosine=np.where(finite, (c * r).sum(axis=1) / np.maximum(norms, 1e-30), 0.0),
        kl=np.where(finite, kl, np.inf),
        agree=(c.argmax(axis=1) == r.argmax(axis=1)) & finite,
    )


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _significant(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
