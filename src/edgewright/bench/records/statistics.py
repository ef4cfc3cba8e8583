"""Small statistics: percentiles, Jain's index, and confidence intervals over a few repeats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip
_Z95 = 1.959963984540054


def spread(values: Iterable[float] | Floats) -> dict[str, Any] | None:
    """Return n, mean, min, p50, p90, p95, p99 and max; None of no values. Percentiles are linearly interpolated."""
    data = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.float64)
    if not data.size:
        return None
    p50, p90, p95, p99 = np.percentile(data, (50, 90, 95, 99))
    found = {"mean": data.mean(), "min": data.min(), "p50": p50, "p90": p90, "p95": p95, "p99": p99, "max": data.max()}
    return {"n": int(data.size), **{name: rounded(value) for name, value in found.items()}}


def jain(values: Sequence[float]) -> float | None:
    """Return Jain's index of fairness (sum of x)^2 / (n * sum of x^2): 1 where all are equal, 1/n where one has all.

    None of no values, or of zeros only.
    """
    squares = sum(value * value for value in values)
    return rounded(sum(values) ** 2 / (len(values) * squares)) if squares else None


def t95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t.

    Beyond 30 degrees of freedom it is the Cornish-Fisher expansion around the normal quantile (Abramowitz and Stegun
    26.7.5), good to five digits there.
    """
    if freedom < 1:
        raise ValueError("a t quantile needs a degree of freedom")
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z, n = _Z95, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, low, high and n: the 95 % confidence interval of the mean; without bounds for a single value."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return {"mean": rounded(mean), "low": None, "high": None, "n": 1}
    half = t95(n - 1) * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return {"mean": rounded(mean), "low": rounded(mean - half), "high": rounded(mean + half), "n": n}


def rounded(value: float) -> float:
    """Return a number with the six significant digits that a measured one can have at most."""
    return float(f"{value:.6g}")


def ratio(value: float | None, base: float | None) -> float | None:
    """Return `value / base`, None where one of them is missing or the base is 0."""
    return rounded(value / base) if value is not None and base else None
