"""Robot observations: frames and single samples, cameras that agree, and what the state never does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibration_data import ASCII
from safetensors.numpy import load_file, save_file

from edgewright.calibration import read_observations, read_shards, text_of, write_shards
from edgewright.errors import CalibrationDataError

TOP, WRIST = "observation.images.top", "observation.images.wrist"


def frame(seed: int, **more: Any) -> dict[str, np.ndarray]:
    """A sample: 5 state dimensions of which the last never changes, two cameras, a chunk of 3 actions."""
    rng = np.random.default_rng(seed)
    state = rng.normal(size=5).astype(np.float32)
    state[4] = 0.5
    sample = {
        "observation.state": state,
        TOP: rng.integers(0, 256, (7, 9, 3), dtype=np.uint8),
        WRIST: rng.integers(0, 256, (3, 5, 6), dtype=np.uint8),
        "action": rng.normal(size=(3, 4)).astype(np.float32),
        **more,
    }
    return {name: array for name, array in sample.items() if array is not ...}


def save(folder: Path, name: str, tensors: dict[str, np.ndarray], task: Any = None) -> None:
    folder.mkdir(exist_ok=True)
    save_file({key: np.array(array, order="C") for key, array in tensors.items()}, folder / f"{name}.safetensors")
    if task is not None:
        (folder / f"{name}.json").write_text(json.dumps({"task": task}), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        save(tmp_path / "robot", f"s{number}", frame(number), f"task {number % 2}")
    return tmp_path / "robot"


def by_state(samples: Any) -> list[dict[str, np.ndarray]]:
    return sorted(samples, key=lambda sample: float(sample["observation.state"][0]))


def test_single_samples(folder: Path) -> None:
    got = by_state(read_observations(folder, ASCII))
    wanted = by_state(frame(number) for number in range(4))
    for sample, made in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(sample["observation.state"], made["observation.state"])
        np.testing.assert_array_equal(sample["action"], made["action"])
        np.testing.assert_array_equal(sample[TOP], made[TOP])
        np.testing.assert_array_equal(sample[WRIST], made[WRIST].transpose(1, 2, 0))
        assert sample["input_ids"].tolist() == ASCII.encode(text_of(sample))


@pytest.mark.parametrize("with_state", [True, False])
def test_frames_are_the_samples(folder: Path, tmp_path: Path, with_state: bool) -> None:
    """An episode with an axis of frames is the same data as a file a frame."""
    frames = [frame(number, **({} if with_state else {"observation.state": ...})) for number in range(4)]
    for number, made in enumerate(frames):
        save(tmp_path / "single", f"{number}", made, f"task {number}")
    stacked = {name: np.stack([made[name] for made in frames]) for name in frames[0]}
    save(tmp_path / "episode", "0", stacked, [f"task {number}" for number in range(4)])
    one, other = (sorted(read_observations(tmp_path / name, seed=2), key=text_of) for name in ("single", "episode"))
    for first, second in zip(one, other, strict=True):
        assert first.keys() == second.keys()
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name])


def test_the_record(folder: Path) -> None:
    samples = read_observations(folder, ASCII)
    list(samples)
    record = samples.record
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["kind"] == "observations"
    states = np.stack([frame(number)["observation.state"] for number in range(4)])
    coverage = record["coverage"]
    state = coverage["observation.state"]
    assert state["samples"] == 4
    np.testing.assert_allclose(state["min"], states.min(0), rtol=1e-5)
    np.testing.assert_allclose(state["max"], states.max(0), rtol=1e-5)
    np.testing.assert_allclose(state["mean"], states.mean(0), rtol=1e-4)
    assert state["degenerate"] == [4]
    actions = np.concatenate([frame(number)["action"] for number in range(4)])
    np.testing.assert_allclose(coverage["action"]["max"], actions.max(0), rtol=1e-5)
    assert coverage["action"]["shapes"] == {"3x4": 4}
    assert coverage[WRIST]["shapes"] == {"5x6x3": 4}
    assert coverage["input_ids"]["distinct_tokens"] == len(set("task 01"))
    assert record["notes"] == ["observation.state: dimension 4 never changes"]
    assert len(record["sources"]) == 8


def test_written_and_read_again(folder: Path, tmp_path: Path) -> None:
    samples = read_observations(folder)
    write_shards(tmp_path / "set", samples, lambda: samples.record, shard_bytes=300)
    stored = read_shards(tmp_path / "set")
    assert stored.record == samples.record
    for read, made in zip(stored.samples(), read_observations(folder), strict=True):
        assert read.keys() == made.keys()
        for name, array in made.items():
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)


def test_a_missing_camera(folder: Path) -> None:
    save(folder, "s2", frame(2, **{WRIST: ...}))
    with pytest.raises(
        CalibrationDataError, match=r"camera observation\.images\.wrist is missing in s2\.safetensors \(1 of 4 files\)"
    ):
        read_observations(folder)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"observation.state": np.zeros(6, np.float32)}, r"observation\.state is float32 \[6\] in s3\.safetensors"),
        ({"observation.state": np.zeros(5, np.float64)}, r"observation\.state is float64 \[5\]"),
        ({TOP: np.zeros((7, 8, 3), np.uint8)}, r"observation\.images\.top is uint8 \[7, 8, 3\] in s3\.safetensors"),
        ({"action": ...}, r"The field action is missing in s3\.safetensors"),
        ({TOP: np.zeros((7, 9, 3), np.float32)}, "in float32: store pixels as uint8"),
        ({TOP: np.zeros((7, 9), np.uint8)}, r"of shape \[7, 9\]: it needs three axes"),
        ({"action": np.zeros((2, 2, 2), np.float32)}, "it needs one or two axes"),
        ({"action": np.zeros((0, 4), np.float32)}, r"of shape \[0, 4\]"),
        ({"observation.state": np.zeros((), np.float32)}, r"of shape \[\]: it needs one axis"),
        ({"observation.state": np.zeros((2, 5), np.float32)}, "axes a frame"),
    ],
)
def test_samples_that_disagree(folder: Path, more: dict[str, Any], said: str) -> None:
    save(folder, "s3", frame(3, **more), "task")
    with pytest.raises(CalibrationDataError, match=said):
        read_observations(folder)


def test_frames_of_different_number(tmp_path: Path) -> None:
    tensors = {"observation.state": np.zeros((3, 2), np.float32), "action": np.zeros((4, 2), np.float32)}
    save(tmp_path / "a", "0", tensors)
    with pytest.raises(CalibrationDataError, match=r"features of \[3, 4\] frames"):
        read_observations(tmp_path / "a")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite(folder: Path, wrong: float) -> None:
    state = frame(1)["observation.state"].copy()
    state[2] = wrong
    save(folder, "s1", frame(1, **{"observation.state": state}), "task")
    with pytest.raises(CalibrationDataError, match=r"Dimension 2 of observation\.state is not finite in sample [1-4]:"):
        list(read_observations(folder))


def test_tasks(folder: Path) -> None:
    (folder / "s1.json").unlink()
    with pytest.raises(CalibrationDataError, match=r"s1\.safetensors has no task .*: write s1\.json"):
        read_observations(folder)
    for wrong in (3, ["a", "b"], [4], None, "\ud800"):
        (folder / "s1.json").write_text(json.dumps({"task": wrong}), encoding="utf-8")
        with pytest.raises(CalibrationDataError, match=r"s1\.json has a task"):
            read_observations(folder)
    for path in folder.glob("*.json"):
        path.unlink()
    samples = read_observations(folder, ASCII)
    assert "text" not in next(iter(samples))
    list(samples)
    assert "there are no tasks, so text is not exercised" in samples.record["notes"]


def test_what_is_neither_observation_nor_action(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        save_file({**load_file(path), "timestamp": np.zeros(1, np.float32)}, path)
    samples = read_observations(folder)
    assert "timestamp" not in next(iter(samples))
    list(samples)
    assert "left out, neither observation nor action: 'timestamp'" in samples.record["notes"]
    save(folder, "s0", {"qpos": np.zeros(3, np.float32)}, "task")
    with pytest.raises(CalibrationDataError, match=r"s0\.safetensors holds no observation \(it has 'qpos'\)"):
        read_observations(folder)


@pytest.mark.parametrize("shape", [(3, 5, 3), (6, 5, 7), (1, 5, 4)])
def test_channels_that_can_not_be_told(shape: tuple[int, ...], tmp_path: Path) -> None:
    save(tmp_path / "a", "0", frame(0, **{TOP: np.zeros(shape, np.uint8)}))
    with pytest.raises(CalibrationDataError, match="the axis of 1, 3 or 4 channels can't be told"):
        read_observations(tmp_path / "a")


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 6, 3), "HWC"),
        ((1, 6, 3), "HWC"),
        ((3, 6, 4), "CHW"),
        ((3, 5, 1), "CHW"),
        ((1, 5, 7), "CHW"),
        ((5, 7, 4), "HWC"),
    ],
)
def test_layouts(shape: tuple[int, ...], layout: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (2, *shape), dtype=np.uint8)
    for number in range(2):
        save(tmp_path / "a", str(number), frame(number, **{TOP: pixels[number]}))
    got = {sample[TOP].tobytes() for sample in read_observations(tmp_path / "a")}
    assert got == {(p if layout == "HWC" else p.transpose(1, 2, 0)).tobytes() for p in pixels}


def test_all_alike_empty_and_dark(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "same", f"{number}", frame(7))
    with pytest.raises(CalibrationDataError, match="All 3 calibration samples are identical"):
        list(read_observations(tmp_path / "same"))
    for number in range(3):
        save(tmp_path / "dark", f"{number}", frame(number, **{TOP: np.zeros((7, 9, 3), np.uint8)}))
    with pytest.raises(CalibrationDataError, match=r"observation\.images\.top shows a single colour in every sample"):
        list(read_observations(tmp_path / "dark"))
    (tmp_path / "none").mkdir()
    with pytest.raises(CalibrationDataError, match=r"holds no \.safetensors files"):
        read_observations(tmp_path / "none")
