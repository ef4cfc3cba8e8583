"""Bundles of a golden policy, float and int8, are evaluated by the command line as their own `infer` says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dataset_files import Written, write_dataset

from edgewright.cli import main
from edgewright.evaluate.frames import noise_of
from edgewright.runtime.policy.policy import Policy

CHECKPOINT = Path(__file__).parents[1] / "goldens" / "policies" / "pi05" / "checkpoint"
SLOTS = {"base_0_rgb": "top", "left_wrist_0_rgb": "wrist"}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("policies")
    for recipe in ("float32", "int8"):
        command = ["deploy", str(CHECKPOINT), "-o", str(folder / recipe), "--recipe", recipe, "--no-verify", "--quiet"]
        assert main(command) == 0
    return [folder / "float32", folder / "int8"]


def chunk(policy: Policy, written: Written, seed: int, step: int) -> np.ndarray:
    """Ask a policy itself about a frame of the first episode."""
    drawn = written.episodes[0]
    pictures = {"top": drawn.top, "wrist": drawn.wrist}
    observation = {
        "images": {f"observation.images.{slot}": pictures[camera][step] for slot, camera in SLOTS.items()},
        "state": drawn.state[step],
        "prompt": "push the block",
    }
    noise = noise_of(seed, step, (policy.spec.horizon, policy.spec.model_action_dim))
    return np.asarray(policy.infer(observation, noise=noise).actions, np.float64)


@pytest.mark.parametrize("seed", [0, 5])
def test_two_bundles_side_by_side(
    bundles: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    written = write_dataset(tmp_path / "set", "v2.1", (9, 4), 3 + seed, dims=(8, 7))
    cameras = [f"--camera=observation.images.{slot}=observation.images.{camera}" for slot, camera in SLOTS.items()]
    command = [
        "eval",
        *map(str, bundles),
        "--dataset",
        str(written.folder),
        "--episodes",
        "0",
        "--every",
        "4",
        *cameras,
    ]
    capsys.readouterr()
    assert main([*command, "--json", "--quiet", "--seed", str(seed)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in data["policies"]] == ["float32", "int8"]
    policies = [Policy.load(bundle) for bundle in bundles]
    chunks = [[chunk(policy, written, seed, step) for step in (0, 4, 8)] for policy in policies]
    recorded = written.episodes[0].action.astype(np.float64)
    width = np.ptp(recorded, 0)
    for one, mine in zip(data["policies"], chunks, strict=True):
        errors = [np.abs(mine[i][: 9 - 4 * i] - recorded[4 * i : 4 * i + 12]) / width for i in range(3)]
        assert one["figures"]["mae"] == pytest.approx(np.concatenate(errors).mean(), rel=1e-4)
    difference = np.abs(np.array(chunks[1]) - np.array(chunks[0])) / width
    assert data["comparison"]["difference"] == pytest.approx(difference.mean(), rel=1e-3)
    assert 1e-5 < data["comparison"]["difference"] < 0.1
    assert np.isfinite(data["comparison"]["mae_increase"]["high"])
