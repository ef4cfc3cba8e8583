"""Figures of a query: the worked numbers of the library's definitions, and the same without their biases."""

from __future__ import annotations

import pytest

from edgewright.errors import GenieError
from edgewright.genie.kpis import genie_kpis, genie_rate, measured_kpis, recomputed


def times(count: int, first_us: int, duration_us: int) -> list[int]:
    """Token times in ns: the first after `first_us`, the last `duration_us` later."""
    steps = max(count - 1, 1)
    return [(first_us + duration_us * index // steps) * 1000 for index in range(count)]


def test_integer_division_comes_first() -> None:
    assert genie_rate(953_000, 21) == pytest.approx(1e6 / 45_380)
    assert round(genie_rate(953_000, 21), 3) == 22.036


def test_less_than_a_microsecond_a_token_is_said_to_be_one_token_a_second() -> None:
    assert genie_rate(20, 21) == 1.0
    assert genie_rate(21, 21) == 1e6
    assert genie_rate(5, 0) == 0.0


def test_21_tokens_in_953_ms() -> None:
    tokens = times(21, 100_000, 953_000)
    library, measured = genie_kpis(273, 0, tokens), measured_kpis(273, 0, tokens)
    assert library["num-generated-tokens"] == (21, "") == measured["num-generated-tokens"]
    assert library["token-generation-time"] == (953_000, "us") == measured["token-generation-time"]
    assert round(library["token-generation-rate"][0], 3) == 22.036
    assert round(measured["token-generation-rate"][0], 3) == 20.986
    assert library["time-to-first-token"] == (100_000, "us")
    assert library["prompt-processing-rate"] == (1e6 / 366, "toks/sec")  # 100,000 // 273
    assert measured["prompt-processing-rate"][0] == pytest.approx(2730)


@pytest.mark.parametrize(("count", "factor"), [(2, 2.0), (8, 1.143), (64, 1.0159)])
def test_the_library_counts_a_token_too_many(count: int, factor: float) -> None:
    tokens = times(count, 0, count * (count - 1) * 10_000)
    library = genie_kpis(1, 0, tokens)["token-generation-rate"][0]
    measured = measured_kpis(1, 0, tokens)["token-generation-rate"][0]
    assert library / measured == pytest.approx(factor, rel=1e-3)


def test_the_time_of_the_last_callback_is_in_the_library_s_time_only() -> None:
    tokens = times(3, 1000, 2000)
    assert genie_kpis(1, 0, tokens, end_ns=8_000_000)["token-generation-time"] == (7000, "us")
    assert genie_kpis(1, 0, tokens, end_ns=0)["token-generation-time"] == (2000, "us")
    assert measured_kpis(1, 0, tokens)["token-generation-time"] == (2000, "us")


def test_one_token_has_no_rate_and_none_has_no_times() -> None:
    one = measured_kpis(10, 500, [2_500])
    assert "token-generation-rate" not in one
    assert one["time-to-first-token"] == (2.0, "us")
    assert measured_kpis(10, 0, []) == {"num-prompt-tokens": (10, ""), "num-generated-tokens": (0, "")}
    assert genie_kpis(10, 0, []) == measured_kpis(10, 0, [])


def test_recomputed_from_the_library_s_own_figures() -> None:
    tokens = times(21, 100_000, 953_000)
    again = recomputed(genie_kpis(273, 0, tokens))
    for name, (value, unit) in measured_kpis(273, 0, tokens).items():
        assert again[name] == (pytest.approx(value), unit)
    assert recomputed({"num-generated-tokens": (5, "")}) == {"num-generated-tokens": (5, "")}
    assert recomputed({}) == {}


def test_times_that_go_back_are_refused() -> None:
    with pytest.raises(GenieError, match="go back"):
        genie_kpis(1, 10, [5])
    with pytest.raises(GenieError, match="go back"):
        measured_kpis(1, 0, [5, 4])
