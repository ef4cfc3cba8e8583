"""Policies from bundles: actions as the originals compute them, and what a call may bring."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_bundles import has, normalized, observations, rewrite, write_bundle

from edgewright.bundle import this_machine
from edgewright.errors import BundleError, BundleTamperedError, GenerationError, ObservationError, TargetMismatchError
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.committed import model_actions
from edgewright.runtime.policy.control import Control
from edgewright.runtime.policy.numbers import robot_actions
from edgewright.runtime.policy.policy import outside
from edgewright.runtime.policy.schedule import FixedSchedule
from edgewright.runtime.policy.spec import Limits
from policy_goldens import POLICY_CASES, policy_scenarios, read

#: Float32 sums in another order than PyTorch's, added up over all steps; actions are about 1 to 5.
TOLERANCE = 1e-4
SCENARIOS = [
    (case, name)
    for case in POLICY_CASES
    for name, described in policy_scenarios(case).items()
    if has(case, name, "actions")
    and not described.get("committed")
    and name != "bfloat16"  # computed in that, so another model
    and not set(described.get("overrides", {})) - {"pad_language_to", "prefix_length"}
]

MakeBundle = Callable[..., Path]
MakePolicy = Callable[..., Policy]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> MakeBundle:
    """A function (case, **features) -> a bundle, made once and not to be changed."""

    @functools.cache
    def make(case: str, **features: Any) -> Path:
        return write_bundle(case, tmp_path_factory.mktemp("bundles") / case, **features)

    return make


@pytest.fixture(scope="module")
def policy(bundle: MakeBundle) -> MakePolicy:
    """A function (case, **features) -> the loaded policy, shared."""

    @functools.cache
    def make(case: str, **features: Any) -> Policy:
        return Policy.load(bundle(case, **features), threads=1)

    return make


@pytest.fixture
def own(bundle: MakeBundle, tmp_path: Path) -> MakeBundle:
    """A function (case) -> a copy of a bundle, to be changed."""

    def make(case: str = "pi05") -> Path:
        return Path(shutil.copytree(bundle(case), tmp_path / case))

    return make


def with_features(path: Path, **features: Any) -> Path:
    """Set features of a bundle: underscores stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in features.items()}
    rewrite(path, lambda model: model["features"].update(named))
    return path


def noise_of(policy: Policy, seed: int, batch: int | None = None) -> np.ndarray:
    shape = (policy.spec.horizon, policy.spec.model_action_dim)
    shape = shape if batch is None else (batch, *shape)
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize(("case", "scenario"), SCENARIOS)
@pytest.mark.parametrize("compact", [True, False], ids=["compact", "padded"])
def test_actions_are_the_originals(
    case: str, scenario: str, compact: bool, policy: MakePolicy, own: MakeBundle
) -> None:
    tested = policy(case) if compact else Policy.load(with_features(own(case), prefix_compaction=False), threads=1)
    steps = policy_scenarios(case)[scenario]["steps"]
    got = tested.infer_batch(observations(case, scenario), read(case, scenario, "noise"), steps)
    wanted, actions = normalized(case, scenario), read(case, scenario, "actions")
    assert len(got) == len(wanted)
    for chunk, mine, theirs in zip(got, wanted, actions, strict=True):
        assert np.abs(chunk.normalized[:, : mine.shape[1]] - mine).max() < TOLERANCE
        assert np.abs(chunk.actions - theirs).max() < TOLERANCE
        assert len(chunk.timings["denoise"]) == steps


def test_the_other_project_has_another_schedule(own: MakeBundle) -> None:
    """Ten steps by LeRobot's times on openpi's policy: openpi's golden of it, and nearer to that than to the plain."""
    path = own("pi05_libero")
    rewrite(path, lambda model: model["policy"].update(schedule="float64-linear"))
    (seen,) = observations("pi05_libero", "three_cameras")
    noise = read("pi05_libero", "three_cameras", "noise")[0]
    got = Policy.load(path, threads=1).infer(seen, noise, 10).normalized
    theirs = read("pi05_libero", "three_cameras", "actions_normalized_other_schedule")[0]
    assert np.abs(got - theirs).max() < TOLERANCE


@pytest.mark.parametrize("case", POLICY_CASES)
def test_masked_tokens_change_nothing(case: str, policy: MakePolicy, own: MakeBundle) -> None:
    padded = Policy.load(with_features(own(case), prefix_compaction=False), threads=1)
    for name in [n for c, n in SCENARIOS if c == case][:4]:
        seen, compact = observations(case, name), policy(case)
        noise = noise_of(compact, 5, len(seen))
        for one, other in zip(compact.infer_batch(seen, noise, 4), padded.infer_batch(seen, noise, 4), strict=True):
            scale = np.abs(one.normalized).max()
            assert np.abs(one.normalized - other.normalized).max() <= 1e-6 * scale


@pytest.mark.parametrize("case", ["pi05", "smolvla"])
def test_a_policy_without_cameras(case: str, own: MakeBundle) -> None:
    """The engines take arrays without an element, and the padded prefix has no slot for an image either."""
    path = own(case)
    rewrite(path, lambda model: model["policy"].update(cameras=[], required_cameras=[]))
    seen = {
        k: v for k, v in observations(case, "two_cameras")[0].items() if not k.startswith(("images", "observation.i"))
    }
    compact = Policy.load(path, threads=1)
    padded = Policy.load(with_features(path, prefix_compaction=False), threads=1)
    noise = noise_of(compact, 3)
    one, other = (p.infer(seen, noise, 2).normalized for p in (compact, padded))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(other).max())


@pytest.mark.parametrize("case", ["pi05", "smolvla"])
def test_images_one_at_a_time_are_the_same(case: str, policy: MakePolicy, own: MakeBundle) -> None:
    single = Policy.load(with_features(own(case), view_batching=False), threads=1)
    seen = observations(case, "two_cameras")[0]
    noise = noise_of(single, 3)
    one, other = (p.infer(seen, noise, 2).normalized for p in (single, policy(case)))
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


FEATURES: list[dict[str, Any]] = [
    {"kv_transposed": True},
    {"kv_only": False},
    {"norm_folding": True},
    {"time_table": True},
    {"time_table": True, "loop": "graph"},
    {"time_table": True, "loop": "unrolled"},
]


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: "-".join(f))
@pytest.mark.parametrize("case", ["pi05", "pi0", "smolvla"])
def test_features_change_no_action(case: str, features: dict[str, Any], policy: MakePolicy) -> None:
    tested, plain = policy(case, **features), policy(case)
    for name in ("two_cameras", "one_camera"):
        seen, noise = observations(case, name)[0], noise_of(plain, 4)
        wanted = plain.infer(seen, noise)
        got = tested.infer(seen, noise)
        scale = np.abs(wanted.normalized).max()
        np.testing.assert_allclose(got.normalized, wanted.normalized, rtol=0, atol=1e-5 * scale)
        assert len(got.timings["denoise"]) == (1 if "loop" in features else 10)


@pytest.mark.parametrize("case", ["pi05", "pi0", "smolvla"])
def test_a_time_table_keeps_committed_actions(case: str, policy: MakePolicy) -> None:
    tested, plain = policy(case, time_table=True), policy(case)
    seen, noise = observations(case, "two_cameras")[0], noise_of(plain, 4)
    committed = plain.infer(seen, noise_of(plain, 5)).actions[:3]
    wanted, got = (one.infer(seen, noise, committed=committed).normalized for one in (plain, tested))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    with pytest.raises(GenerationError, match="whole loop inside, so it can't keep committed"):
        policy(case, time_table=True, loop="graph").infer(seen, noise, committed=committed)
    with pytest.raises(GenerationError, match=r"built for 10 steps by .* can't run 3"):
        tested.infer(seen, noise, 3)


@pytest.mark.parametrize("key", ["steps", "schedule"])
def test_a_schedule_that_was_changed_after_the_table(key: str, bundle: MakeBundle, tmp_path: Path) -> None:
    path = Path(shutil.copytree(bundle("pi05", time_table=True), tmp_path / "changed"))
    value = {"steps": 5, "schedule": "float32-sum"}[key]
    rewrite(path, lambda model: model["policy"].update({key: value}))
    refused(path, BundleError, "built for 10 steps by float64-linear and can't run")
    path = Path(shutil.copytree(bundle("pi05", time_table=True), tmp_path / "changed too"))
    rewrite(path, lambda model: model["schedule"].update(times=model["schedule"]["times"][::-1]))
    refused(path, BundleError, "has other times than float64-linear gives")


@pytest.mark.parametrize("case", POLICY_CASES)
def test_a_batch_is_its_rows(case: str, policy: MakePolicy) -> None:
    """Rows of other cameras and other text lengths, three at once."""
    tested = policy(case)
    third = {"smolvla": "front_missing", "pi0_lerobot": "unclean_prompt"}.get(case, "middle_camera_missing")
    names = ["two_cameras", "one_camera", third]
    seen = [observations(case, name)[0] for name in names]
    noise = noise_of(tested, 8, 3)
    together = tested.infer_batch(seen, noise, 3)
    for row, one in enumerate(seen):
        alone = tested.infer(one, noise[row], 3)
        np.testing.assert_allclose(together[row].actions, alone.actions, rtol=0, atol=2e-5)
    assert not np.allclose(together[0].actions, together[1].actions, atol=1e-2)


def test_the_same_noise_gives_the_same_actions(policy: MakePolicy) -> None:
    tested = policy("pi05")
    seen, noise = observations("pi05", "three_cameras")[0], noise_of(tested, 1)
    kept = noise.copy()
    noise.setflags(write=False)
    first = tested.infer(seen, noise)
    between = tested.infer(observations("pi05", "one_camera")[0])
    again = tested.infer(seen, noise)
    np.testing.assert_array_equal(noise, kept)
    np.testing.assert_array_equal(first.normalized, again.normalized)
    assert first.actions is not again.actions
    assert (between.actions != first.actions).any()
    assert len(first.timings["denoise"]) == tested.spec.steps
    parts = sum(first.timings[name] for name in ("prepare", "vision", "prefix")) + sum(first.timings["denoise"])
    assert 0 < parts <= first.timings["total"]


def test_noise_of_its_own_follows_the_seed(bundle: MakeBundle) -> None:
    seen = observations("pi0", "one_camera")[0]
    one, same, other = (Policy.load(bundle("pi0"), threads=1, seed=seed) for seed in (3, 3, 4))
    first = one.infer(seen).actions
    np.testing.assert_array_equal(same.infer(seen).actions, first)
    assert (other.infer(seen).actions != first).any()
    assert (one.infer(seen).actions != first).any()


def test_committed_actions_are_lerobots(policy: MakePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden commits numbers that no robot was sent, so they are put in as the model sees them."""
    kept = np.zeros((3, 32), np.float32)
    kept[:, :7] = read("pi05", "committed_actions", "committed_actions")[0]
    monkeypatch.setattr("edgewright.runtime.policy.policy.model_actions", lambda *_: kept)
    seen, noise = observations("pi05", "committed_actions")[0], read("pi05", "committed_actions", "noise")[0]
    steps: list[np.ndarray] = []
    got = policy("pi05").infer(seen, noise, 3, np.zeros((3, 7)), watch=lambda step, x, v: steps.append(v.copy()))
    velocity = read("pi05", "committed_actions", "v_t")
    np.testing.assert_allclose(steps, velocity, rtol=0, atol=1e-5 * np.abs(velocity).max())
    assert np.abs(got.normalized - normalized("pi05", "committed_actions")[0]).max() < TOLERANCE
    assert np.abs(got.actions - read("pi05", "committed_actions", "actions")[0]).max() < TOLERANCE
    np.testing.assert_array_equal(got.normalized[:3], kept)


@pytest.mark.parametrize("case", ["pi05", "pi0", "smolvla"])
def test_committed_actions_begin_the_chunk(case: str, policy: MakePolicy) -> None:
    tested = policy(case)
    seen = observations(case, "two_cameras")[0]
    before = tested.infer(seen, noise_of(tested, 1))
    noise = noise_of(tested, 2)
    free = tested.infer(seen, noise)
    kept = tested.infer(seen, noise, committed=before.actions[2:5])
    width = np.ptp(before.actions, axis=0).max()
    np.testing.assert_allclose(kept.actions[:3], before.actions[2:5], rtol=0, atol=1e-5 * width)
    assert np.abs(free.actions[:3] - before.actions[2:5]).max() > 1e-2
    assert np.abs(kept.actions[3:] - free.actions[3:]).max() > 1e-3, "the rest must continue them"
    none = tested.infer(seen, noise, committed=before.actions[:0])
    np.testing.assert_array_equal(none.normalized, free.normalized)


def test_rows_of_a_batch_may_commit_differently(policy: MakePolicy) -> None:
    tested = policy("pi05")
    seen, noise = observations("pi05", "batch_of_two"), noise_of(tested, 6, 2)
    committed = tested.infer(seen[1], noise[0]).actions[:4]
    together = tested.infer_batch(seen, noise, 3, [None, committed])
    np.testing.assert_allclose(together[0].actions, tested.infer(seen[0], noise[0], 3).actions, rtol=0, atol=2e-5)
    alone = tested.infer(seen[1], noise[1], 3, committed)
    np.testing.assert_allclose(together[1].actions, alone.actions, rtol=0, atol=2e-5)
    with pytest.raises(GenerationError, match="committed actions for 1 of 2 observations"):
        tested.infer_batch(seen, noise, 3, [committed])


@pytest.mark.parametrize("case", POLICY_CASES)
@pytest.mark.parametrize("relative", [False, True])
def test_actions_go_back_to_how_the_model_sees_them(case: str, relative: bool, policy: MakePolicy) -> None:
    spec, statistics = policy(case).spec, policy(case).statistics
    if relative:
        numbers = min(spec.state_dim, spec.action_dim)
        spec = dataclasses.replace(spec, delta_mask=(True,) * (numbers - 1) + (False,))
    rng = np.random.default_rng(3)
    wanted = np.zeros((4, spec.model_action_dim), np.float32)
    wanted[:, : spec.action_dim] = rng.uniform(-1.5, 1.5, (4, spec.action_dim))
    still = [i for i in range(spec.action_dim) if never_moved(case, statistics.actions, spec.action_norm, i)]
    wanted[:, still] = 0.0 if spec.action_norm == "mean-std" else -1.0
    state = rng.normal(size=spec.state_dim).astype(np.float32)
    back = model_actions(spec, statistics, robot_actions(spec, statistics, wanted, state), state)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, wanted, rtol=0, atol=1e-5)


def never_moved(case: str, actions: Any, norm: str, index: int) -> bool:
    if norm == "mean-std":
        return bool(actions["std"][index] == 0)
    return bool(actions["q01"][index] == actions["q99"][index])


def test_a_control_loop_without_a_seam(policy: MakePolicy) -> None:
    """Inference takes three ticks; the actions that run meanwhile are committed, so that chunks go over smoothly."""
    tested, now = policy("pi05"), [0.0]
    seen = observations("pi05", "two_cameras")[0]
    control = Control.of(tested.metadata, 10.0, mode="committed", steps_to_run=6, delay=3, clock=lambda: now[0])
    width = np.abs(tested.infer(seen).actions).max()
    pending, arrives, sent, seams = None, 0, [], 0
    for tick in range(30):
        request = control.due()
        if request is not None:
            pending, arrives = request, tick + 3
        if pending is not None and tick >= arrives:
            chunk = tested.infer(seen, committed=pending.committed)
            if pending.committed is not None:
                ran = np.array(sent[pending.start : pending.start + 3])
                np.testing.assert_allclose(chunk.actions[:3], ran, rtol=0, atol=1e-5 * width)
                seams += 1
            assert control.deliver(pending, chunk.actions)
            pending = None
        step = control.step()
        assert step is not None
        sent.append(np.full(7, np.nan) if step.action is None else step.action)
        now[0] += 0.1
    assert seams == 6
    assert control.buffer.counts["starved"] == 3, "before the first chunk"
    assert not control.guard.counts


@pytest.mark.parametrize(
    ("committed", "words"),
    [
        (np.zeros((3, 6)), "shape \\[3, 6\\], but an action has 7"),
        (np.zeros(7), "shape \\[7\\]"),
        (np.full((2, 7), np.nan), "NaN or infinite"),
        (np.zeros((12, 7)), "12 committed actions leave nothing to infer of a chunk of 12"),
        ([["a"] * 7], "no array of numbers"),
    ],
)
def test_committed_actions_that_cant_be(committed: Any, words: str, policy: MakePolicy) -> None:
    with pytest.raises(GenerationError, match=words):
        policy("pi05").infer(observations("pi05", "one_camera")[0], committed=committed)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (
            np.zeros((12, 31), np.float32),
            "float32 \\[12, 31\\], but the flow begins with float32 \\[12, 32\\] \\(horizon",
        ),
        (np.zeros((12, 32)), "float64"),
        (np.zeros((2, 12, 32), np.float32), "\\[2, 12, 32\\]"),
        (np.full((12, 32), np.inf, np.float32), "NaN or infinite"),
        ([[0.0] * 32] * 12, "is list"),
    ],
)
def test_noise_that_cant_be(noise: Any, words: str, policy: MakePolicy) -> None:
    with pytest.raises(GenerationError, match=words):
        policy("pi05").infer(observations("pi05", "one_camera")[0], noise)


def test_requests_that_cant_be(policy: MakePolicy) -> None:
    tested, seen = policy("pi05"), observations("pi05", "one_camera")[0]
    with pytest.raises(GenerationError, match="number of denoise steps is 0"):
        tested.infer(seen, steps=0)
    with pytest.raises(GenerationError, match="built for batch 1 to 3 and 4 is needed: infer fewer"):
        tested.infer_batch([seen] * 4)
    with pytest.raises(ObservationError, match="no state"):
        tested.infer({k: v for k, v in seen.items() if k != "state"})
    assert tested.infer_batch([]) == []


def test_an_interrupt_leaves_the_policy_usable(policy: MakePolicy) -> None:
    tested, seen = policy("pi05"), observations("pi05", "two_cameras")[0]
    noise = noise_of(tested, 2)
    wanted = tested.infer(seen, noise).normalized

    def interrupt(step: int, *_: Any) -> None:
        if step == 4:
            raise KeyboardInterrupt

    for other in (seen, observations("pi05", "one_camera")[0]):
        with pytest.raises(KeyboardInterrupt):
            tested.infer(other, noise, watch=interrupt)
        np.testing.assert_array_equal(tested.infer(seen, noise).normalized, wanted)


def test_threads_wait_for_each_other(policy: MakePolicy) -> None:
    tested, names = policy("pi0_lerobot"), ("three_cameras", "one_camera")
    seen = [observations("pi0_lerobot", name)[0] for name in names]
    noise = noise_of(tested, 3)
    wanted = [tested.infer(one, noise, 2).normalized for one in seen]
    wrong: list[int] = []

    def work(index: int) -> None:
        made = [tested.infer(seen[index], noise, 2).normalized for _ in range(5)]
        wrong.extend(index for one in made if (one != wanted[index]).any())

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_actions_that_are_no_numbers_are_not_given_out(own: MakeBundle) -> None:
    path = own("pi0_lerobot")
    tested = Policy.load(path, threads=1)
    huge = np.full((tested.spec.horizon, tested.spec.model_action_dim), 3e38, np.float32)
    with pytest.raises(GenerationError, match="NaN or infinite, so none are given out"):
        tested.infer(observations("pi0_lerobot", "one_camera")[0], huge, 1)


def test_what_a_client_is_told(policy: MakePolicy) -> None:
    told = policy("pi05").metadata
    assert told["kind"] == "pi05"
    assert told["horizon"] == 12
    assert told["action_dim"] == 7
    assert told["cameras"][0] == "observation.images.base_0_rgb"
    assert told["limits"] == Limits().to_json()
    assert told["takes_committed"] is True


def test_a_whole_loop_says_that_it_takes_no_committed_actions(policy: MakePolicy) -> None:
    for loop in ("graph", "unrolled"):
        told = policy("pi05", time_table=True, loop=loop).metadata
        assert told["takes_committed"] is False
        with pytest.raises(GenerationError, match="takes no committed actions here"):
            Control.of(told, 10.0, mode="committed")
        Control.of(told, 10.0)


def test_a_bundle_with_limits_gives_the_chunk_as_it_is_and_says_so(own: MakeBundle) -> None:
    path = own("pi05")
    seen = observations("pi05", "three_cameras")[0]
    free = Policy.load(path, threads=1).infer(seen, steps=2)
    rewrite(path, lambda model: model["policy"]["limits"].update(maximum=[1e3, -1e3, *[1e3] * 5], rate=[0.1] * 7))
    bound = Policy.load(path, threads=1)
    chunk = bound.infer(seen, steps=2)
    np.testing.assert_array_equal(chunk.actions, free.actions)
    assert chunk.notes == (
        "actions are outside the bundle's limits at 1: a guard (Control) on the robot's side clips them",
    )
    control = Control.of(bound.metadata, 10.0)
    request = control.due()
    assert request is not None
    assert control.deliver(request, chunk.actions)
    sent = control.step()
    assert sent is not None
    assert sent.action is not None
    assert sent.action[1] == -1e3


def test_actions_outside_the_limits_are_noted(policy: MakePolicy) -> None:
    tested = policy("pi05")
    seen, noise = observations("pi05", "three_cameras")[0], noise_of(tested, 2)
    free = tested.infer(seen, noise)
    assert free.notes == ()
    low, high = free.actions.min(axis=0).astype(float), free.actions.max(axis=0).astype(float)
    for change, wanted in (((0.0, 0.0), None), ((0.1, 0.0), "at 2: a guard"), ((0.0, -0.1), "at 2: a guard")):
        least, most = low.copy(), high.copy()
        least[2] += change[0]
        most[2] += change[1]
        spec = dataclasses.replace(tested.spec, limits=Limits(minimum=tuple(least), maximum=tuple(most)))
        notes = outside(spec, free.actions)
        assert len(notes) == (wanted is not None)
        assert wanted is None or wanted in notes[0]


def test_a_prompt_that_was_cut_is_noted(policy: MakePolicy) -> None:
    (note,) = policy("pi05").infer(observations("pi05", "truncated_prompt")[0], steps=1).notes
    assert "was cut to 80" in note


def refused(path: Path, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Policy.load(path, threads=1)


def test_bundles_that_are_refused(own: MakeBundle, tmp_path: Path) -> None:
    refused(tmp_path / "none", BundleError, "does not exist")
    path = own()
    weights = path / "stages" / "denoise" / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[7] ^= 1
    weights.write_bytes(data)
    refused(path, BundleTamperedError, "stages/denoise/weights.bin was changed")
    assert Policy.load(path, threads=1, check=False).spec.kind == "pi05"


CHANGES: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("no policy", lambda m: m.pop("policy"), "holds no robot policy"),
    ("an unknown key", lambda m: m["policy"].update(more=1), "unknown more"),
    ("another horizon", lambda m: m["policy"].update(horizon=40, steps_to_run=1), "horizon 1 to 24 and 40 is needed"),
    ("a longer prompt", lambda m: m["policy"].update(max_tokens=400), "text|prefix"),
    ("another image size", lambda m: m["policy"].update(image_size=[42, 42]), "images as float32"),
    ("another width", lambda m: m["policy"].update(model_action_dim=30), "x_t as float32"),
    ("another tokenizer", lambda m: m["policy"].update(tokenizer="other.json"), "lacks sidecars/other.json"),
    ("another robot", lambda m: m["policy"].update(state_dim=9), "statistics of state"),
    ("features as a list", lambda m: m.update(features=[]), "features are not an object"),
    ("an unknown loop", lambda m: m.update(features={"loop": "spiral"}), "feature loop is 'spiral'"),
    ("an odd feature", lambda m: m.update(features={"view-batching": 3}), "feature view-batching is 3"),
    ("a table it hasn't", lambda m: m.update(features={"time-table": True}), "doesn't take time_index"),
    ("a loop it isn't", lambda m: m.update(features={"loop": "graph"}), "doesn't take noise"),
    ("an odd schedule", lambda m: m.update(schedule={"steps": 3}), "does not have exactly"),
]


@pytest.mark.parametrize(("change", "words"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_manifests_that_are_refused(change: Any, words: str, own: MakeBundle) -> None:
    path = own()
    rewrite(path, change)
    refused(path, BundleError, words)


def test_a_schedule_without_a_table_has_no_effect(own: MakeBundle) -> None:
    path = own()
    rewrite(path, lambda model: model.update(schedule=FixedSchedule.of("float64-linear", 3).to_json()))
    Policy.load(path, threads=1).infer(observations("pi05", "one_camera")[0], steps=2)


def test_a_bundle_of_another_machine(own: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    other = dataclasses.replace(this_machine(), arch="riscv64")
    monkeypatch.setattr("edgewright.runtime.engine.this_machine", lambda _: other)
    refused(own(), TargetMismatchError, "riscv64")
