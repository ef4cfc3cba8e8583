"""`eval --task` with bundles of a golden policy, through the server: exact actions, exit codes, refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.cli import main
from edgewright.evaluate.tasks import Task, open_task
from edgewright.runtime.policy.policy import Policy

CHECKPOINT = Path(__file__).parents[1] / "goldens" / "policies" / "pi05" / "checkpoint"
#: The golden's robot has 8 numbers of state and 7 an action; the arm 4 and 2.
DIMS = {8: 4, 7: 2}
CAMERA = "observation.images.base_0_rgb"
COMMON = ["--task", "reacher", "--view", "drawn", "--quiet"]


def for_the_arm(folder: Path) -> Path:
    """Copy the golden checkpoint as one of a robot with the arm's dimensions: the first ones of its own."""
    from safetensors.numpy import save_file

    def smaller(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: smaller(one) for key, one in value.items()}
        if isinstance(value, list):
            return [DIMS[value[0]]] if len(value) == 1 and value[0] in DIMS else [smaller(one) for one in value]
        return value

    shutil.copytree(CHECKPOINT, folder)
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(smaller(json.loads(path.read_text()))))
    for path in folder.glob("policy_*.safetensors"):
        kept = {name: np.array(values) for name, values in tensors(path).items()}
        save_file({name: one[: DIMS.get(len(one), len(one))].copy() for name, one in kept.items()}, path)
    return folder


def tensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return dict(load_file(path))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("arm")
    checkpoint = for_the_arm(folder / "checkpoint")
    for recipe in ("float32", "int8"):
        command = ["deploy", str(checkpoint), "-o", str(folder / recipe), "--recipe", recipe, "--no-verify", "--quiet"]
        assert main(command) == 0
    return [folder / "float32", folder / "int8"]


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["eval", *map(str, arguments)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def by_hand(task: Task, policy: Policy, seed: int, episode: int, steps: int) -> list[float]:
    """Return the distances of an episode without server, buffer and guard."""
    scene, noise = np.random.SeedSequence([seed, episode]).spawn(2)
    random = np.random.default_rng(noise)
    task.reset(int(scene.generate_state(1)[0]))
    distances, queue = [task.distance()], []
    while len(distances) <= steps:
        if not queue:
            seen = task.observe()
            chunk = policy.infer(
                {"images": {CAMERA: seen["images"]["top"]}, "state": seen["state"], "prompt": seen["prompt"]},
                noise=random.standard_normal((policy.spec.horizon, policy.spec.model_action_dim), dtype=np.float32),
            )
            queue = list(chunk.actions[: policy.spec.steps_to_run])
        task.act(queue.pop(0))
        distances.append(task.distance())
    return distances


def test_the_robot_does_what_the_policy_says(bundles: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = [*bundles, *COMMON, "--camera", f"{CAMERA}=top", "--episodes", 2, "--seed", 5, "--json"]
    code, out, err = call(capsys, *command)
    assert code == 0, err
    data = json.loads(out)
    assert [policy["name"] for policy in data["policies"]] == ["float32", "int8"]
    task = open_task("reacher", "drawn")
    for bundle, found in zip(bundles, data["policies"], strict=True):
        assert found["masked"]
        policy = Policy.load(bundle)
        for episode in found["episodes"]:
            distances = by_hand(task, policy, 5, episode["episode"], episode["steps"])
            assert distances[0] == episode["start_distance"]
            assert distances[-1] == pytest.approx(episode["final_distance"], rel=1e-6)
            assert min(distances) == pytest.approx(episode["least_distance"], rel=1e-6)
    task.close()
    first, second = ([one["final_distance"] for one in policy["episodes"]] for policy in data["policies"])
    assert first != second  # int8 is another policy
    assert data["comparison"]["success"]["episodes"] == 2
    assert json.loads(call(capsys, *command)[1])["policies"][0]["episodes"] == data["policies"][0]["episodes"]


def test_what_is_printed(bundles: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "page.html"
    code, out, err = call(
        capsys, *bundles, *COMMON, "--camera", f"{CAMERA}=top", "--episodes", 1, "--delay", 2, "--page", page
    )
    assert code == 0, err
    assert "reacher: 1 episodes, seed 0, 25 actions a second, delay 2, images drawn" in out
    assert "0/1" in out
    assert "change of the success rate 0 [" in out
    assert "float32 and int8" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--task", "pusht"], 2, "There is no task 'pusht'; the tasks are reacher, reacher-torque"),
        (["--task", "reacher", "--dataset", "somewhere"], 2, "not allowed with"),
        ([], 2, "one of the arguments --dataset --task is required"),
        (["--task", "reacher", "--frames", "3"], 2, "--frames has no meaning with --task"),
        (["--task", "reacher", "--thresholds", "mae=1"], 2, "--thresholds has no meaning with --task"),
        (["--dataset", "somewhere", "--delay", "1"], 2, "--delay has no meaning with --dataset"),
        (["--task", "reacher", "--view", "painted"], 2, "--view"),
        (["--task", "reacher", "--delay", "-1"], 2, "--delay"),
        (["--task", "reacher", "--episodes", "0,3"], 2, "give one number from 1 upwards"),
        (["--task", "reacher", "--episodes", "0"], 2, "give one number from 1 upwards"),
        (["--task", "reacher", "--view", "drawn"], 3, "nowhere does not exist"),
    ],
)
def test_wrong_options(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, err = call(capsys, "nowhere", *arguments)
    assert (found, out) == (code, "")
    assert message in err


def test_policies_that_do_not_fit(bundles: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, bundles[0], *COMMON, "--episodes", 1)
    assert code == 3
    assert f"needs the camera {CAMERA}" in err
    assert main(["deploy", str(CHECKPOINT), "-o", str(tmp_path / "other"), "--no-verify", "--quiet"]) == 0
    code, _, err = call(capsys, tmp_path / "other", *COMMON, "--camera", f"{CAMERA}=top")
    assert code == 3
    assert "other takes a state of 8 numbers, and the robot of the task reacher has 4" in err


@pytest.mark.parametrize("package", ["gymnasium", "websockets"])
def test_without_the_extra(package: str) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from edgewright.cli import main; sys.exit(main({['eval', 'nowhere', *COMMON]}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert f"the package {package}" in done.stderr
    assert "pip install 'edgewright[host,simulate]'" in done.stderr
    assert "Traceback" not in done.stderr
