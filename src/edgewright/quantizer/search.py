"""The choice of a format for every decision that meets a budget at the least loss, given what each costs and loses."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewright.errors import UsageError
from edgewright.formats import Format

_BUDGET = re.compile(r"(size|latency|kl)=([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)(kb|mb|gb|us|ms|s|b|)", re.IGNORECASE)
_UNITS = {"b": 1.0, "": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_ALLOWED = {"size": ("b", "", "kb", "mb", "gb"), "latency": ("us", "ms", "s"), "kl": ("",)}


@dataclass(frozen=True)
class Budget:
    """What must hold: `size` in bytes of all weights, `latency` in seconds of a decode step, or `kl` in nats."""

    kind: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read `size=90MB`, `latency=12ms` or `kl=0.05`; raises UsageError."""
        found = _BUDGET.fullmatch(text.strip())
        kind, unit = (found.group(1).lower(), found.group(3).lower()) if found else ("", "")
        if found is None or unit not in _ALLOWED[kind] or not 0 < float(found.group(2)) < math.inf:
            raise UsageError(f"{text!r} is no budget: write size=90MB, latency=12ms or kl=0.05.")
        return cls(kind, float(found.group(2)) * _UNITS[unit])

    def spelled(self, value: float) -> str:
        """Return a value of this budget's kind as a text."""
        if self.kind == "kl":
            return f"KL {value:.4g}"
        if self.kind == "latency":
            return f"{value * 1e3:.4g} ms"
        return f"{value / 1e6:.4g} MB" if value >= 1e6 else f"{value / 1e3:.4g} kB"


@dataclass(frozen=True)
class Option:
    """One format of a choice: what it costs (bytes or seconds) and what it loses (KL)."""

    format: Format
    cost: float
    kl: float


#: Options of each decision by its name; a decision may stand for several modules that share a weight.
Decisions = Mapping[str, Sequence[Option]]


def assign(decisions: Decisions, budget: Budget, fixed_cost: float = 0.0) -> dict[str, Option]:
    """Choose one option of every decision.

    For a cost budget the sum of KL is smallest among the convex mixes that fit, for a KL budget the cost is; both walk
    up the lower convex hulls by gain per cost, then fill what is left. Raises UsageError when even the cheapest choice
    costs too much, or the best loses too much.
    """
    hulls = {name: _hull(options) for name, options in decisions.items()}
    chosen = {name: hull[0] for name, hull in hulls.items()}
    steps = sorted(
        (
            (_slope(low, high), name, rank)
            for name, hull in hulls.items()
            for rank, (low, high) in enumerate(itertools.pairwise(hull), 1)
        ),
        key=lambda step: (-step[0], step[1], step[2]),
    )
    if budget.kind == "kl":
        return _within_loss(hulls, chosen, steps, budget)
    cost = total_cost(chosen, fixed_cost)
    if cost > budget.limit:
        raise UsageError(
            f"The budget can't be met: the cheapest formats take {budget.spelled(cost)} and the budget is "
            f"{budget.spelled(budget.limit)}: allow more, or coarser formats."
        )
    blocked: set[str] = set()
    for _, name, rank in steps:
        better = hulls[name][rank]
        more = better.cost - chosen[name].cost
        if name in blocked or cost + more > budget.limit:
            blocked.add(name)  # hulls are walked in order; a cheaper step of another decision may still fit
            continue
        cost, chosen[name] = cost + more, better
    return chosen


def _within_loss(
    hulls: Mapping[str, Sequence[Option]],
    chosen: dict[str, Option],
    steps: Sequence[tuple[float, str, int]],
    budget: Budget,
) -> dict[str, Option]:
    """Walk up until the loss is allowed, then take back what was dear and isn't needed."""
    taken = []
    for _, name, rank in steps:
        if total_kl(chosen) <= budget.limit:
            break
        chosen[name] = hulls[name][rank]
        taken.append((name, rank))
    if total_kl(chosen) > budget.limit:
        raise UsageError(
            f"The budget can't be met: the finest formats lose a KL of about {total_kl(chosen):.3g} and the budget is "
            f"{budget.limit:g}: allow more, or finer formats."
        )
    kept: set[str] = set()
    for name, rank in sorted(taken, key=lambda step: hulls[step[0]][step[1] - 1].cost - hulls[step[0]][step[1]].cost):
        before = {**chosen, name: hulls[name][rank - 1]}
        if name in kept or chosen[name] != hulls[name][rank] or total_kl(before) > budget.limit:
            kept.add(name)
            continue
        chosen = before
    return chosen


def total_cost(chosen: Mapping[str, Option], fixed_cost: float = 0.0) -> float:
    """Return the cost of a choice."""
    return fixed_cost + math.fsum(option.cost for option in chosen.values())


def total_kl(chosen: Mapping[str, Option]) -> float:
    """Return the KL of a choice, as far as losses add up."""
    return math.fsum(option.kl for option in chosen.values())


def _hull(options: Sequence[Option]) -> list[Option]:
    """Return the options on the lower convex hull of (cost, KL), cheapest first."""
    best: list[Option] = []
    for option in sorted(options, key=lambda o: (o.cost, o.kl)):
        if best and option.kl >= best[-1].kl:
            continue  # costs more and loses no less
        while len(best) > 1 and _slope(best[-2], best[-1]) <= _slope(best[-1], option):
            best.pop()
        best.append(option)
    return best


def _slope(low: Option, high: Option) -> float:
    """Return the gain in KL per cost."""
    return (low.kl - high.kl) / max(high.cost - low.cost, 1e-30)
