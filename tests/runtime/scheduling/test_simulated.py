"""Tasks of a cost model: which steps they ask for, when, and at what cost."""

from __future__ import annotations

import pytest
from scheduling_cases import dialog, simulate

from edgewright.errors import ContextOverflowError, UsageError
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.simulated import DialogCosts, SimulatedDialog, SimulatedPolicy, Stage
from edgewright.runtime.scheduling.timeline import NS_PER_MS
from edgewright.runtime.scheduling.work import StepRecord

COSTS = DialogCosts(prefill_ms=30, decode_ms=10, host_ms=2, chunk=4, context=100)


def test_a_dialog_prefills_in_chunks_and_decodes() -> None:
    task = SimulatedDialog(name="D0", costs=COSTS, prompt_tokens=10, max_tokens=3)
    recorder, outcome, _ = simulate([task], [1])
    seen = [
        (one.phase, one.tokens, one.padded, one.held, one.emits, one.end_ns - one.start_ns) for one in recorder.steps
    ]
    assert seen == [
        ("prefill", 4, 4, 0, False, 30 * NS_PER_MS),
        ("prefill", 4, 4, 4, False, 30 * NS_PER_MS),
        ("prefill", 2, 4, 8, True, 30 * NS_PER_MS),
        ("decode", 1, None, 10, True, 10 * NS_PER_MS),
        ("decode", 1, None, 11, True, 10 * NS_PER_MS),
    ]
    assert [one.done_ns - one.end_ns for one in recorder.steps] == [2 * NS_PER_MS] * 5
    assert outcome.end_ns == (3 * 32 + 2 * 12) * NS_PER_MS
    (job,) = recorder.jobs
    assert job.facts == {"prompt_tokens": 10, "generated_tokens": 3, "finish_reason": "length", "saturated": 0}
    assert (job.finish, job.ready_ns, job.end_ns) == ("complete", 0, outcome.end_ns)


def test_iterations_begin_anew_or_go_on() -> None:
    def held(reset: str) -> list[int]:
        task = SimulatedDialog(
            name="D0", costs=COSTS, prompt_tokens=4, max_tokens=2, rhythm=Rhythm(iterations=3), reset=reset
        )  # type: ignore[arg-type]
        return [step.held for step in simulate([task], [1])[0].steps]

    assert held("iteration") == [0, 4, 0, 4, 0, 4]
    # The last token before was not fed, so later prompts begin with it: 5 tokens, which are two chunks of 4.
    assert held("never") == [0, 4, 5, 9, 10, 11, 15, 16]


def test_a_context_overflows() -> None:
    """As with a real one: the answer ends where the context is full, and what does not fit is a prompt."""
    task = SimulatedDialog(
        name="D0", costs=COSTS, prompt_tokens=98, max_tokens=9, rhythm=Rhythm(iterations=3), reset="never"
    )
    recorder, outcome, _ = simulate([task], [1])
    assert [step.phase for step in recorder.steps].count("decode") == 2
    first, second = recorder.jobs
    assert (first.finish, first.facts["generated_tokens"], first.facts["finish_reason"]) == ("complete", 3, "length")
    assert (second.finish, second.facts["prompt_tokens"], second.facts["generated_tokens"]) == ("failed", 99, 0)
    assert second.error == "D0 has a prompt of 99 tokens, and 0 of its context's 100 are left."
    assert isinstance(outcome.failures[0], ContextOverflowError)


def test_releases() -> None:
    def released(rhythm: Rhythm) -> list[tuple[float, float | None, float]]:
        recorder, _, _ = simulate([dialog("D0", 10, max_tokens=2, rhythm=rhythm)], [1])
        ms = [(job.release_ns, job.deadline_ns, job.end_ns) for job in recorder.jobs]
        return [
            (begin / NS_PER_MS, None if due is None else due / NS_PER_MS, end / NS_PER_MS) for begin, due, end in ms
        ]

    assert released(Rhythm(iterations=2)) == [(0, None, 20), (20, None, 40)]
    assert released(Rhythm(iterations=2, start_ms=5, think_ms=7)) == [(5, None, 25), (32, None, 52)]
    assert released(Rhythm(iterations=2, period_ms=50)) == [(0, None, 20), (50, None, 70)]
    assert released(Rhythm(iterations=3, period_ms=15, deadline_ms=12)) == [(0, 12, 20), (15, 27, 40), (30, 42, 60)]


def test_a_policy_runs_its_stages() -> None:
    stages = [Stage("vision", 7, tokens=2), Stage("prefix", 15), Stage("denoise", 0.4, 3)]
    recorder, outcome, _ = simulate([SimulatedPolicy(name="P", stages=stages, rhythm=Rhythm(iterations=2))], [1])
    seen = [(step.iteration, step.phase, step.tokens, step.emits) for step in recorder.steps]
    assert seen[:5] == [
        (0, "vision", 2, False),
        (0, "prefix", 1, False),
        (0, "denoise", 1, False),
        (0, "denoise", 1, False),
        (0, "denoise", 1, True),
    ]
    assert [iteration for iteration, *_ in seen] == [0] * 5 + [1] * 5
    assert outcome.end_ns == 2 * (7 + 15 + 3 * 0.4) * NS_PER_MS


def test_jitter_is_seeded_and_bounded() -> None:
    def costs(seed: int) -> list[int]:
        task = SimulatedDialog(
            name="D0", costs=DialogCosts(prefill_ms=10, decode_ms=10, jitter=0.2), max_tokens=200, seed=seed
        )
        return [step.end_ns - step.start_ns for step in simulate([task], [1])[0].steps]

    def mean(seed: int) -> float:
        return sum(costs(seed)) / 200

    assert costs(1) == costs(1) != costs(2)
    assert 8 * NS_PER_MS <= min(costs(1)) < 8.2 * NS_PER_MS
    assert 11.8 * NS_PER_MS < max(costs(1)) <= 12 * NS_PER_MS
    assert abs(mean(1) - 10 * NS_PER_MS) < 0.3 * NS_PER_MS


def test_the_smallest_cost_lets_time_go_on() -> None:
    costs = DialogCosts(prefill_ms=1e-9, decode_ms=1e-9, context=1 << 40)
    recorder, outcome, _ = simulate([SimulatedDialog(name="D0", costs=costs, max_tokens=20_000)], [1])
    assert (len(recorder.steps), outcome.end_ns) == (20_000, 20_000)


def test_work_is_called_with_what_it_costs() -> None:
    """In real time somebody has to occupy the device and the host."""
    called: list[int] = []
    task = SimulatedDialog(name="D0", costs=COSTS, prompt_tokens=4, max_tokens=2, work=called.append)
    steps: list[StepRecord] = simulate([task], [1])[0].steps
    assert len(steps) == 2
    assert called == [30 * NS_PER_MS, 2 * NS_PER_MS, 10 * NS_PER_MS, 2 * NS_PER_MS]


def test_bad_values() -> None:
    for changes in ({"prefill_ms": 0}, {"decode_ms": -1}, {"decode_ms": float("nan")}, {"jitter": 1}, {"host_ms": -1}):
        with pytest.raises(UsageError):
            DialogCosts(**{"prefill_ms": 1, "decode_ms": 1, **changes})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="chunk and a context"):
        DialogCosts(prefill_ms=1, decode_ms=1, chunk=0)
    with pytest.raises(UsageError, match="at least 1 prompt token"):
        SimulatedDialog(name="D0", costs=COSTS, prompt_tokens=0)
    with pytest.raises(UsageError, match="needs stages"):
        SimulatedPolicy(name="P", stages=[])
    with pytest.raises(UsageError, match="more than 0 ms"):
        SimulatedPolicy(name="P", stages=[Stage("vision", 0)])
