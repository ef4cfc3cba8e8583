from __future__ import annotations

import math

import pytest

from edgewright.bench.records.statistics import interval, jain, ratio, spread, t95


def test_jain_has_the_known_values() -> None:
    assert jain([1, 1, 1]) == 1.0
    assert jain([4, 2, 1]) == pytest.approx(0.7778, abs=5e-5)
    assert jain([1, 0, 0]) == pytest.approx(1 / 3, rel=1e-5)
    assert jain([1 / 4.65, 1 / 1.91, 1 / 3.82]) == pytest.approx(0.858, abs=5e-4)
    assert jain([]) is None
    assert jain([0, 0]) is None


def test_a_spread_interpolates_its_percentiles() -> None:
    found = spread([float(value) for value in range(1, 101)])
    assert found == {
        "n": 100, "mean": 50.5, "min": 1.0, "p50": 50.5, "p90": 90.1, "p95": 95.05, "p99": 99.01, "max": 100.0,
    }  # fmt: skip
    assert spread([7.0]) == {"n": 1, **dict.fromkeys(("mean", "min", "p50", "p90", "p95", "p99", "max"), 7.0)}
    assert spread([]) is None


def test_quantiles_of_student() -> None:
    assert (t95(1), t95(4), t95(30)) == (12.7062, 2.7764, 2.0423)
    # Published values beyond the table.
    assert t95(31) == pytest.approx(2.0395, abs=5e-5)
    assert t95(60) == pytest.approx(2.0003, abs=5e-5)
    assert t95(120) == pytest.approx(1.9799, abs=5e-5)
    assert t95(10**9) == pytest.approx(1.95996, abs=1e-5)
    with pytest.raises(ValueError, match="degree"):
        t95(0)


def test_an_interval_over_repeats() -> None:
    found = interval([10.0, 12.0, 14.0])
    half = 4.3027 * 2 / math.sqrt(3)
    assert found == {
        "mean": 12.0,
        "low": pytest.approx(12 - half, rel=1e-5),
        "high": pytest.approx(12 + half, rel=1e-5),
        "n": 3,
    }
    assert interval([5.0]) == {"mean": 5.0, "low": None, "high": None, "n": 1}
    assert interval([3.0, 3.0]) == {"mean": 3.0, "low": 3.0, "high": 3.0, "n": 2}


def test_ratios_of_nothing() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is ratio(1.0, None) is ratio(1.0, 0.0) is None
