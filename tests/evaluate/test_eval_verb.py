"""The verb `eval`: what it prints, its exit codes, its page, and what it refuses, with a stand-in for the runtime."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dataset_files import Written, write_dataset
from predictor_cases import DIMS, HORIZON, Replay

from edgewright.bundle import Manifest, read_manifest, write_manifest
from edgewright.cli import main
from edgewright.runtime.policy.policy import policy_spec
from edgewright.runtime.policy.spec import PolicySpec
from policy_specs import small_spec

SPEC = small_spec(
    kind="smolvla",
    convention="lerobot",
    cameras=("observation.images.top", "observation.images.side"),
    required_cameras=("observation.images.top",),
    resize="torch-left-top",
    action_dim=DIMS,
    horizon=HORIZON,
    schedule="float64-linear",
    prompt="text-newline",
    tokenizer="tokenizer.json",
    state_norm="mean-std",
    action_norm="mean-std",
    steps_to_run=3,
)


def bundle(folder: Path, spec: PolicySpec | None = SPEC, status: str = "not run") -> Path:
    """A bundle that is nothing but a manifest."""
    model = {} if spec is None else {"policy": spec.to_json()}
    folder.mkdir(parents=True)
    empty: dict[str, Any] = {"source": {}, "recipe": {}, "stages": {}, "versions": {}}
    write_manifest(folder, Manifest(model=model, verdict={"status": status}, **empty))
    return folder


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write_dataset(tmp_path / "pushes", "v3.0", (9, 14), 8)


@pytest.fixture
def loaded(written: Written, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Policies whose bundle's name is their error: the calls of `load` are noted."""
    calls: list[tuple[str, int | None]] = []

    class Policy:
        def __init__(self, error: float, spec: PolicySpec) -> None:
            self.replay = Replay(written, lambda *_: np.full((HORIZON, DIMS), error))
            self.spec = spec

        @classmethod
        def load(cls, folder: str, threads: int | None = None) -> Policy:
            calls.append((Path(folder).name, threads))
            return cls(float(Path(folder).name.removeprefix("off-")), policy_spec(read_manifest(Path(folder))))

        def infer(self, observation: Any, noise: Any = None) -> Any:
            assert noise.shape == (HORIZON, 32)
            missing = set(self.spec.cameras) - set(observation["images"])
            assert observation.get("image_mask", {}) == dict.fromkeys(missing, False)
            return SimpleNamespace(actions=self.replay(observation, noise), notes=("it is dark", "it is cold"))

    monkeypatch.setattr("edgewright.evaluate.predictors.Policy", Policy)
    return calls


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["eval", *map(str, arguments)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def test_one_policy(written: Written, loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = bundle(tmp_path / "off-0.25")
    code, out, err = call(capsys, policy, "--dataset", written.folder, "--frames", "all", "--threads", 2, "--seed", 4)
    assert code == 0, err
    assert loaded == [("off-0.25", 2)]
    assert "pushes (v3.0): 23 frames of 2 episodes, seed 4" in out
    assert "verdict   not checked" in out
    assert "note: off-0.25: no image for the cameras observation.images.side, which are masked" in err
    assert err.count("note: off-0.25: it is dark\nnote: off-0.25: it is cold\n") == 1
    code, out, _ = call(capsys, policy, "--dataset", written.folder, "--every", 3, "--episodes", "1", "--json")
    data = json.loads(out)
    assert data["frames"] == {"count": 5, "episodes": [1], "seed": 0, "every": 3}
    assert [one["mae"] for one in data["policies"][0]["dimensions"]] == pytest.approx([0.25] * DIMS, rel=1e-5)
    assert data["policies"][0]["cameras"] == {"observation.images.top": "observation.images.top"}


def test_two_policies_with_bounds(
    written: Written, loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = [bundle(tmp_path / "off-0.01"), bundle(tmp_path / "off-0.02")]
    common = ["--dataset", written.folder, "--frames", 10]
    code, out, _ = call(capsys, *policies, *common, "--thresholds", "mae=0.5,difference=0.5")
    assert code == 0
    assert "verdict   passed" in out
    assert "change of error 0.0" in out
    page = tmp_path / "new" / "page.html"
    code, out, err = call(capsys, *policies, *common, "--thresholds", "difference=0.0001", "--page", page)
    assert code == 1
    assert "verdict   failed" in out
    assert "error: the evaluation is failed: the pair: difference" in err
    assert "off-0.01 and off-0.02" in page.read_text()
    code, _, err = call(capsys, *policies, *common, "--page", tmp_path)
    assert code == 4
    assert "can't be written" in err


def test_bounds_that_could_not_be_checked_are_no_pass(
    written: Written, loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text("jump: 100\n")
    code, out, err = call(
        capsys, bundle(tmp_path / "off-0.01"), "--dataset", written.folder, "--every", 7, "--thresholds", bounds
    )
    assert code == 1
    assert "verdict   not checked" in out
    assert "jump could not be measured here" in err


@pytest.mark.parametrize("name", ["same", "other"])
def test_two_bundles_of_one_name_are_told_apart(
    written: Written, loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    first = bundle(tmp_path / "one" / "off-0.1")
    second = first if name == "same" else bundle(tmp_path / "two" / "off-0.1")
    _, out, _ = call(capsys, first, second, "--dataset", written.folder, "--json")
    names = [one["name"] for one in json.loads(out)["policies"]]
    assert len(set(names)) == 2


def test_cameras_state_and_gripper_are_options(
    written: Written, loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = bundle(tmp_path / "off-0", replace(SPEC, cameras=("base",), required_cameras=("base",)))
    common = [policy, "--dataset", written.folder, "--json"]
    code, _, err = call(capsys, *common)
    assert code == 3
    assert "say which is meant with --camera base=NAME" in err
    code, out, _ = call(capsys, *common, "--camera", "base=observation.images.wrist", "--gripper", "1,4")
    assert code == 0
    for name in ("base=wrist", "observation.images.base=wrist"):
        code, short, _ = call(capsys, *common, "--camera", name, "--gripper", "1,4")
        assert (code, short) == (0, out)
    code, _, err = call(capsys, *common, "--camera", "base=wrist", "--camera", "observation.images.base=top")
    assert code == 2
    assert "The camera 'base' is given twice" in err
    data = json.loads(out)
    assert data["policies"][0]["cameras"] == {"base": "observation.images.wrist"}
    assert data["dataset"]["grippers"] == [1, 4]
    code, _, err = call(capsys, *common, "--camera", "base=observation.images.wrist", "--state", "action")
    assert code == 3
    assert "takes a state of 4 numbers and the dataset has 5" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--episodes", "1-x"], 2, "is not a list of numbers such as 0,3,5-8"),
        (["--episodes", "3-1"], 2, "is not a list of numbers"),
        (["--episodes", "0,7"], 3, "episodes 0 to 1, and not 7"),
        (["--frames", "0"], 2, "'0' is not a whole number from 1"),
        (["--frames", "some"], 2, "'some' is not a whole number"),
        (["--every", "-1"], 2, "--every"),
        (["--camera", "base"], 2, "is not NAME=FEATURE"),
        (["--camera", "a=b", "--camera", "a=c"], 2, "is not NAME=FEATURE with a new name"),
        (["--thresholds", "mea=1"], 2, "unknown figure 'mea'"),
        (["--thresholds", "difference=1"], 2, "give a second one"),
        (["--action", "reward"], 3, "no numbers under reward"),
        (["--gripper", "9"], 2, "can't be dimension 9"),
        (["--dataset", "nowhere"], 3, "no meta/info.json"),
    ],
)
def test_wrong_options(
    written: Written,
    loaded: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    found, out, err = call(capsys, bundle(tmp_path / "off-0"), "--dataset", written.folder, *arguments)
    assert (found, out) == (code, "")
    assert message in err


def test_a_failed_verdict_is_told(
    written: Written, loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles = [bundle(tmp_path / "off-1"), bundle(tmp_path / "off-2", status="failed")]
    code, _, err = call(capsys, *bundles, "--dataset", written.folder, "--frames", 2)
    assert code == 0
    assert [line for line in err.splitlines() if "verification" in line] == [
        "warning: off-2 failed its verification; see reports/verify.json in it"
    ]


def test_wrong_bundles(written: Written, loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--dataset", written.folder]
    code, _, err = call(capsys, bundle(tmp_path / "llm", None), *common)
    assert code == 3
    assert "holds no robot policy" in err
    code, _, err = call(capsys, tmp_path / "nowhere", *common)
    assert code == 3
    assert "does not exist" in err
    policies = [bundle(tmp_path / f"off-{i}") for i in range(3)]
    code, _, err = call(capsys, *policies, *common)
    assert code == 2
    assert "3 bundles were given" in err
    longer = bundle(tmp_path / "off-9", replace(SPEC, horizon=8))
    code, _, err = call(capsys, policies[0], longer, *common)
    assert code == 2
    assert "only policies of one shape" in err
