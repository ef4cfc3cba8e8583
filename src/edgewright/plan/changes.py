"""What would make a model fit: changes tried one after the other, those that cost the least in quality first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from edgewright.plan.estimate import Estimator
from edgewright.plan.model import AS_ASKED, Variant


@dataclass(frozen=True)
class Change:
    """A change, the memory the model takes with it, and whether it then fits; `context` is the one with it."""

    words: str
    total_bytes: int
    fits: bool
    context: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {"change": self.words, "total_bytes": self.total_bytes, "fits": self.fits, "context": self.context}


def changes(estimator: Estimator, capacity: int) -> list[Change]:
    """Return changes that save memory, each by itself, the cheapest first; all together where none is enough."""
    found: list[Change] = []
    together, words = Variant(), dict[str, str]()
    for text, variant in estimator.model.variants():
        total = estimator.memory(variant).total
        found.append(Change(text, total, total <= capacity))
        said = {name: value for name, value in vars(variant).items() if value}
        together = replace(together, **said)
        words |= dict.fromkeys(said, text)  # a narrower recipe takes the place of the one before
    if (context := largest_context(estimator, capacity)) is not None:
        found.append(Change(f"--context {context}", estimator.memory(context=context).total, True, context))
    if words and not any(change.fits for change in found):
        context = largest_context(estimator, capacity, together)
        total = estimator.memory(together, context=context).total
        shorter = [f"--context {context}"] if context not in (None, estimator.context) else []
        found.append(Change(", ".join([*words.values(), *shorter]), total, total <= capacity, context))
    return found


def largest_context(estimator: Estimator, capacity: int, variant: Variant = AS_ASKED) -> int | None:
    """Return the largest context up to the one asked for that fits, None where none does or there is none."""
    low, high = 0, estimator.context or 0
    while low < high:
        middle = (low + high + 1) // 2
        if estimator.memory(variant, context=middle).total <= capacity:
            low = middle
        else:
            high = middle - 1
    return low or None
