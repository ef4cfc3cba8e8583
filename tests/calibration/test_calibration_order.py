"""The chance of calibration is written down: another Python or NumPy must not change which rows a seed means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgewright.calibration.order import chance, shuffled


def test_known_answers() -> None:
    assert shuffled(8, 0, "windows") == [0, 7, 5, 4, 3, 6, 1, 2]
    assert shuffled(8, 1, "windows") == [7, 1, 4, 3, 5, 6, 0, 2]
    assert chance(3, "phase", 7) == 8949129387135636660


@given(count=st.integers(0, 60), seed=st.integers(-(1 << 70), 1 << 70))
def test_it_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(shuffled(count, seed, "a")) == list(range(count))


def test_every_place_is_as_likely() -> None:
    """Item 0 of 5 over 2,000 seeds: each place 400 times, within 5 standard deviations."""
    places = [0] * 5
    for seed in range(2000):
        places[shuffled(5, seed, "x").index(0)] += 1
    assert all(abs(count - 400) < 5 * (2000 * 0.2 * 0.8) ** 0.5 for count in places)
    assert shuffled(20, 1, "a") != shuffled(20, 1, "b")
