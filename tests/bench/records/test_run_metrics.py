from __future__ import annotations

import pytest

from edgewright.bench.records.metrics import figures, progress, samples, slowdown
from edgewright.bench.records.part import Part
from edgewright.bench.records.statistics import jain
from edgewright.runtime.scheduling.timeline import Timeline
from run_rows import job, served, step, whole_jobs

ONE = {"A": Timeline.constant(1)}
COSTS = {"A": 14.6, "B": 71.0, "C": 71.0}
FOUR_TWO_ONE = {name: Timeline.constant(weight) for name, weight in zip("ABC", (4, 2, 1), strict=True)}


def test_times_of_one_query_by_hand() -> None:
    steps = [
        step("A", 20, 50, ready=15, phase="prefill", tokens=128, padded=128, emits=False),
        step("A", 60, 80, ready=50, done=81, phase="prefill", tokens=72, padded=128, index=1),
        step("A", 90, 100, ready=81, done=101, held=200, index=2),
        step("A", 130, 140, ready=101, done=143, held=201, index=3),
    ]
    facts = {"prompt_tokens": 200, "generated_tokens": 3, "saturated": 5, "finish_reason": "length"}
    part = Part(steps, [job("A", 10, 144, ready=15, eligible=17, facts=facts)], ONE)
    found = figures(samples(part, "A"))
    assert found["ttft_ms"]["mean"] == 71.0  # 81 - 10
    assert found["ttft_eligible_ms"]["mean"] == 64.0
    assert found["itl_ms"] == {
        "n": 2, "mean": 31.0, "min": 20.0, "p50": 31.0, "p90": 39.8, "p95": 40.9, "p99": 41.78, "max": 42.0,
    }  # fmt: skip
    assert found["tpot_ms"]["mean"] == 31.0
    assert found["decode_tokens_per_s"] == pytest.approx(2 / 0.062, rel=1e-5)
    # 200 rows (256 with the padding) from 20 to 80, of which 50 on the accelerator.
    assert found["prefill_tokens_per_s"] == pytest.approx(200 / 0.060, rel=1e-5)
    assert found["prefill_padded_tokens_per_s"] == pytest.approx(256 / 0.060, rel=1e-5)
    assert found["prefill_accelerator_tokens_per_s"] == pytest.approx(200 / 0.050, rel=1e-5)
    assert found["queue_ms"]["mean"] == (5 + 10 + 9 + 29) / 4
    assert found["host_ms"]["max"] == 3.0
    assert found["step_ms"]["decode"]["mean"] == 10.0
    assert found["job_ms"]["mean"] == 134.0
    assert (found["saturated"], found["prompt_tokens"], found["generated_tokens"]) == (5, 200, 3)
    assert (found["quanta"], found["most_held"], found["jobs"], found["complete"]) == (4, 202, 1, 1)


def test_the_decode_rate_counts_steps_and_not_tokens() -> None:
    """953 ms from the first to the last of 21 tokens: the library says 22.036 tok/s, the steps say 20.986."""
    steps = [step("A", 47.65 * i, 47.65 * i + 40, done=47.65 * i + 40, index=i) for i in range(21)]
    found = figures(samples(Part(steps, [job("A", 0, 1000)], ONE), "A"))
    assert found["decode_tokens_per_s"] == pytest.approx(20.986, abs=5e-4)


def test_one_token_has_no_rate() -> None:
    found = figures(samples(Part([step("A", 0, 5)], [job("A", 0, 5)], ONE), "A"))
    assert found["ttft_ms"]["mean"] == 5.0
    assert found["itl_ms"] is found["tpot_ms"] is found["decode_tokens_per_s"] is found["prefill_tokens_per_s"] is None


def test_queries_are_not_joined() -> None:
    """The time between the last token of one query and the first of the next is no inter-token latency."""
    steps = [step("A", 10 * i, 10 * i + 10, iteration=i // 2, index=i % 2) for i in range(4)]
    jobs = [job("A", 0, 20), job("A", 20, 40, iteration=1)]
    found = figures(samples(Part(steps, jobs, ONE), "A"))
    assert found["itl_ms"]["n"] == 2
    assert found["ttft_ms"]["mean"] == 10.0


def test_what_a_killed_run_knows_of_its_last_query() -> None:
    found = figures(samples(Part([step("A", 0, 10), step("A", 10, 25, index=1)], [], ONE), "A"))
    assert found["ttft_ms"] is None  # nobody wrote down when it was released
    assert found["itl_ms"]["mean"] == 15.0
    assert found["jobs"] == 0


def test_deadlines() -> None:
    jobs = [
        job("A", 0, 90, deadline=100),
        job("A", 100, 210, deadline=200, iteration=1),
        job("A", 200, 250, deadline=300, iteration=2, finish="failed", error="It broke."),
        job("A", 300, 300, iteration=3, finish="stopped"),
    ]
    found = figures(samples(Part([], jobs, ONE), "A"))
    assert (found["deadlines"], found["deadline_misses"]) == (3, 2)
    assert (found["jobs"], found["complete"], found["failed"], found["stopped"]) == (4, 2, 1, 1)
    assert found["error"] == "It broke."
    assert found["job_ms"]["n"] == 2


def test_a_wait_while_paused_is_no_queue() -> None:
    """Ready at 5, paused from 10 to 30; another one's steps began at 6, 15 and 35."""
    lines = {"A": Timeline.parse("1:0,0:10,1:30"), "B": Timeline.constant(1)}
    others = [step("B", 6, 15), step("B", 15, 35, index=1), step("B", 35, 40, index=2)]
    found = figures(samples(Part([*others, step("A", 40, 50, ready=5)], [], lines), "A"))
    assert found["queue_ms"]["mean"] == 15.0
    assert found["paused_ms"] == 20.0
    assert found["worst_gap_quanta"] == 2


def test_the_worst_gap_of_a_smooth_order() -> None:
    part = Part(served("ABACABA" * 3, COSTS), [], FOUR_TWO_ONE)
    assert [samples(part, name).worst_gap for name in "ABC"] == [1, 3, 6]
    burst = Part(served("AAAABBC" * 3, COSTS), [], FOUR_TWO_ONE)
    assert [samples(burst, name).worst_gap for name in "ABC"] == [3, 5, 6]


def test_rates_and_slowdowns_of_shares_by_count() -> None:
    """Weights 4, 2, 1 by steps that cost 14.6, 71 and 71 ms."""
    steps = served("ABACABA" * 100, COSTS)
    part = Part(steps, whole_jobs(steps), FOUR_TWO_ONE)
    found, slower = {}, {}
    for name in "ABC":
        alone = served(name * 100, COSTS)
        solo = samples(Part(alone, whole_jobs(alone), {name: Timeline.constant(1)}), name)
        found[name] = samples(part, name)
        slower[name] = slowdown(found[name], solo)
    assert [found[name].decode_rate for name in "ABC"] == pytest.approx([14.74, 7.37, 3.68], rel=5e-3)
    assert [slower[name]["itl"] for name in "ABC"] == pytest.approx([4.65, 1.91, 3.82], rel=5e-3)
    assert jain([progress(slower[name]) or 0 for name in "ABC"]) == pytest.approx(0.858, abs=1e-3)


def test_progress_of_what_gives_one_result_a_job() -> None:
    """A policy has no time between tokens: its jobs are compared."""
    alone = samples(Part([step("A", 0, 10)], [job("A", 0, 10)], ONE), "A")
    shared = samples(Part([step("A", 10, 20, ready=0)], [job("A", 0, 25)], ONE), "A")
    slower = slowdown(shared, alone)
    assert slower == {"ttft": 2.0, "itl": None, "total": 2.5}
    assert progress(slower) == 0.4


def test_pooling_repeats() -> None:
    first = samples(Part([step("A", 0, 10), step("A", 10, 20, index=1)], [job("A", 0, 20)], ONE), "A")
    second = samples(Part([step("A", 0, 10), step("A", 30, 40, index=1, ready=10)], [job("A", 0, 40)], ONE), "A")
    first.add(second)
    found = figures(first)
    assert found["itl_ms"]["mean"] == 20.0
    assert found["decode_tokens_per_s"] == pytest.approx(2 / 0.040)
    assert (found["jobs"], found["quanta"]) == (2, 4)
    assert found["step_ms"]["decode"]["n"] == 4
