"""What a calibration set exercises: token ids of a vocabulary, dimensions of vectors, colours of cameras."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.errors import CalibrationDataError
from edgewright.runtime.text import Tokenizer

_TOP = 10
_TOP_SHARES = (10, 100, 1000)
_DIGITS = 6


def token_coverage(
    rows: Sequence[npt.NDArray[np.int64]], vocab_size: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Return how many ids of the vocabulary occur, the commonest ones, and the share of the text that they make up."""
    counts = np.bincount(np.concatenate(rows), minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")
    total, distinct = int(counts.sum()), int(np.count_nonzero(counts))
    top = [
        {
            "id": token_id,
            "token": tokenizer.id_to_token(token_id) if tokenizer else None,
            "count": int(counts[token_id]),
            "share": round(int(counts[token_id]) / total, _DIGITS),
        }
        for token_id in order[: min(_TOP, distinct)].tolist()
    ]
    return {
        "distinct_tokens": distinct,
        "vocab_size": vocab_size,
        "vocabulary_share": round(distinct / vocab_size, _DIGITS),
        "top": top,
        "top_share": {str(k): round(int(counts[order[:k]].sum()) / total, _DIGITS) for k in _TOP_SHARES},
    }


class FieldCoverage:
    """Running statistics of one field over samples: `add` each sample's array, then `report`.

    `kind` is `tokens` (ids), `image` (uint8 [height, width, channels]) or `vector` (numbers whose last axis are the
    dimensions). Dimensions and channels are watched one by one.
    """

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.samples = 0
        self._shapes: Counter[str] = Counter()
        self._low = self._high = self._sum = np.zeros(0)
        self._count = 0
        self._flat = 0
        self._distinct: set[int] = set()

    def add(self, array: npt.NDArray[Any]) -> None:
        """Take in one sample's array; raises CalibrationDataError when it isn't finite or has other dimensions."""
        self.samples += 1
        if self.kind == "tokens":
            self._distinct.update(np.unique(array).tolist())
            self._count += array.size
            return
        self._shapes["x".join(map(str, array.shape))] += 1
        values = array.reshape(-1, array.shape[-1])
        if array.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values).all(axis=0)))
            raise CalibrationDataError(
                f"Dimension {bad} of {self.name} is not finite in sample {self.samples}: repair the sample or leave it "
                "out."
            )
        low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
        first = self._count == 0
        self._low = low if first else np.minimum(self._low, low)
        self._high = high if first else np.maximum(self._high, high)
        self._sum = values.sum(axis=0, dtype=np.float64) + (0 if first else self._sum)
        self._count += values.shape[0]
        self._flat += bool((low == high).all())

    def report(self) -> dict[str, Any]:
        """Return the field's coverage as JSON-compatible values."""
        report: dict[str, Any] = {"kind": self.kind, "samples": self.samples}
        if self.kind == "tokens":
            return {**report, "tokens": self._count, "distinct_tokens": len(self._distinct)}
        report |= {
            "shapes": dict(sorted(self._shapes.items())),
            "min": _rounded(self._low),
            "max": _rounded(self._high),
            "mean": _rounded(self._sum / self._count),
        }
        if self.kind == "image":
            return {**report, "one_colour": self._flat}
        return {**report, "degenerate": np.flatnonzero(self._low == self._high).tolist()}


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
