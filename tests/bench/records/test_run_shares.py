from __future__ import annotations

import numpy as np
import pytest

from edgewright.bench.records.part import Part
from edgewright.bench.records.shares import service
from edgewright.runtime.scheduling.timeline import Timeline
from run_rows import job, served, step, whole_jobs

COSTS = {"A": 14.6, "B": 71.0, "C": 71.0}


def lines(*weights: str) -> dict[str, Timeline]:
    return {name: Timeline.parse(text) for name, text in zip("ABC", weights, strict=False)}


def test_shares_by_count_and_by_time() -> None:
    """By steps the weights hold exactly; of the time, the dialog with the short steps has 21.5 %."""
    steps = served("ABACABA" * 10, COSTS)
    (found,) = service(Part(steps, whole_jobs(steps), lines("4:0", "2:0", "1:0")))
    assert found.quanta == 70
    np.testing.assert_allclose(found.nominal, [4 / 7, 2 / 7, 1 / 7])
    np.testing.assert_allclose(found.requested("quanta"), [4 / 7, 2 / 7, 1 / 7])
    np.testing.assert_allclose(found.achieved("quanta"), [4 / 7, 2 / 7, 1 / 7])
    np.testing.assert_allclose(found.achieved("time"), [0.215, 0.523, 0.262], atol=5e-4)


def test_three_segments() -> None:
    """Weights 0,4,1, then 1,0,0, then 1,4,1: shares 0/80/20, 100/0/0 and 16.7/66.7/16.7 %."""
    weights = lines("0:0,1:50", "4:0,0:50,4:60", "1:0,0:50,1:60")
    order = "BBCBB" * 10 + "A" * 10 + "BABCBB" * 10
    steps = served(order, dict.fromkeys("ABC", 1.0))
    found = service(Part(steps, whole_jobs(steps), weights))
    wanted = [[0, 0.8, 0.2], [1, 0, 0], [1 / 6, 4 / 6, 1 / 6]]
    for one, shares in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.requested("quanta"), shares)
        np.testing.assert_allclose(one.achieved("quanta"), shares)
    assert [one.quanta for one in found] == [50, 10, 60]
    assert [(one.start_ns, one.end_ns) for one in found] == [
        (0, 50_000_000), (50_000_000, 60_000_000), (60_000_000, None),
    ]  # fmt: skip


def test_only_who_is_active_is_entitled() -> None:
    """B ends after 4 steps: from then on all is A's, and that is what was requested."""
    steps = served("ABABAAAA", {"A": 1.0, "B": 1.0})
    jobs = [job("A", 0, 8), job("B", 0, 4)]
    (found,) = service(Part(steps, jobs, lines("1:0", "1:0")))
    np.testing.assert_allclose(found.entitled["quanta"], [6, 2])
    np.testing.assert_allclose(found.served["quanta"], [6, 2])
    np.testing.assert_allclose(found.requested("quanta"), [0.75, 0.25])
    np.testing.assert_allclose(found.nominal, [0.5, 0.5])


def test_a_pause_between_two_jobs_entitles_to_nothing() -> None:
    steps = [
        step("B", 0, 1), step("A", 1, 2, ready=0),
        *(step("A", i, i + 1, index=i) for i in range(2, 6)),
        step("B", 6, 7, iteration=1), step("A", 7, 8, index=6, ready=6),
    ]  # fmt: skip
    jobs = [job("A", 0, 8), job("B", 0, 1), job("B", 1, 7, ready=6, iteration=1)]
    (found,) = service(Part(steps, jobs, lines("1:0", "1:0")))
    # B was there at the steps that began at 0 and at 6.
    np.testing.assert_allclose(found.entitled["quanta"], [7, 1])


def test_a_job_without_a_row_is_known_by_its_steps() -> None:
    (found,) = service(Part(served("ABAB", {"A": 1.0, "B": 1.0}), [], lines("1:0", "1:0")))
    # The last step of A ended at 3, so only B was there at the last one.
    np.testing.assert_allclose(found.entitled["quanta"], [1.5, 2.5])


def test_time_is_weighed_by_what_steps_cost() -> None:
    steps = served("AAAAAB", {"A": 2.0, "B": 10.0})
    (found,) = service(Part(steps, whole_jobs(steps), lines("1:0", "1:0")))
    np.testing.assert_allclose(found.achieved("time"), [0.5, 0.5])
    np.testing.assert_allclose(found.requested("time"), [0.5, 0.5])
    assert found.served["time"].sum() == pytest.approx(found.entitled["time"].sum())


def test_nothing_ran() -> None:
    (found,) = service(Part([], [], lines("1:0", "2:0")))
    assert found.quanta == 0
    assert found.requested("quanta").tolist() == found.achieved("time").tolist() == [0, 0]


def test_repeats_add_up() -> None:
    weights = lines("1:0", "1:0")
    one, two = (
        service(Part(steps, whole_jobs(steps), weights))[0]
        for steps in (served("ABA", {"A": 1, "B": 1}), served("BAB", {"A": 1, "B": 1}))
    )
    both = one.plus(two)
    assert both.quanta == 6
    np.testing.assert_allclose(both.achieved("quanta"), [0.5, 0.5])
