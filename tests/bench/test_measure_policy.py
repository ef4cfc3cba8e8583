from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import policy_goldens as goldens
from edgewright.bench.policy import CAMERA_PIXELS, PolicyPlan, latencies, measure_policy, synthetic_observation
from edgewright.build.pipeline import deploy
from edgewright.errors import BundleError, UsageError
from edgewright.runtime.policy.spec import Statistics


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = goldens.POLICY_GOLDENS / "pi05" / "checkpoint"
    return deploy(source, tmp_path_factory.mktemp("bench") / "bundle", recipe="float32", verify=False).path


def test_percentiles_are_over_chunks_and_steps() -> None:
    timings = [
        {"prepare": 1.0, "vision": 2.0, "prefix": 10.0 * i, "denoise": [float(i), 100.0], "total": 200.0 + i}
        for i in range(5)
    ]
    found = latencies(timings)
    assert list(found) == ["prepare", "vision", "prefix", "denoise step", "denoise", "total"]
    assert found["prefix"].p50_ms == 20.0
    assert found["prefix"].p95_ms == pytest.approx(38.0)
    assert found["prefix"].p99_ms == pytest.approx(39.6)
    assert (found["denoise step"].low_ms, found["denoise step"].high_ms) == (0.0, 100.0)
    assert found["denoise step"].p50_ms == 52.0  # of 0, 1, 2, 3, 4 and five times 100
    assert found["denoise"].p50_ms == 102.0
    assert found["total"].p50_ms == 202.0
    whole = [{**one, "denoise": one["denoise"][:1]} for one in timings]
    assert "denoise step" not in latencies(whole)


def test_observations_are_what_the_policy_was_trained_on() -> None:
    checkpoint = goldens.policy_checkpoint("pi05_libero")
    spec, statistics = checkpoint.spec, checkpoint.statistics
    low, high = (statistics.state[name][: spec.state_dim] for name in ("q01", "q99"))
    for seed in range(5):
        one, again = (
            synthetic_observation(spec, statistics, np.random.default_rng(seed), cameras=spec.cameras[:2])
            for _ in range(2)
        )
        assert list(one["images"]) == list(spec.cameras[:2])
        for name, image in one["images"].items():
            assert (image.shape, image.dtype) == ((*CAMERA_PIXELS, 3), np.uint8)
            np.testing.assert_array_equal(image, again["images"][name])
        slack = 1e-6
        assert (one["state"] >= low - slack).all()
        assert (one["state"] <= high + slack).all()
        assert one["state"].dtype == np.float32
        np.testing.assert_array_equal(one["state"], again["state"])


def test_the_state_follows_the_statistics_there_are() -> None:
    spec = replace(goldens.policy_checkpoint("pi05").spec, state_dim=3)
    mean, std = np.array([10.0, -20.0, 0.0]), np.array([1.0, 2.0, 0.0])

    def state(known: dict[str, np.ndarray], seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        return np.asarray(synthetic_observation(spec, Statistics(known, {}), random, cameras=())["state"])

    states = np.array([state({"mean": mean, "std": std}, seed) for seed in range(20)])
    assert (abs(states - mean) <= std + 1e-5).all()
    assert states[:, 0].std() > 0.1
    states = np.array([state({"min": mean - 5, "max": mean + 5, "mean": -mean, "std": std}, s) for s in range(20)])
    assert (abs(states - mean) <= 5 + 1e-5).all()
    assert (abs(state({}, 0)) <= 0.5).all()
    states = np.array([state({"q01": mean, "q99": mean, "min": mean - 5, "max": mean + 5}, s) for s in range(3)])
    np.testing.assert_array_equal(states, [mean] * 3)
    without = synthetic_observation(
        replace(spec, state_dim=0), Statistics({}, {}), np.random.default_rng(0), cameras=()
    )
    assert "state" not in without


def test_required_cameras_come_first() -> None:
    spec = replace(
        goldens.policy_checkpoint("pi05").spec, cameras=("left", "base", "right"), required_cameras=("base",)
    )
    assert PolicyPlan().names(spec) == ("left", "base", "right")
    assert PolicyPlan(cameras=1).names(spec) == ("base",)
    assert PolicyPlan(cameras=2).names(spec) == ("left", "base")
    for count in (0, 4):
        with pytest.raises(UsageError, match=f"3 cameras, of which 1 must have an image.*--cameras {count}"):
            PolicyPlan(cameras=count).names(spec)


def test_a_measurement_is_complete_and_consistent(bundle: Path) -> None:
    plan = PolicyPlan(repeats=4, cameras=2, seed=7)
    result = measure_policy(bundle, plan, threads=1)
    assert (result.plan, result.kind, result.steps, result.threads) == (plan, "pi05", 10, 1)
    assert result.cameras == ("observation.images.base_0_rgb", "observation.images.left_wrist_0_rgb")
    assert result.prefix_tokens == result.prompt_tokens + 2 * 4
    files = [path for path in bundle.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert result.bundle_bytes == sum(path.stat().st_size for path in files)
    for one in result.latencies.values():
        assert 0 < one.low_ms <= one.p50_ms <= one.p95_ms <= one.p99_ms <= one.high_ms
    parts = ("prepare", "vision", "prefix", "denoise")
    assert sum(result.latencies[name].low_ms for name in parts) <= result.latencies["total"].high_ms
    assert result.latencies["denoise"].low_ms >= 10 * result.latencies["denoise step"].low_ms
    assert result.peak_rss_bytes is not None
    assert result.peak_anonymous_bytes is not None
    assert 0 < result.peak_anonymous_bytes < result.peak_rss_bytes
    data = json.loads(json.dumps(result.to_json()))
    assert data["plan"]["cameras"] == 2
    assert data["cameras"] == list(result.cameras)
    assert data["camera_pixels"] == [480, 640]
    assert data["latencies"]["total"]["p50_ms"] == result.latencies["total"].p50_ms


def test_prompt_tokens_are_those_of_the_prompt(bundle: Path) -> None:
    short, long = (
        measure_policy(bundle, PolicyPlan(repeats=1, prompt=prompt), threads=1)
        for prompt in ("go", "go to the red block and pick it up")
    )
    assert short.prompt_tokens < long.prompt_tokens
    assert long.prefix_tokens - short.prefix_tokens == long.prompt_tokens - short.prompt_tokens


def test_no_policy(tmp_path: Path) -> None:
    llama = goldens.POLICY_GOLDENS.parent / "text" / "llama"
    bundle = deploy(llama, tmp_path / "bundle", recipe="float32", verify=False).path
    with pytest.raises(BundleError, match="holds no robot policy"):
        measure_policy(bundle)
