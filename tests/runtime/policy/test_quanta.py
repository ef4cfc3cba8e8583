"""A policy's engine calls one by one: the actions of `infer`, several frames under way at once, frames as jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from policy_bundles import observations, rewrite, write_bundle

from conftest import MakeBundle
from edgewright.errors import GenerationError, ObservationError
from edgewright.runtime.llm import LLM
from edgewright.runtime.policy import Chunk, Policy
from edgewright.runtime.policy.loop import finished
from edgewright.runtime.scheduling.course import Recorder
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.seat import Client
from edgewright.runtime.scheduling.threads import run_threads
from edgewright.runtime.scheduling.timeline import Timeline
from edgewright.runtime.scheduling.work import Quantum
from edgewright.runtime.tasks import DialogTask, PolicyTask

MakePolicy = Callable[..., Policy]
Frame = Generator[Quantum, None, Chunk]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> MakePolicy:
    """A function (case, **features) -> a loaded policy, shared; features of the run only are set in the manifest."""

    @functools.cache
    def make(case: str, **features: Any) -> Policy:
        late = {
            name.replace("_", "-"): features.pop(name)
            for name in ("view_batching", "prefix_compaction")
            if name in features
        }
        path = write_bundle(case, tmp_path_factory.mktemp("bundles") / case, **features)
        if late:
            rewrite(path, lambda model: model["features"].update(late))
        return Policy.load(path, threads=1)

    return make


def noise_of(policy: Policy, seed: int) -> np.ndarray:
    shape = (policy.spec.horizon, policy.spec.model_action_dim)
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def seen(case: str = "pi05", name: str = "two_cameras") -> dict[str, Any]:
    return observations(case, name)[0]


def step(frame: Frame) -> Chunk | None:
    """Run one call; return the chunk where there is none left."""
    try:
        next(frame).run()
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return None


def same(one: Chunk, other: Chunk) -> bool:
    return np.array_equal(one.actions, other.actions) and np.array_equal(one.normalized, other.normalized)


@pytest.mark.parametrize("case", ["pi05", "pi0", "smolvla"])
@pytest.mark.parametrize(
    "features", [{}, {"view_batching": False}, {"prefix_compaction": False}, {"time_table": True, "loop": "unrolled"}],
    ids=lambda f: "-".join(f) or "plain",
)  # fmt: skip
def test_the_calls_of_infer(case: str, features: dict[str, Any], policy: MakePolicy) -> None:
    tested = policy(case, **features)
    given, noise = seen(case), noise_of(tested, 4)
    wanted = tested.infer(given, noise)
    frame, quanta = tested.quanta(given, noise), []
    while True:
        try:
            quanta.append(next(frame))
        except StopIteration as end:
            chunk = end.value
            break
        quanta[-1].run()
    assert same(chunk, wanted)
    assert chunk.notes == wanted.notes
    calls = [(quantum.phase, quantum.tokens, quantum.emits) for quantum in quanta]
    vision = [("vision", 1, False)] * 2 if "view_batching" in features else [("vision", 2, False)]
    prefix = quanta[len(vision)].tokens
    steps = 1 if "loop" in features else 10
    denoise = [("denoise", 1, index == steps - 1) for index in range(steps)]
    assert calls == [*vision, ("prefix", prefix, False), *denoise]
    assert prefix >= 2 * tested.spec.image_tokens
    assert [quantum.held for quantum in quanta] == [0] * (len(vision) + 1) + [prefix] * steps
    padded = quanta[len(vision)].padded
    full = len(tested.spec.cameras) * tested.spec.image_tokens + tested.spec.max_tokens
    assert padded is None if "prefix_compaction" not in features else padded in (full, full + 1)
    assert list(chunk.timings) == list(wanted.timings) == ["prepare", "vision", "prefix", "denoise", "total"]
    assert len(chunk.timings["denoise"]) == steps
    stages = chunk.timings["vision"] + chunk.timings["prefix"] + sum(chunk.timings["denoise"])
    assert 0 < stages <= chunk.timings["total"]


def test_several_frames_are_under_way_at_once(policy: MakePolicy) -> None:
    tested = policy("pi05")
    givens = [seen("pi05", name) for name in ("two_cameras", "one_camera", "two_cameras")]
    wanted = [tested.infer(given, noise_of(tested, 7 + i), 4) for i, given in enumerate(givens)]
    frames = [tested.quanta(given, noise_of(tested, 7 + i), 4) for i, given in enumerate(givens)]
    chunks: list[Chunk | None] = [None] * 3
    for turn in range(40):
        index = (0, 1, 0, 2)[turn % 4]
        chunks[index] = chunks[index] or step(frames[index])
        if turn == 9:  # a call that isn't split goes between them
            assert same(tested.infer(givens[1], noise_of(tested, 8), 4), wanted[1])
    for chunk, theirs in zip(chunks, wanted, strict=True):
        assert chunk is not None
        assert same(chunk, theirs)


def test_a_frame_that_is_given_up_spoils_none(policy: MakePolicy) -> None:
    tested = policy("pi05")
    given, noise = seen(), noise_of(tested, 2)
    wanted = tested.infer(given, noise, 3)
    for count in range(5):
        frame = tested.quanta(given, noise_of(tested, 99), 3)
        for _ in range(count):
            step(frame)
        frame.close()
        assert same(finished(tested.quanta(given, noise, 3)), wanted)
    assert len(tested._spare) <= 3  # what was given up is used again


def test_nobody_waits_for_a_call_that_is_not_split(policy: MakePolicy) -> None:
    """While `infer` is under way, here in its watch, a frame goes through from its first call to its last."""
    tested = policy("pi05")
    given, noise = seen(), noise_of(tested, 2)
    wanted = tested.infer(given, noise, 2)
    found = []

    def watch(index: int, x_t: np.ndarray, velocity: np.ndarray) -> None:
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(lambda: finished(tested.quanta(given, noise, 2))).result(timeout=20))

    assert same(tested.infer(given, noise, 2, watch=watch), wanted)
    assert len(found) == 2
    assert all(same(chunk, wanted) for chunk in found)


def test_committed_actions_and_watching(policy: MakePolicy) -> None:
    tested = policy("pi05")
    given, noise = seen(), noise_of(tested, 4)
    committed = tested.infer(given, noise_of(tested, 5)).actions[:3]
    watched: dict[str, list[tuple[int, bytes]]] = {"infer": [], "quanta": []}

    def watch(who: str) -> Callable[[int, np.ndarray, np.ndarray], None]:
        return lambda index, x_t, velocity: watched[who].append((index, x_t.tobytes() + velocity.tobytes()))

    wanted = tested.infer(given, noise, 4, committed, watch=watch("infer"))
    got = finished(tested.quanta(given, noise, 4, committed, watch=watch("quanta")))
    assert same(got, wanted)
    assert watched["infer"] == watched["quanta"]
    assert [index for index, _ in watched["quanta"]] == [0, 1, 2, 3]
    np.testing.assert_allclose(got.actions[:3], committed, rtol=0, atol=1e-5)


def test_bad_requests_are_refused_before_the_first_call(policy: MakePolicy) -> None:
    tested = policy("pi05")
    with pytest.raises(ObservationError):
        next(tested.quanta({}))
    with pytest.raises(GenerationError, match="noise"):
        next(tested.quanta(seen(), np.zeros((1, 2), np.float32)))
    with pytest.raises(GenerationError, match="steps"):
        next(tested.quanta(seen(), None, 0))


# -- frames as jobs ----------------------------------------------------------------------------------------------------


def test_a_policy_as_a_task(policy: MakePolicy) -> None:
    tested = policy("pi05")
    noise, chunks = noise_of(tested, 6), []
    givens = [seen("pi05", name) for name in ("two_cameras", "one_camera")]
    task = PolicyTask(
        "arm",
        tested,
        lambda iteration: givens[iteration % 2],
        rhythm=Rhythm(iterations=3, period_ms=50, deadline_ms=40),
        noise=noise,
        steps=2,
        on_chunk=lambda iteration, chunk: chunks.append((iteration, chunk)),
    )
    other = PolicyTask("other", tested, givens[0], noise=noise, steps=2)
    wanted = [tested.infer(given, noise, 2) for given in givens]
    beside = next(iter(other.jobs(lambda: 0)))
    jobs = []
    for job in task.jobs(lambda: 0):
        jobs.append(job)
        assert job.facts() == {}
        for quantum in job.quanta:
            quantum.run()
            if (between := next(beside.quanta, None)) is not None:
                between.run()
    assert [(job.iteration, job.release_ns, job.deadline_ns) for job in jobs] == [
        (0, 0, 40_000_000),
        (1, 50_000_000, 90_000_000),
        (2, 100_000_000, 140_000_000),
    ]
    assert [iteration for iteration, _ in chunks] == [0, 1, 2]
    assert all(same(chunk, wanted[iteration % 2]) for iteration, chunk in chunks)
    facts = jobs[0].facts()
    assert (facts["actions"], facts["notes"]) == (tested.spec.horizon, list(wanted[0].notes))
    assert len(facts["timings"]["denoise"]) == 2
    assert beside.facts()["actions"] == tested.spec.horizon


def test_a_policy_beside_dialogs_in_real_time(policy: MakePolicy, shared_bundle: MakeBundle) -> None:
    """By deadline: whoever runs when a frame's step asks, no other goes first; and all give what they give alone."""
    tested, llm = policy("pi05"), LLM.load(shared_bundle("float32"), threads=1)
    noise, given, chunks = noise_of(tested, 6), seen(), []
    wanted = tested.infer(given, noise)
    tokens = llm.generate([40, 69, 76], max_tokens=30, ignore_eos=True).all_tokens()
    arm = PolicyTask(
        "arm",
        tested,
        given,
        rhythm=Rhythm(iterations=6, period_ms=8, deadline_ms=60_000),
        noise=noise,
        on_chunk=lambda iteration, chunk: chunks.append(chunk),
    )
    dialogs = [
        DialogTask(name, llm, [40, 69, 76], max_tokens=30, ignore_eos=True, rhythm=Rhythm(iterations=3))
        for name in ("chat", "log")
    ]
    recorder = Recorder()
    clients = [Client(name="arm"), Client(name="chat", timeline=Timeline.constant(2)), Client(name="log")]
    outcome = run_threads([arm, *dialogs], Scheduler(clients, "deadline"), recorder)
    assert (outcome.failures, outcome.stopped) == ({}, None)
    assert len(chunks) == 6
    assert all(same(chunk, wanted) for chunk in chunks)
    assert [job.facts["tokens"] for job in recorder.jobs if job.task] == [tokens] * 6
    steps = sorted(recorder.steps, key=lambda step: step.start_ns)
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(steps))
    frames = [step for step in steps if step.task == 0]
    assert len(frames) == 6 * 12
    for frame in frames:
        # One may have had the accelerator already, and begin its step a moment later.
        assert sum(step.task != 0 and frame.ready_ns < step.start_ns < frame.start_ns for step in steps) <= 1
