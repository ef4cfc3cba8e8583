"""How far two sets of logits are apart: maximum error, cosine, KL divergence with its uncertainty, top-1 agreement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


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


def distance(candidate: Logits, reference: Logits) -> Distance:
    """Compare logits `[rows, vocab]`; anything not finite in the candidate gives infinite distances."""
    rows = len(reference)
    if not np.isfinite(candidate).all():
        return Distance(rows, math.inf, 0.0, math.inf, math.inf, 0.0)
    c, r = candidate.astype(np.float64), reference.astype(np.float64)
    scale = max(float(np.abs(r).max()), 1e-30)
    norms = np.linalg.norm(c, axis=1) * np.linalg.norm(r, axis=1)
    cosine = (c * r).sum(axis=1) / np.maximum(norms, 1e-30)
    log_c, log_r = _log_softmax(c), _log_softmax(r)
    kl = (np.exp(log_r) * (log_r - log_c)).sum(axis=1)
    error = float(kl.std(ddof=1) / math.sqrt(rows)) if rows > 1 else math.inf
    agree = c.argmax(axis=1) == r.argmax(axis=1)
    return Distance(
        rows, float(np.abs(c - r).max()) / scale, float(cosine.min()), float(kl.mean()), error, float(agree.mean())
    )


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _significant(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
