"""Success rates: their intervals, and the difference of two that were measured on the same episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: The 97.5 % point of the standard normal distribution.
_Z = 1.959963984540054


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson, 1927, https://doi.org/10.1080/01621459.1927.10502953)."""
    if not trials:
        return 0.0, 1.0
    rate, square = successes / trials, _Z**2
    middle = rate + square / (2 * trials)
    width = _Z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials**2))
    low, high = ((middle + sign * width) / (1 + square / trials) for sign in (-1, 1))
    return (low if successes else 0.0), (high if successes < trials else 1.0)


def rate_of(successes: Sequence[bool]) -> dict[str, Any]:
    """Return episodes, successes, the rate and its interval."""
    count, good = len(successes), sum(successes)
    low, high = wilson(good, count)
    return {"episodes": count, "successes": good, "rate": good / count if count else None, "low": low, "high": high}


def paired(first: Sequence[bool], second: Sequence[bool]) -> dict[str, Any]:
    """Return the second rate minus the first, of the same episodes.

    The interval is method 10 of Newcombe (1998, https://doi.org/10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>
    3.0.CO;2-C), Wilson's intervals joined with the correlation of the two; `p_value` is that of McNemar's exact test
    that they are equal: both fit the few episodes of a simulation.
    """
    pairs = list(zip(first, second, strict=True))
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    only_first, only_second = pairs.count((True, False)), pairs.count((False, True))
    low, high = _interval(both, only_second, only_first, neither)
    count = len(pairs)
    return {
        "episodes": count,
        "both": both,
        "only_first": only_first,
        "only_second": only_second,
        "neither": neither,
        "difference": (only_second - only_first) / count if count else None,
        "low": low,
        "high": high,
        "p_value": _mcnemar(only_first, only_second),
    }


def _interval(both: int, only_one: int, only_other: int, neither: int) -> tuple[float, float]:
    """Return the interval of one's rate minus the other's."""
    count = both + only_one + only_other + neither
    if not count:
        return -1.0, 1.0
    one, other = (both + only_one) / count, (both + only_other) / count
    (low_one, high_one), (low_other, high_other) = wilson(both + only_one, count), wilson(both + only_other, count)
    phi = _correlation(both, only_one, only_other, neither)

    def reach(mine: float, theirs: float) -> float:
        return math.sqrt(max(0.0, mine**2 - 2 * phi * mine * theirs + theirs**2))

    difference = one - other
    return (
        difference - reach(one - low_one, high_other - other),
        difference + reach(high_one - one, other - low_other),
    )


def _correlation(both: int, only_one: int, only_other: int, neither: int) -> float:
    """Return the correlation of the two, with Newcombe's correction of a positive one for continuity."""
    margins = (both + only_one) * (only_other + neither) * (both + only_other) * (only_one + neither)
    if not margins:
        return 0.0
    product = float(both * neither - only_one * only_other)
    if product > 0:
        product = max(product - (both + only_one + only_other + neither) / 2, 0.0)
    return product / math.sqrt(margins)


def _mcnemar(only_first: int, only_second: int) -> float:
    """Return the probability of counts at least as unequal, when both were equally likely."""
    count = only_first + only_second
    tail = sum(math.comb(count, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail * 0.5**count)
