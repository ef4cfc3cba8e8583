"""Runs in virtual time: shares, segments, periods, failures, and that nothing ever stands still."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import (
    THREE_SEGMENTS,
    Script,
    clients_of,
    dialog,
    order,
    overlaps,
    quanta,
    simulate,
)

from edgewright.errors import SchedulingError, UsageError
from edgewright.runtime.scheduling import virtual
from edgewright.runtime.scheduling.course import Outcome, Recorder
from edgewright.runtime.scheduling.disciplines import DisciplineName
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.simulated import DialogCosts, SimulatedDialog, SimulatedPolicy, Stage
from edgewright.runtime.scheduling.timeline import NS_PER_MS, Timeline, segments
from edgewright.runtime.scheduling.virtual import run_virtual
from edgewright.runtime.scheduling.work import JobRecord, StepRecord, Task

ALL: tuple[str, ...] = DisciplineName.__args__  # type: ignore[attr-defined]
GATED = [name for name in ALL if name != "free"]


@pytest.mark.parametrize(
    ("discipline", "costs", "rates", "parts"),
    [
        ("weighted", (20, 20, 20), (28.57, 14.29, 7.14), (57.1, 28.6, 14.3)),
        ("weighted", (14.6, 71, 71), (14.74, 7.37, 3.68), (21.5, 52.3, 26.2)),
        ("fair-time", (14.6, 71, 71), (39.14, 4.02, 2.01), (57.1, 28.6, 14.3)),
    ],
)
def test_counting_steps_is_not_sharing_time(
    discipline: str, costs: tuple[float, ...], rates: tuple[float, ...], parts: tuple[float, ...]
) -> None:
    """Weights 4, 2, 1: tokens a second, and per cent of the accelerator's time, over five minutes."""
    seconds = 300
    tasks = [dialog(f"D{index}", cost) for index, cost in enumerate(costs)]
    recorder, outcome, _ = simulate(tasks, (4, 2, 1), discipline, until_ms=seconds * 1000)
    done = Counter(step.task for step in recorder.steps)
    spent = Counter[int]()
    for step in recorder.steps:
        spent[step.task] += step.end_ns - step.start_ns
    assert [done[index] / seconds for index in range(3)] == pytest.approx(rates, abs=0.02)
    assert [100 * spent[index] / outcome.end_ns for index in range(3)] == pytest.approx(parts, abs=0.06)
    assert outcome.stopped == "until"


def test_the_slowdowns_of_sharing_by_count() -> None:
    """Against their own solo rates the three dialogs lose 4.65, 1.91 and 3.82 times."""
    costs, seconds = (14.6, 71, 71), 120
    shared, _, _ = simulate([dialog("D", cost) for cost in costs], (4, 2, 1), until_ms=seconds * 1000)
    found = []
    for index, cost in enumerate(costs):
        solo, _, _ = simulate([dialog("D", cost)], (1,), until_ms=seconds * 1000)
        found.append(len(solo.steps) / quanta(shared.steps)[index])
    assert found == pytest.approx((4.65, 1.91, 3.82), abs=0.03)


def test_a_long_prefill_beside_decoding() -> None:
    """A prefill chunk can't be cut, but two never come between two tokens of the favoured dialog."""
    costs = DialogCosts(prefill_ms=180, decode_ms=71)
    vlms = [
        SimulatedDialog(name=name, costs=costs, prompt_tokens=900, max_tokens=1000, rhythm=Rhythm(start_ms=1000))
        for name in ("V1", "V2")
    ]
    for discipline in ("weighted", "fair-time"):
        recorder, _, _ = simulate([dialog("D0", 14.6), *vlms], (4, 2, 1), discipline, until_ms=10_000)
        ends = [step.end_ns / NS_PER_MS for step in recorder.steps if step.task == 0]
        gaps = sorted(after - before for before, after in pairwise(ends))
        assert gaps[len(gaps) // 2] == pytest.approx(14.6)
        assert gaps[-1] == pytest.approx(14.6 + 180)


def test_the_requirements_timeline() -> None:
    """Its three segments have the shares that they ask for, in quanta, within one."""
    tasks = [dialog(f"D{index}", 10) for index in range(3)]
    recorder, outcome, _ = simulate(tasks, THREE_SEGMENTS, until_ms=30_000)
    assert quanta(recorder.steps, 0, 5000) == {1: 400, 2: 100}
    assert quanta(recorder.steps, 5000, 20_000) == {0: 1500}
    last = quanta(recorder.steps, 20_000)
    assert [last[0], last[1], last[2]] == pytest.approx([1000 / 6, 4000 / 6, 1000 / 6], abs=1)
    assert outcome.busy_ns == outcome.end_ns == 30_000 * NS_PER_MS
    weights = {(step.task, step.weight) for step in recorder.steps}
    assert weights == {(0, 1.0), (1, 4.0), (2, 1.0)}
    (first,) = [job for job in recorder.jobs if job.task == 0]
    assert (first.ready_ns, first.eligible_ns) == (0, 5000 * NS_PER_MS)


@pytest.mark.parametrize("name", ["weighted", "fair-time", "round-robin"])
def test_with_host_work_the_hold_keeps_the_shares(name: str) -> None:
    """1 ms of host work after each step: with a hold of 2 ms the favoured dialog gets its share, without it half."""
    tasks = [dialog(f"D{index}", 10, host_ms=1) for index in range(3)]
    held, outcome, _ = simulate(tasks, (8, 1, 1), name, until_ms=10_000)
    expected = 0.8 if name != "round-robin" else 1 / 3
    assert quanta(held.steps)[0] / len(held.steps) == pytest.approx(expected, abs=0.003)
    assert outcome.lost_turns == 0
    assert outcome.end_ns == pytest.approx(outcome.busy_ns + outcome.held_ns, abs=2 * NS_PER_MS)
    kept, outcome, _ = simulate(tasks, (8, 1, 1), name, until_ms=10_000, hold_ms=0)
    assert outcome.held_ns == 0
    assert outcome.busy_ns == outcome.end_ns
    assert quanta(kept.steps)[0] / len(kept.steps) <= 0.501


class Counting:
    """An observer that counts each task's steps."""

    def __init__(self) -> None:
        self.steps = Counter[int]()

    def step(self, record: StepRecord) -> None:
        self.steps[record.task] += 1

    def job(self, record: JobRecord) -> None:
        assert record.finish == "stopped"


def test_a_sixteen_dialog_hour() -> None:
    """An hour of 16 dialogs, 15 ms a step: about 240,000 quanta, in shares that are right to one quantum."""
    weights = list(range(1, 17))
    tasks = [dialog(f"D{index}", 15) for index in range(16)]
    counter = Counting()
    scheduler = Scheduler(clients_of(*weights))
    outcome = run_virtual(tasks, scheduler, counter, until_ns=3_600_000 * NS_PER_MS)
    done = counter.steps
    assert sum(done.values()) == 240_000
    assert outcome.busy_ns == 240_000 * 15 * NS_PER_MS
    for index, weight in enumerate(weights):
        assert abs(done[index] - 240_000 * weight / sum(weights)) < 1


PI05 = (Stage("vision", 7), Stage("prefix", 15), Stage("denoise", 0.4, 10))


def policy_beside_dialogs(discipline: str) -> Recorder:
    """A policy of 26 ms a frame with a period of 100 ms beside two dialogs, weights 2 and 1, for a minute."""
    policy = SimulatedPolicy(
        name="P", stages=PI05, host_ms=0.1, rhythm=Rhythm(iterations=600, period_ms=100, deadline_ms=100)
    )
    tasks: list[Task] = [policy, dialog("D0", 15), dialog("D1", 20)]
    return simulate(tasks, (1, 2, 1), discipline, until_ms=60_000)[0]


def test_deadlines_keep_a_policys_period_and_the_rest_is_shared() -> None:
    recorder = policy_beside_dialogs("deadline")
    frames = [job for job in recorder.jobs if job.task == 0]
    assert len(frames) == 600
    assert all(job.deadline_ns is not None and job.end_ns <= job.deadline_ns for job in frames)
    # A frame waits for the step that runs, and its steps follow one another, held for through 0.1 ms of host work.
    assert max(job.end_ns - job.release_ns for job in frames) <= (20 + 26 + 12 * 0.1) * NS_PER_MS
    done = quanta(recorder.steps)
    assert done[0] == 600 * 12
    assert done[1] == pytest.approx(2 * done[2], abs=2)
    # 26 ms of 100 are the policy's; the dialogs take 15 + 15 + 20 ms for three steps of what is left.
    assert done[2] * 50 == pytest.approx(60_000 * 0.74, rel=0.03)


def test_sharing_by_weight_alone_misses_the_deadlines() -> None:
    frames = [job for job in policy_beside_dialogs("weighted").jobs if job.task == 0]
    assert all(job.deadline_ns is not None and job.end_ns > job.deadline_ns for job in frames if job.iteration > 1)


def test_earliest_deadlines_keep_any_feasible_set() -> None:
    """Three periodic tasks, 85 per cent together, and one without a deadline that takes what is left."""
    tasks: list[Task] = [
        SimulatedPolicy(
            name=name,
            stages=[Stage("denoise", 1, times)],
            rhythm=Rhythm(iterations=None, period_ms=period, deadline_ms=period),
        )
        for name, times, period in (("A", 5, 20), ("B", 10, 50), ("C", 40, 100))
    ]
    recorder, outcome, _ = simulate([*tasks, dialog("D", 1)], (1, 1, 1, 1), "deadline", until_ms=10_000)
    late = [
        job for job in recorder.jobs if job.finish == "complete" and job.deadline_ns and job.end_ns > job.deadline_ns
    ]
    assert not late
    assert Counter(job.task for job in recorder.jobs if job.finish == "complete") == {0: 500, 1: 200, 2: 100}
    assert outcome.busy_ns == outcome.end_ns
    assert quanta(recorder.steps)[3] == pytest.approx(1500, abs=20)


def test_priority_is_strict() -> None:
    """The lower priority runs only while the higher one thinks."""
    high = dialog("H", 10, max_tokens=5, rhythm=Rhythm(iterations=3, think_ms=30))
    recorder, _, _ = simulate([dialog("L", 10), high], (9, 1), "priority", priorities=(1, 2), until_ms=250)
    assert order(recorder.steps) == "BBBBB" + "AAA" + "BBBBB" + "AAA" + "BBBBB" + "A" * 4


def test_fifo_serves_in_the_order_of_asking() -> None:
    tasks = [
        dialog(f"D{index}", cost, max_tokens=40, host_ms=host)
        for index, (cost, host) in enumerate([(5, 9), (7, 0), (3, 31)])
    ]
    recorder, _, _ = simulate(tasks, (1, 1, 1), "fifo")
    asked = [step.ready_ns for step in sorted(recorder.steps, key=lambda step: step.start_ns)]
    assert asked == sorted(asked)


def test_without_a_gate_the_device_is_shared_by_all_that_run() -> None:
    """Two quanta of 10 and 30 ms at once: 20 ms until the first has its 10, and its next one joins in."""
    tasks = [dialog("A", 10, max_tokens=2), dialog("B", 30, max_tokens=1)]
    recorder, outcome, _ = simulate(tasks, (1, 1), "free")
    seen = [(step.task, step.start_ns // NS_PER_MS, step.end_ns // NS_PER_MS) for step in recorder.steps]
    assert seen == [(0, 0, 20), (0, 20, 40), (1, 0, 50)]
    assert (outcome.busy_ns, outcome.end_ns) == (50 * NS_PER_MS, 50 * NS_PER_MS)
    paused, _, _ = simulate(tasks, ("0:0,1:100", 1), "free")
    assert min(step.start_ns for step in paused.steps if step.task == 0) == 100 * NS_PER_MS


def test_a_pause_is_slept_through() -> None:
    recorder, outcome, _ = simulate([dialog("A", 10, max_tokens=4)], ["1:0,0:15,1:1000"])
    assert [step.start_ns // NS_PER_MS for step in recorder.steps] == [0, 10, 1000, 1010]
    assert (outcome.busy_ns, outcome.held_ns) == (40 * NS_PER_MS, 0)


def test_tasks_that_can_never_run_fail_by_name() -> None:
    recorder, outcome, _ = simulate([dialog("A", 10, max_tokens=4), dialog("B", 10, max_tokens=4)], [0, "1:0,0:25"])
    assert isinstance(outcome.failures[0], SchedulingError)
    assert outcome.failures.keys() == {0, 1}
    assert order(recorder.steps) == "BBB", "what ran before is kept"
    assert [(job.task, job.finish, job.eligible_ns) for job in recorder.jobs] == [(0, "failed", None), (1, "failed", 0)]
    assert all(job.error is not None and "stays so" in job.error for job in recorder.jobs)


def broken() -> None:
    raise ValueError("the device is on fire\nsecond line")


def test_a_failing_task_ends_alone_or_stops_all() -> None:
    good, bad = Script("A", [lambda: None] * 5), Script("B", [lambda: None, broken, lambda: None])

    def outcome(on_error: str) -> tuple[Recorder, Outcome]:
        recorder = Recorder()
        return recorder, run_virtual(
            [good, bad],
            Scheduler(clients_of(1, 1)),
            recorder,
            on_error=on_error,  # type: ignore[arg-type]
        )

    recorder, found = outcome("isolate")
    assert order(recorder.steps) == "ABAAAA"
    assert [(job.task, job.finish, job.error) for job in recorder.jobs] == [
        (1, "failed", "ValueError: the device is on fire"),
        (0, "complete", None),
    ]
    assert found.stopped is None
    assert isinstance(found.failures[1], ValueError)
    assert good.closed == bad.closed == 1
    recorder, found = outcome("fail-fast")
    assert order(recorder.steps) == "ABA"
    assert [(job.task, job.finish) for job in recorder.jobs] == [(1, "failed"), (0, "stopped")]
    assert found.stopped == "failure"


@pytest.mark.parametrize("place", ["between", "facts", "jobs"])
def test_host_work_may_fail_too(place: str) -> None:
    def facts() -> dict[str, object]:
        broken()
        return {}

    class Refuses(Script):
        def jobs(self, now: object) -> object:  # type: ignore[override]
            raise ValueError("no jobs")

    task = {
        "between": Script("B", [lambda: None] * 3, [lambda: None], between=broken),
        "facts": Script("B", [lambda: None], [lambda: None], facts=facts),
        "jobs": Refuses("B", [lambda: None]),
    }[place]
    recorder = Recorder()
    outcome = run_virtual([Script("A", [lambda: None] * 2), task], Scheduler(clients_of(1, 1)), recorder)
    assert outcome.failures.keys() == {1}
    jobs = [(job.finish, job.error) for job in recorder.jobs if job.task == 1]
    assert jobs == ([] if place == "jobs" else [("failed", "ValueError: the device is on fire")])
    assert [job.finish for job in recorder.jobs if job.task == 0] == ["complete"]
    assert quanta(recorder.steps) == ({0: 2} if place == "jobs" else {0: 2, 1: 1})


def test_what_the_observer_raises_comes_out() -> None:
    class Full(Recorder):
        def step(self, record: StepRecord) -> None:
            raise OSError("no space left")

    task = Script("A", [lambda: None] * 3)
    with pytest.raises(OSError, match="no space left"):
        run_virtual([task], Scheduler(clients_of(1)), Full())
    assert task.closed == 1


def test_until_stops_what_has_begun() -> None:
    recorder, outcome, _ = simulate([dialog("A", 10), dialog("B", 10, max_tokens=1)], (1, 1), until_ms=35)
    assert order(recorder.steps) == "ABA"
    assert [(job.task, job.finish, job.end_ns) for job in recorder.jobs] == [
        (1, "complete", 20 * NS_PER_MS),
        (0, "stopped", 35 * NS_PER_MS),
    ]
    assert (outcome.stopped, outcome.end_ns, outcome.busy_ns) == ("until", 35 * NS_PER_MS, 35 * NS_PER_MS)


def test_jobs_without_work() -> None:
    recorder, outcome, _ = simulate([Script("A", [], [lambda: None], [])], [1])
    assert [(job.iteration, job.finish, job.ready_ns) for job in recorder.jobs] == [
        (0, "complete", None),
        (1, "complete", 0),
        (2, "complete", None),
    ]
    assert outcome.end_ns == NS_PER_MS


def test_misuse_is_named() -> None:
    with pytest.raises(UsageError, match="1 tasks don't fit a scheduler of 2 clients"):
        run_virtual([dialog("A", 1)], Scheduler(clients_of(1, 1)), Recorder())
    _, outcome, _ = simulate([Script("A", [lambda: None], cost_ns=None)], [1])
    assert "does not say what it costs: only simulated tasks" in str(outcome.failures[0])


def test_a_scheduler_is_good_for_one_run() -> None:
    scheduler = Scheduler(clients_of(1))
    run_virtual([Script("A", [lambda: None])], scheduler, Recorder())
    with pytest.raises(UsageError, match="good for one run"):
        run_virtual([Script("A", [lambda: None])], scheduler, Recorder())


def test_time_that_does_not_go_on_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_STILL", 50)
    recorder = Recorder()
    with pytest.raises(SchedulingError, match="Time does not go on"):
        run_virtual([Script("A", *[[]] * 200)], Scheduler(clients_of(1)), recorder)
    assert 20 < len(recorder.jobs) <= 60


def test_ctrl_c_returns_what_there_is() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    recorder = Recorder()
    task = Script("A", [lambda: None, lambda: None, interrupt, lambda: None])
    outcome = run_virtual([task, Script("B", [lambda: None] * 9)], Scheduler(clients_of(1, 1)), recorder)
    assert outcome.stopped == "interrupt"
    assert order(recorder.steps) == "ABAB"
    assert [(job.task, job.finish) for job in recorder.jobs] == [(0, "stopped"), (1, "stopped")]
    assert task.closed == 1


def random_tasks(dice: random.Random) -> list[Task]:
    tasks: list[Task] = []
    for index in range(dice.randint(1, 5)):
        rhythm = Rhythm(
            iterations=dice.randint(1, 4),
            start_ms=dice.choice([0, 0, 13, 170]),
            **dice.choice([{}, {"think_ms": 1}, {"think_ms": 40}, {"period_ms": 60}]),  # type: ignore[arg-type]
            deadline_ms=dice.choice([None, 30]),
        )
        tasks.append(
            dialog(
                f"D{index}",
                dice.choice([0.5, 5, 14.6, 71]),
                prefill_ms=dice.choice([None, 180]),
                prompt_tokens=dice.choice([1, 300]),
                max_tokens=dice.randint(1, 12),
                host_ms=dice.choice([0, 0, 0.3, 1.9, 30]),
                jitter=dice.choice([0, 0.3]),
                context=dice.choice([1 << 40, 305]),
                rhythm=rhythm,
            )
        )
    return tasks


@settings(max_examples=80)
@given(st.integers(0, 10**9), st.sampled_from(ALL), st.sampled_from([0, 2]))
def test_nothing_ever_stands_still(seed: int, discipline: str, hold_ms: float) -> None:
    """Any tasks, weights and pauses: every job is recorded once, no quanta overlap, and no time is lost unexplained."""
    dice = random.Random(seed)
    tasks = random_tasks(dice)
    lines = ["4:0", "1:0", "0.5:0,3:100", "0:0,2:150", "2:0,0:50,2:400", "1:0,0:80"]
    weights = [dice.choice(lines) for _ in tasks]
    priorities = [dice.choice([1, 2]) for _ in tasks]
    recorder, outcome, _ = simulate(tasks, weights, discipline, hold_ms=hold_ms, priorities=priorities)
    assert outcome.stopped is None
    jobs: dict[int, list[JobRecord]] = {index: [] for index in range(len(tasks))}
    for job in recorder.jobs:
        jobs[job.task].append(job)
    for index, mine in jobs.items():
        expected = tasks[index].rhythm.iterations  # type: ignore[attr-defined]
        assert [job.iteration for job in mine] == list(range(len(mine)))
        assert len(mine) == expected or (index in outcome.failures and mine[-1].finish == "failed")
        assert all(job.finish == "complete" for job in mine[: None if index not in outcome.failures else -1])
    timelines = [Timeline.parse(text) for text in weights]
    for step in recorder.steps:
        assert step.ready_ns <= step.start_ns < step.end_ns <= step.done_ns
        assert step.weight == timelines[step.task].at(step.start_ns) > 0
    if discipline != "free":
        assert not overlaps(recorder.steps)
        assert outcome.busy_ns == sum(step.end_ns - step.start_ns for step in recorder.steps)
        if not any(isinstance(error, SchedulingError) for error in outcome.failures.values()):
            # (A task that was paused for ever while it waited left no record of that.)
            assert outcome.held_ns <= idle_while_waiting(recorder.steps, timelines) + 1
        if not hold_ms:
            assert outcome.held_ns == idle_while_waiting(recorder.steps, timelines) == 0


def idle_while_waiting(steps: list[StepRecord], timelines: list[Timeline]) -> int:
    """How long the accelerator was idle while a task waited whose weight was not 0."""
    busy = sorted((step.start_ns, step.end_ns) for step in steps)
    edges = {0} | {time for pair in busy for time in pair} | {step.ready_ns for step in steps}
    edges |= {part.start_ns for part in segments(timelines)}
    lost, ordered = 0, sorted(edges)
    for begin, end in pairwise(ordered):
        if any(start <= begin < stop for start, stop in busy):
            continue
        if any(step.ready_ns <= begin < step.start_ns and timelines[step.task].at(begin) for step in steps):
            lost += end - begin
    return lost
