"""Checks a search against the thorough way: every format of every module measured alone, and the mix that gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edgewright.formats import Array
from edgewright.quantizer.candidates import Decision
from edgewright.quantizer.evaluate import Evaluator, Mix
from edgewright.quantizer.judge import Judgement
from edgewright.quantizer.search import Budget, Option, assign, total_cost


@dataclass(frozen=True)
class Check:
    """`correlation` is Spearman's, of estimated and measured KL over all (decision, format) that change anything.

    `greedy_kl` is what the mix of the same cost measures that is chosen by the measured losses. The evaluations are
    those of either way; of the search, the probing counts by its share of tokens times layers.
    """

    correlation: float
    singles: int
    found_kl: float
    greedy_kl: float
    kl_error: float
    search_evaluations: float
    greedy_evaluations: int

    @property
    def fewer(self) -> float:
        """How many times fewer evaluations the search takes."""
        return self.greedy_evaluations / self.search_evaluations

    @property
    def as_good(self) -> bool:
        """Whether the search's mix loses no more, within two standard errors."""
        return self.found_kl <= self.greedy_kl + 2 * self.kl_error

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON-compatible values."""
        return {**asdict(self), "fewer": self.fewer, "as_good": self.as_good}


def check_search(
    decisions: Sequence[Decision],
    options: Mapping[str, Sequence[Option]],
    chosen: Mapping[str, Option],
    judgement: Judgement,
    evaluator: Evaluator,
    spent: float,
) -> Check:
    """Measure every option alone, choose by that at the cost of `chosen`, and compare; `spent` is what it took."""
    before = evaluator.evaluations
    keys = [(decision, option) for decision in decisions for option in options[decision.name]]
    single = evaluator.evaluate([_mix(decision, option) for decision, option in keys])
    measured: dict[str, list[Option]] = {decision.name: [] for decision in decisions}
    for (decision, option), found in zip(keys, single, strict=True):
        measured[decision.name].append(Option(option.format, option.cost, max(found.kl, 0.0)))
    greedy = assign(measured, Budget("size", total_cost(chosen) * (1 + 1e-12)))
    same = all(greedy[name].format == chosen[name].format for name in chosen)
    mix = [pair for decision in decisions for pair in _mix(decision, greedy[decision.name])]
    (other,) = evaluator.evaluate([mix]) if not same else [judgement]
    pairs = [(option.kl, found.kl) for (_, option), found in zip(keys, single, strict=True) if found.kl > 0]
    return Check(
        correlation=spearman([a for a, _ in pairs], [b for _, b in pairs]),
        singles=len(keys),
        found_kl=judgement.kl,
        greedy_kl=other.kl,
        kl_error=math.hypot(judgement.kl_error, other.kl_error) if not same else judgement.kl_error,
        search_evaluations=spent,
        greedy_evaluations=evaluator.evaluations - before + int(same),
    )


def _mix(decision: Decision, option: Option) -> Mix:
    return [(target, option.format) for target in decision.weights.values()]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the rank correlation of two series; equal values share their mean rank."""
    if len(first) < 2:
        return 1.0
    a, b = _ranks(np.asarray(first, float)), _ranks(np.asarray(second, float))
    a, b = a - a.mean(), b - b.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / norm if norm else 1.0


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Array = (ends - (counts - 1) / 2)[inverse]
    return ranks
