"""Open-loop figures are those that plain loops give, two predictors see the same, and what can't be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import Written, write_dataset
from predictor_cases import DIMS, HORIZON, NOISE, ErrorOf, chunk_of, replay

from edgewright.errors import DatasetError, GenerationError, UsageError
from edgewright.evaluate import Evaluation, FrameChoice, Predictor, evaluate, open_dataset
from edgewright.evaluate.frames import noise_of

LENGTHS = (13, 8, 21)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_dataset(tmp_path_factory.mktemp("open") / "set", "v3.0", LENGTHS, 4)


def noisy(seed: int, scale: float = 0.1) -> ErrorOf:
    """An error that depends on the frame only, another one for every step and dimension."""

    def error(episode: int, step: int, noise: np.ndarray) -> np.ndarray:
        return np.random.default_rng([seed, episode, step]).normal(scale=scale, size=(HORIZON, DIMS))

    return error


def run(written: Written, predictors: list[Predictor], choice: FrameChoice, **more: Any) -> Evaluation:
    with open_dataset(written.folder) as dataset:
        found = evaluate(dataset, predictors, choice, **more)
    json.dumps(found.to_json(), allow_nan=False)
    return found


def ranges(written: Written, episodes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    actions = np.concatenate([written.episodes[e].action for e in episodes]).astype(np.float64)
    return actions.min(0), actions.max(0)


@pytest.mark.parametrize("seed", [1, 2])
def test_figures_are_those_of_plain_loops(written: Written, seed: int) -> None:
    predictor, function = replay(written, noisy(seed))
    found = run(written, [predictor], FrameChoice(count=17, seed=seed)).policies[0]
    assert len(function.seen) == len(set(function.seen)) == 17
    low, high = ranges(written, sorted({e for e, _ in function.seen}))
    errors: dict[tuple[int, int], list[float]] = {}
    by_frame, run_errors = [], []
    for episode, step in function.seen:
        part = []
        for ahead in range(HORIZON):
            if step + ahead >= LENGTHS[episode]:
                break  # the episode ends within the chunk
            recorded = written.episodes[episode].action[step + ahead].astype(np.float64)
            predicted = np.float64(np.float32(recorded + noisy(seed)(episode, step, None)[ahead]))
            for dim in range(DIMS):
                error = predicted[dim] - recorded[dim]
                errors.setdefault((ahead, dim), []).append(error)
                part.append(abs(error) / (high - low)[dim])
                if ahead < 3:
                    run_errors.append(part[-1])
        by_frame.append(np.mean(part))
    for (ahead, dim), listed in errors.items():
        assert found["errors"]["mae"][ahead][dim] == pytest.approx(np.mean(np.abs(listed)), rel=1e-9)
        assert found["errors"]["mse"][ahead][dim] == pytest.approx(np.mean(np.square(listed)), rel=1e-9)
        assert found["errors"]["max"][ahead][dim] == pytest.approx(np.max(np.abs(listed)), rel=1e-9)
        assert found["steps"][ahead]["frames"] == len(listed)
    shares = {key: np.array(listed) / (high - low)[key[1]] for key, listed in errors.items()}
    everything = np.concatenate(list(shares.values()))
    figures = found["figures"]
    assert figures["mae"] == pytest.approx(np.abs(everything).mean(), rel=1e-9)
    assert figures["mse"] == pytest.approx((everything**2).mean(), rel=1e-9)
    assert figures["rmse"] == pytest.approx(np.sqrt((everything**2).mean()), rel=1e-9)
    assert figures["max_error"] == pytest.approx(np.abs(everything).max(), rel=1e-9)
    assert figures["run_mae"] == pytest.approx(np.mean(run_errors), rel=1e-9)
    assert figures["mae_by_frame"]["mean"] == pytest.approx(np.mean(by_frame), rel=1e-9)
    assert figures["mae_by_frame"]["low"] < np.mean(by_frame) < figures["mae_by_frame"]["high"]
    for dim, one in enumerate(found["dimensions"]):
        listed = np.concatenate([v for (_, d), v in errors.items() if d == dim])
        assert one["mae"] == pytest.approx(np.abs(listed).mean(), rel=1e-9)
        assert one["rmse"] == pytest.approx(np.sqrt((listed**2).mean()), rel=1e-9)
        assert one["max"] == pytest.approx(np.abs(listed).max(), rel=1e-9)
        assert one["relative_mae"] == pytest.approx(np.abs(listed).mean() / (high - low)[dim], rel=1e-9)
    assert [one["name"] for one in found["dimensions"]] == ["a", "b", "c", "d", "Gripper"]


def test_smoothness_is_that_of_plain_loops(written: Written) -> None:
    error = noisy(9)
    predictor, _ = replay(written, error)
    found = run(written, [predictor], FrameChoice(every=4)).policies[0]["figures"]
    low, high = ranges(written, [0, 1, 2])
    jerks, recorded_jerks, jumps, largest = [], [], [], 0.0
    for episode, length in enumerate(LENGTHS):
        before: np.ndarray | None = None
        for step in range(0, length, 4):
            chunk = np.float32(chunk_of(written, episode, step) + error(episode, step, None)).astype(np.float64)
            share = chunk / (high - low)
            real = chunk_of(written, episode, step) / (high - low)
            for k in range(min(HORIZON, length - step) - 3):
                jerks += list(abs(share[k + 3] - 3 * share[k + 2] + 3 * share[k + 1] - share[k]))
                recorded_jerks += list(abs(real[k + 3] - 3 * real[k + 2] + 3 * real[k + 1] - real[k]))
            if before is not None:
                jumps += list(abs(share[0] - before[4]))  # what the chunk before had said of this step
            before = share
    largest = max(jumps)
    assert found["jerk"] == pytest.approx(np.mean(jerks), rel=1e-9)
    assert found["recorded_jerk"] == pytest.approx(np.mean(recorded_jerks), rel=1e-9)
    assert found["jerk_ratio"] == pytest.approx(np.mean(jerks) / np.mean(recorded_jerks), rel=1e-9)
    assert found["jump"] == pytest.approx(np.mean(jumps), rel=1e-9)
    assert found["max_jump"] == pytest.approx(largest, rel=1e-9)
    assert found["jumps"] == sum((length - 1) // 4 for length in LENGTHS)


def test_gripper_flips_and_agreement(written: Written) -> None:
    def flipped(episode: int, step: int, noise: np.ndarray) -> np.ndarray:
        error = np.zeros((HORIZON, DIMS))
        error[:, 4] = np.where(np.arange(HORIZON) % 2, 0.0, 1 - 2 * chunk_of(written, episode, step)[:, 4])
        return error  # the gripper is wrong at steps 0, 2, 4

    def wavering(episode: int, step: int, noise: np.ndarray) -> np.ndarray:
        error = np.zeros((HORIZON, DIMS))
        error[:, 4] = np.where(chunk_of(written, episode, step)[:, 4] > 0.5, -0.35, 0.35)  # just past the margin
        return error

    right, _ = replay(written, lambda *_: np.zeros((HORIZON, DIMS)))
    figures = [
        run(written, [replay(written, error)[0] if error else right], FrameChoice(count=None)).policies[0]["figures"]
        for error in (None, flipped, wavering)
    ]
    assert [one["gripper_agreement"] for one in figures[::2]] == [1.0, 1.0]
    windows = [(e, s, min(HORIZON, length - s)) for e, length in enumerate(LENGTHS) for s in range(length)]
    agreeing = sum(valid // 2 for *_, valid in windows) / sum(valid for *_, valid in windows)
    assert figures[1]["gripper_agreement"] == pytest.approx(agreeing)
    changes = np.mean([np.abs(np.diff(chunk_of(written, e, s)[:n, 4])).sum() for e, s, n in windows])
    assert changes > 0.2
    for one in figures:
        assert one["recorded_gripper_flips"] == pytest.approx(changes)
    assert figures[0]["gripper_flips"] == pytest.approx(changes)
    assert figures[1]["gripper_flips"] > 2.5


def test_two_predictors_see_the_same_frames_and_noise(written: Written) -> None:
    first, one = replay(written, noisy(1), "first")
    second, two = replay(written, noisy(2, 0.3), "second")
    found = run(written, [first, second], FrameChoice(count=20, seed=6))
    assert one.seen == two.seen
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    for (episode, step), a, b in zip(one.seen, one.noise, two.noise, strict=True):
        wanted = noise_of(6, int(starts[episode]) + step, NOISE)
        assert np.array_equal(a, wanted)
        assert np.array_equal(b, wanted)
    assert found.comparison is not None
    low, high = ranges(written, [0, 1, 2])
    shares, increases = [], []
    for episode, step in one.seen:
        recorded = chunk_of(written, episode, step)
        chunks = [
            np.float32(recorded + error(episode, step, None)).astype(np.float64) for error in (noisy(1), noisy(2, 0.3))
        ]
        shares.append(np.abs(chunks[1] - chunks[0]) / (high - low))
        valid = min(HORIZON, LENGTHS[episode] - step)
        errors = [(np.abs(chunk - recorded) / (high - low))[:valid].mean() for chunk in chunks]
        increases.append(errors[1] - errors[0])
    pair = found.comparison
    assert pair["difference"] == pytest.approx(np.mean(shares), rel=1e-9)
    assert pair["difference_rms"] == pytest.approx(np.sqrt(np.mean(np.square(shares))), rel=1e-9)
    assert pair["max_difference"] == pytest.approx(np.max(shares), rel=1e-9)
    assert pair["run_difference"] == pytest.approx(np.mean([s[:3] for s in shares]), rel=1e-9)
    assert pair["mae_increase"]["mean"] == pytest.approx(np.mean(increases), rel=1e-9)
    assert 0 < pair["mae_increase"]["low"] < pair["mae_increase"]["mean"] < pair["mae_increase"]["high"]
    for dim in range(DIMS):
        real = np.array([s[:, dim] for s in shares]) * (high - low)[dim]
        assert pair["dimensions"][dim]["mean"] == pytest.approx(real.mean(), rel=1e-9)
        assert pair["dimensions"][dim]["max"] == pytest.approx(real.max(), rel=1e-9)


def test_the_same_predictor_twice_differs_by_nothing(written: Written) -> None:
    def sampled(episode: int, step: int, noise: np.ndarray) -> np.ndarray:
        return 0.1 * noise[:, :DIMS]

    found = run(written, [replay(written, sampled)[0], replay(written, sampled)[0]], FrameChoice(count=9))
    assert found.comparison is not None
    assert found.comparison["max_difference"] == 0
    assert found.comparison["mae_increase"] == {"mean": 0, "low": 0, "high": 0, "over": "frames"}
    assert found.policies[0]["figures"]["mae"] > 0.01


def test_noise_is_standard_normal_and_of_the_frame() -> None:
    many = np.concatenate([noise_of(3, index, (10, 32)).reshape(-1) for index in range(60)])
    assert many.dtype == np.float32
    assert abs(many.mean()) < 0.03
    assert abs(many.std() - 1) < 0.03
    assert not np.array_equal(noise_of(3, 0, (4, 4)), noise_of(3, 1, (4, 4)))
    assert not np.array_equal(noise_of(3, 0, (4, 4)), noise_of(4, 0, (4, 4)))
    # The stream is part of the contract: figures of two machines must be comparable.
    assert noise_of(0, 0, (1, 3)).tolist() == [[1.1176220178604126, -1.3871248960494995, -0.4265716075897217]]


def test_choices_of_frames(written: Written) -> None:
    with open_dataset(written.folder) as dataset:
        everything = FrameChoice(count=None).of(dataset)
        assert everything == [(e, list(range(length))) for e, length in enumerate(LENGTHS)]
        assert FrameChoice(count=10_000).of(dataset) == everything
        assert FrameChoice([2, 0, 2], every=6).of(dataset) == [(0, [0, 6, 12]), (2, [0, 6, 12, 18])]
        some = [FrameChoice(count=11, seed=seed).of(dataset) for seed in range(8)]
        for chosen in some:
            flat = [(e, s) for e, steps in chosen for s in steps]
            assert len(set(flat)) == 11
            assert flat == sorted(flat)
            starts = np.cumsum((0, *LENGTHS))
            places = np.array([starts[e] + s for e, s in flat])
            assert set(np.diff(places)) <= {3, 4}  # 42 frames, 11 of them
        assert len({str(chosen) for chosen in some}) > 2
        assert some[3] == FrameChoice(count=11, seed=3).of(dataset)
        with pytest.raises(DatasetError, match="episodes 0 to 2, and not 3"):
            FrameChoice([3]).of(dataset)
        for wrong in (FrameChoice(count=0), FrameChoice(every=0), FrameChoice(seed=-1)):
            with pytest.raises(UsageError, match="at least"):
                wrong.of(dataset)


def test_observations_are_what_was_recorded(written: Written) -> None:
    predictor, function = replay(written, noisy(1))
    run(written, [predictor], FrameChoice([1], every=5))
    assert function.seen == [(1, 0), (1, 5)]
    for (episode, step), observation in zip(function.seen, function.observations, strict=True):
        drawn = written.episodes[episode]
        assert set(observation) == {"images", "state", "prompt"}
        assert set(observation["images"]) == {"observation.images.top", "wrist"}
        assert np.array_equal(observation["images"]["observation.images.top"], drawn.top[step])
        assert np.array_equal(observation["images"]["wrist"], drawn.wrist[step])
        assert observation["prompt"] == "open the drawer slowly"


def test_cameras_are_mapped(written: Written) -> None:
    changes = {"cameras": ("base_0_rgb", "wrist"), "required": ("base_0_rgb",)}
    predictor, function = replay(written, noisy(1), **changes)
    run(written, [predictor], FrameChoice(count=2), cameras={"base_0_rgb": "observation.images.top"})
    episode, step = function.seen[0]
    assert np.array_equal(function.observations[0]["images"]["base_0_rgb"], written.episodes[episode].top[step])
    with pytest.raises(DatasetError, match=r"needs the camera base_0_rgb.*--camera base_0_rgb=NAME"):
        run(written, [predictor], FrameChoice(count=2))
    with pytest.raises(UsageError, match="dataset has no camera 'nowhere'"):
        run(written, [predictor], FrameChoice(count=2), cameras={"base_0_rgb": "nowhere"})
    with pytest.raises(UsageError, match="No policy has a camera 'base'; there are base_0_rgb, wrist"):
        run(written, [predictor], FrameChoice(count=2), cameras={"base": "observation.images.top"})


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"dims": 7}, DatasetError, "gives 7 numbers an action and the dataset's action has 5"),
        ({"state_dims": 6}, DatasetError, "a state of 6 numbers and the dataset has 4"),
        ({"horizon": 9, "noise_shape": (9, 8)}, UsageError, "gave actions of shape"),
    ],
)
def test_what_does_not_fit_is_refused(
    written: Written, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    predictor, _ = replay(written, noisy(1), **changes)
    with pytest.raises(kind, match=message):
        run(written, [predictor], FrameChoice(count=2))


def test_pairs_that_can_not_see_the_same_noise_are_refused(written: Written) -> None:
    first, _ = replay(written, noisy(1), "first")
    other, _ = replay(written, noisy(1), "other", noise_shape=(6, 32))
    with pytest.raises(UsageError, match="only policies of one shape"):
        run(written, [first, other], FrameChoice(count=2))
    with pytest.raises(UsageError, match="3 policies"):
        run(written, [first, first, first], FrameChoice(count=2))
    with pytest.raises(UsageError, match="can't be dimension 5"):
        run(written, [first], FrameChoice(count=2), grippers=[5])


def test_actions_that_are_not_finite_fail_and_leave_the_figures(written: Written) -> None:
    def broken(episode: int, step: int, noise: np.ndarray) -> np.ndarray:
        error = noisy(1)(episode, step, noise)
        error[2, 1] = np.nan if (episode, step) == (0, 4) else error[2, 1]
        return error

    sound, _ = replay(written, noisy(1), "sound")
    found = run(written, [sound, replay(written, broken, "broken")[0]], FrameChoice(every=2))
    assert found.policies[1]["figures"]["not_finite"] == 1
    assert found.policies[1]["figures"]["frames"] == found.policies[0]["figures"]["frames"] - 1
    assert found.comparison is not None
    assert found.comparison["max_difference"] == 0
    assert found.verdict.status == "failed"
    assert not found.verdict.passed
    assert found.verdict.reasons == ("broken: 1 chunks have actions that aren't finite",)


def test_a_policy_that_refuses_counts_as_not_finite(written: Written) -> None:
    def refusing(episode: int, step: int, noise: np.ndarray) -> np.ndarray:
        if (episode, step) == (1, 2):
            raise GenerationError("The policy's actions are NaN or infinite.")
        return noisy(1)(episode, step, noise)

    found = run(written, [replay(written, refusing)[0]], FrameChoice([1], every=2))
    assert found.policies[0]["figures"]["not_finite"] == 1
    assert found.policies[0]["figures"]["frames"] == 3
    assert found.verdict.status == "failed"


def test_a_dimension_that_never_changes_is_left_out(tmp_path: Path) -> None:
    written = write_dataset(tmp_path / "set", "v2.1", (1, 1), 2)  # one frame an episode: nothing moves in one
    predictor, _ = replay(written, lambda *_: np.full((HORIZON, DIMS), 0.25))
    found = run(written, [predictor], FrameChoice([1]), thresholds={"mae": 0.1, "jump": 1.0})
    figures, dims = found.policies[0]["figures"], found.policies[0]["dimensions"]
    assert figures["mae"] is None
    assert figures["jerk"] is None
    assert [one["relative_mae"] for one in dims] == [None] * DIMS
    assert all(one["mae"] == pytest.approx(0.25, rel=1e-6) for one in dims)
    assert "dimensions that never change" in found.notes[0]
    assert found.verdict.status == "not checked"
    assert not found.verdict.passed
    assert found.verdict.reasons == tuple(f"replay: {key} could not be measured here" for key in ("mae", "jump"))


def test_two_evaluations_are_the_same(written: Written) -> None:
    def sampled(episode: int, step: int, noise: np.ndarray) -> np.ndarray:
        return 0.1 * noise[:, :DIMS]

    results = [
        run(written, [replay(written, sampled)[0]], FrameChoice(count=9, seed=seed)).to_json() for seed in (4, 4, 5)
    ]
    assert results[0] == results[1]
    assert results[0]["policies"][0]["figures"]["mae"] != results[2]["policies"][0]["figures"]["mae"]
