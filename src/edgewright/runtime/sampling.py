"""Choosing the next token from logits: penalties, temperature, top-k, top-p, min-p, one seeded draw.

Order and meaning follow transformers 5 (`generation/logits_process.py`, the order of `_get_logits_processor`):
repetition penalty, then temperature, top-k, top-p, min-p, each on what the one before left over. Presence and
frequency penalties, which transformers doesn't have, follow vLLM: after the repetition penalty, generated tokens only.

Ties: top-k keeps every token whose logit equals the k-th largest (as transformers does). Top-p ranks equal logits by
token id, lowest first; transformers leaves that to an unstable sort. Greedy takes the lowest id of equal logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError

_FIRST_TOP_P_CANDIDATES = 1024


@dataclass(frozen=True)
class SamplingParams:
    """How a token is drawn; the defaults are greedy decoding without penalties.

    `temperature` 0 means greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch those filters off; `seed` None takes
    fresh entropy. Raises GenerationError for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, "a finite number, 0 or more", lambda v: v >= 0)
        _check_int("top_k", self.top_k, "an integer from 0 (off) to 2**31 - 1", 2**31)
        _check_real("top_p", self.top_p, "a number above 0 and up to 1 (off)", lambda v: 0 < v <= 1)
        _check_real("min_p", self.min_p, "a number from 0 (off) to 1", lambda v: 0 <= v <= 1)
        _check_real("repetition_penalty", self.repetition_penalty, "a finite number above 0", lambda v: v > 0)
        _check_real("presence_penalty", self.presence_penalty, "a number from -2 to 2", lambda v: -2 <= v <= 2)
        _check_real("frequency_penalty", self.frequency_penalty, "a number from -2 to 2", lambda v: -2 <= v <= 2)
        if self.seed is not None:
            _check_int("seed", self.seed, "None or an integer from 0 to 2**64 - 1", 2**64)


class Sampler:
    """Draws tokens for one sequence; keeps its random state and the counts that the penalties need."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] = (),
        *,
        token_ids: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """`prompt_ids` count for the repetition penalty only; GenerationError if one is negative.

        `token_ids` int64 `[vocab]`, ascending, are the tokens of the logits' columns; without them column i is token i.
        """
        self.params = params
        self._token_ids = token_ids
        self._rng = np.random.Generator(np.random.PCG64(params.seed))
        self._seen = np.unique(np.asarray(prompt_ids, dtype=np.int64).reshape(-1))
        if self._seen.size and self._seen[0] < 0:
            raise GenerationError(
                f"prompt token id {int(self._seen[0])} is negative and so no token; pass ids from 0 upwards."
            )
        if token_ids is not None:  # what can't be drawn needs no penalty
            self._seen = np.flatnonzero(np.isin(token_ids, self._seen))
        self._counts: dict[int, int] = {}
        self._penalises = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )

    def __call__(self, logits: npt.NDArray[np.floating[Any]]) -> int:
        """Returns the chosen token id for `logits` [vocab] and records it; GenerationError if one isn't finite."""
        if self.params.temperature == 0:
            column = int(self._penalised(self._checked(logits)).argmax())
        else:
            columns, probabilities = self._survivors(logits)
            edges = probabilities.cumsum()
            draw = self._rng.random() * edges[-1]
            column = int(columns[min(int(edges.searchsorted(draw, side="right")), columns.size - 1)])
        self._record(column)
        return self._token_of(column)

    def distribution(
        self, logits: npt.NDArray[np.floating[Any]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Returns the ids that survive all filters and their probabilities (sum 1), without drawing or recording.

        With temperature 0 the one greedy id has probability 1.
        """
        columns, probabilities = self._survivors(logits)
        return (columns if self._token_ids is None else self._token_ids[columns]), probabilities

    def _survivors(
        self, logits: npt.NDArray[np.floating[Any]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the columns that survive all filters, and their probabilities."""
        scores = self._penalised(self._checked(logits))
        params = self.params
        if params.temperature == 0:
            return np.array([scores.argmax()], dtype=np.int64), np.ones(1)
        ids = _top_k_ids(scores, params.top_k)
        kept = scores if ids.size == scores.size else scores[ids]
        with np.errstate(over="ignore"):  # to -inf, whose weight is 0: the temperature is tiny
            exponents = np.subtract(kept, kept.max(), dtype=np.float64) / params.temperature
            weights = np.exp(exponents.astype(np.float32))  # in single precision as transformers, and 7 times as fast
        if params.top_p < 1.0:
            order = _top_p_positions(kept, weights, params.top_p)
            ids, weights = ids[order], weights[order]
        if params.min_p > 0.0:
            # weights are probabilities relative to the largest one, so transformers' `p < min_p * p_max` is this
            survivors = weights >= params.min_p
            ids, weights = ids[survivors], weights[survivors]
        return ids, weights / weights.sum(dtype=np.float64)

    def _penalised(self, logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
        if not self._penalises:
            return logits
        params = self.params
        scores = logits.astype(np.float32, copy=True)
        if params.repetition_penalty != 1.0:
            seen = self._seen[self._seen < scores.size]  # transformers ignores ids past the head's vocabulary
            values = scores[seen]
            penalty = np.float32(params.repetition_penalty)
            scores[seen] = np.where(values < 0, values * penalty, values / penalty)
        if self._counts and (params.presence_penalty != 0.0 or params.frequency_penalty != 0.0):
            ids = np.fromiter(self._counts.keys(), dtype=np.int64, count=len(self._counts))
            counts = np.fromiter(self._counts.values(), dtype=np.float32, count=len(self._counts))
            scores[ids] -= np.float32(params.frequency_penalty) * counts + np.float32(params.presence_penalty)
        return scores

    def _record(self, column: int) -> None:
        if not self._penalises:
            return
        if column not in self._counts:
            at = int(self._seen.searchsorted(column))
            if at == self._seen.size or self._seen[at] != column:
                self._seen = np.insert(self._seen, at, column)
        self._counts[column] = self._counts.get(column, 0) + 1

    def _token_of(self, column: int) -> int:
        return column if self._token_ids is None else int(self._token_ids[column])

    def _checked(self, logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
        """The logits themselves if they are one finite vector of the right length."""
        values = _finite(logits, self._token_of)
        if self._token_ids is not None and values.size != self._token_ids.size:
            raise GenerationError(f"{values.size} logits don't fit the {self._token_ids.size} tokens that are kept.")
        return values


def _finite(logits: npt.NDArray[np.floating[Any]], token_of: Callable[[int], int]) -> npt.NDArray[np.floating[Any]]:
    """The logits themselves if they are one finite vector; two reductions, no copy."""
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or not logits.size or logits.dtype.kind != "f":
        raise GenerationError(
            f"logits of type {getattr(logits, 'dtype', type(logits).__name__)} and shape "
            f"{getattr(logits, 'shape', '?')} can't be sampled from; pass one non-empty float vector [vocab]."
        )
    if not (np.isfinite(logits.min()) and np.isfinite(logits.max())):  # both pass NaN on
        at = int(np.flatnonzero(~np.isfinite(logits))[0])
        raise GenerationError(
            f"the logit of token {token_of(at)} is {logits[at]}, so no token can be chosen; the engine computed a "
            "non-finite value, check the model's precision with verify."
        )
    return logits


def _top_k_ids(scores: npt.NDArray[np.floating[Any]], top_k: int) -> npt.NDArray[np.int64]:
    if top_k == 0 or top_k >= scores.size:
        return np.arange(scores.size)
    threshold = np.partition(scores, scores.size - top_k)[scores.size - top_k]
    return np.flatnonzero(scores >= threshold)


def _top_p_positions(
    scores: npt.NDArray[np.floating[Any]], weights: npt.NDArray[np.float32], top_p: float
) -> npt.NDArray[np.int64]:
    """Positions of the smallest set of best tokens whose share reaches `top_p`; sorts only as many as needed."""
    target = weights.sum(dtype=np.float64) * top_p
    count = _FIRST_TOP_P_CANDIDATES
    while True:
        if count >= scores.size:
            candidates = np.arange(scores.size)
        else:
            threshold = np.partition(scores, scores.size - count)[scores.size - count]
            candidates = np.flatnonzero(scores >= threshold)
        order = candidates[np.argsort(-scores[candidates], kind="stable")]
        reached = weights[order].cumsum(dtype=np.float64)
        if reached[-1] >= target or candidates.size == scores.size:
            # a token stays while the share of the better ones is below top_p, so the first always stays
            keep = 1 + int(np.searchsorted(reached[:-1], target, side="left"))
            return order[:keep]
        count *= 8


def _check_real(name: str, value: object, allowed: str, ok: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not ok(value):
        raise GenerationError(f"{name} is {value!r}, which can't be honoured; give {allowed}.")


def _check_int(name: str, value: object, allowed: str, limit: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < limit:
        raise GenerationError(f"{name} is {value!r}, which can't be honoured; give {allowed}.")
