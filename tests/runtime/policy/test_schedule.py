"""The times of a denoise loop, and their sines and cosines, against what both projects computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.policy.schedule import FixedSchedule, check_steps, step_size, time_embedding, times
from policy_goldens import POLICY_CASES, golden_tensors, read

CASES = [
    (case, name.split("/")[0])
    for case in POLICY_CASES
    for name in sorted(golden_tensors(case))
    if name.endswith("/times") and "committed" not in name
]


@pytest.mark.parametrize(("case", "scenario"), CASES)
def test_times_are_the_originals_to_the_bit(case: str, scenario: str) -> None:
    wanted = read(case, scenario, "times")
    convention = "float32-sum" if case in ("pi0", "pi05_libero") else "float64-linear"
    got = times(convention, len(wanted))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, wanted)


def test_the_two_projects_differ() -> None:
    """Otherwise the test above could not tell them apart."""
    assert (times("float32-sum", 10) != times("float64-linear", 10)).any()


@pytest.mark.parametrize("case", POLICY_CASES)
def test_embeddings_are_the_originals(case: str) -> None:
    scenario, name = ("two_cameras", "time_embeddings") if case == "smolvla" else ("three_cameras", "time_embedding")
    wanted = read(case, scenario, name)
    got = time_embedding(read(case, scenario, "times").astype(np.float32), wanted.shape[-1])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=6e-8)


def test_embeddings_of_a_time_for_each_action() -> None:
    time = read("pi05", "committed_actions", "times")
    wanted = read("pi05", "committed_actions", "time_embedding")
    np.testing.assert_allclose(time_embedding(time, wanted.shape[-1]), wanted, rtol=0, atol=6e-8)


@given(st.integers(1, 1000), st.sampled_from(["float32-sum", "float64-linear"]))
def test_there_are_as_many_times_as_steps(steps: int, convention: Any) -> None:
    """Rounding may not add or drop one, which a loop that compares floats can't promise."""
    made = times(convention, steps)
    assert made.shape == (steps,)
    assert made[0] == 1.0
    np.testing.assert_allclose(np.diff(made), float(step_size(steps)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(made[-1], 1 / steps, rtol=0, atol=1e-4)


@pytest.mark.parametrize("steps", [0, -1, 1001, 2.0, True, "10", None, np.float32(3)])
def test_numbers_of_steps_that_are_none(steps: Any) -> None:
    with pytest.raises(GenerationError, match="integer from 1 to 1000"):
        check_steps(steps)


def test_numpy_integers_count() -> None:
    assert check_steps(np.int64(7)) == 7


@pytest.mark.parametrize("convention", ["float32-sum", "float64-linear"])
def test_a_fixed_schedule_survives_json(convention: Any) -> None:
    made = FixedSchedule.of(convention, 7)
    assert FixedSchedule.from_json(made.to_json()) == made
    assert made.zero_row == 7
    without = FixedSchedule.of(convention, 7, zero_row=False)
    assert FixedSchedule.from_json(without.to_json()).zero_row is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("steps", 9, "has other times than float32-sum gives for 9 steps"),
        ("steps", 0, "has 0 steps"),
        ("steps", True, "has True steps"),
        ("convention", "float64-linear", "has other times than float64-linear"),
        ("convention", "cosine", "unknown convention 'cosine'"),
        ("times", [1.0] * 10, "has other times"),
        ("zero_row", 3, "has the row 3 for time 0"),
        ("zero_row", 11, "has the row 11 for time 0"),
        ("zero_row", "10", "has the row '10' for time 0"),
        ("extra", 1, "does not have exactly steps"),
    ],
)
def test_a_changed_schedule_is_refused(key: str, value: Any, words: str) -> None:
    data = FixedSchedule.of("float32-sum", 10).to_json()
    with pytest.raises(BundleError, match=words):
        FixedSchedule.from_json({**data, key: value})


def test_a_schedule_of_another_kind_is_refused() -> None:
    with pytest.raises(BundleError, match="does not have exactly"):
        FixedSchedule.from_json([1, 2])
    made = FixedSchedule.of("float32-sum", 10)
    made.require("float32-sum", 10, BundleError)
    with pytest.raises(GenerationError, match="10 steps by float32-sum and can't run 3 by float32-sum"):
        made.require("float32-sum", 3, GenerationError)
    with pytest.raises(BundleError, match="can't run 10 by float64-linear"):
        made.require("float64-linear", 10, BundleError)
