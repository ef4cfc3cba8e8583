"""Closed loop: scripted policies drive the simulated arm through the real server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reacher_policies import HORIZON, RUN, Chunk, Looks, Wanders, angles_to, pushes, seen_target, tip_of
from test_evaluation_page import read

from edgewright.errors import HostError, MissingExtraError, ObservationError, UsageError
from edgewright.evaluate.closed_loop import Driver, Options, evaluate_task
from edgewright.evaluate.closed_page import closed_page
from edgewright.evaluate.closed_results import ClosedLoop
from edgewright.evaluate.contenders import Contender
from edgewright.evaluate.tasks import TASKS, Task, open_task
from edgewright.runtime.policy.spec import Limits
from edgewright.serve import Log, PolicyClient, RemoteError, ServeError, serving


@pytest.fixture(scope="module")
def task() -> Iterator[Task]:
    opened = open_task("reacher", "drawn")
    yield opened
    opened.close()


def run(task: Task, *policies: Any, limits: Limits | None = None, **options: Any) -> ClosedLoop:
    """Evaluate policies, named by their class."""
    contenders = [
        Contender(type(policy).__name__, policy, limits or Limits(), getattr(policy, "begin", None))
        for policy in policies
    ]
    return evaluate_task(task, contenders, Options(**{"episodes": 4, **options}))


def without_times(found: ClosedLoop) -> dict[str, Any]:
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    data.pop("notes")
    for policy in data["policies"]:
        assert policy.pop("latency_ms")["p50"] > 0
        assert policy.pop("policy_ms")["p50"] > 0
    return data


@pytest.mark.parametrize("seed", [0, 5])
def test_a_policy_that_can_and_one_that_can_not(task: Task, seed: int) -> None:
    looks = Looks()
    found = run(task, looks, Wanders(), episodes=16, seed=seed)
    good, bad = found.policies
    assert good["success"]["rate"] >= 0.9
    assert bad["success"]["rate"] <= 0.15
    assert looks.prompts == {"move the fingertip to the red target"}
    assert looks.calls == good["calls"] + 1  # one before the first episode
    assert (good["horizon"], good["run"]) == (HORIZON, RUN)
    for policy in found.policies:
        for one in policy["episodes"]:
            assert one["calls"] == -(-one["steps"] // RUN)
            assert one["chunks"] == {"executed": one["steps"]}
            assert one["success"] == (one["steps_to_success"] is not None)
            assert one["steps"] == (one["steps_to_success"] or task.spec.steps)
            assert one["success"] <= (one["final_distance"] < task.spec.tolerance)
    starts = [[one["start_distance"] for one in policy["episodes"]] for policy in found.policies]
    assert starts[0] == starts[1]
    assert len(set(starts[0])) == 16
    pair = found.comparison["success"] if found.comparison else {}
    assert pair["difference"] == bad["success"]["rate"] - good["success"]["rate"]
    assert pair["high"] < -0.4
    assert found.comparison is not None
    assert found.comparison["final_distance"]["low"] > 0.05


def test_the_same_seeds_give_the_same_result(task: Task) -> None:
    first, second = (without_times(run(task, Wanders(), Looks(), seed=3)) for _ in range(2))
    assert first == second
    other = without_times(run(task, Wanders(), Looks(), seed=4))
    assert other["policies"] != first["policies"]
    # An episode does not depend on how many there are before it, nor on the policy beside it.
    alone = without_times(run(task, Wanders(), seed=3, episodes=2))
    assert alone["policies"][0]["episodes"] == first["policies"][0]["episodes"][:2]


def test_a_policy_of_torques() -> None:
    task = open_task("reacher-torque", "drawn")
    try:
        found = run(task, Looks(pushes, horizon=1, steps_to_run=1), episodes=8, seed=2)
    finally:
        task.close()
    assert found.policies[0]["success"]["rate"] == 1.0
    assert found.policies[0]["calls"] == sum(one["steps"] for one in found.policies[0]["episodes"])


@pytest.mark.parametrize("seed", [1, 8])
def test_what_is_drawn_is_where_it_is(task: Task, seed: int) -> None:
    task.reset(seed)
    seen = task.observe()
    target = seen_target(seen["images"]["top"])
    assert target is not None
    assert seen["images"]["top"].dtype == np.uint8
    assert np.linalg.norm(tip_of(seen["state"][:2]) - target) == pytest.approx(task.distance(), abs=0.002)
    for _ in range(30):
        task.act(angles_to(target))
    np.testing.assert_allclose(task.observe()["state"], [*angles_to(target), 0, 0], atol=0.01)
    assert task.distance() < 0.004


def test_rendered_images_show_the_same_scene(task: Task) -> None:
    try:
        rendered = open_task("reacher")
    except HostError as error:
        pytest.skip(str(error))
    try:
        for seed in (4, 9):
            task.reset(seed)
            rendered.reset(seed)
            drawn, other = task.observe()["images"]["top"], rendered.observe()["images"]["top"]
            assert drawn.shape == other.shape
            first, second = seen_target(drawn), seen_target(other)
            assert first is not None
            assert second is not None
            np.testing.assert_allclose(first, second, atol=0.008)
        found = run(rendered, Looks(), seed=1)
    finally:
        rendered.close()
    assert found.task["view"] == "rendered"
    assert found.policies[0]["success"]["successes"] >= 3


def test_a_delay_is_paid_for(task: Task) -> None:
    at_once, late = (run(task, Looks(), seed=6, delay=delay) for delay in (0, 3))
    for one, other in zip(at_once.policies[0]["episodes"], late.policies[0]["episodes"], strict=True):
        assert other["chunks"]["starved"] == 3  # nothing to do until the first chunk comes
        assert other["chunks"]["missed"] > 0
        assert other["steps_to_success"] >= one["steps_to_success"] + 2
    distances = late.runs[0].episodes[0].distances
    np.testing.assert_allclose(distances[:4], distances[0], atol=1e-3)  # the arm stands meanwhile
    assert abs(distances[6] - distances[0]) > 0.02
    with pytest.raises(UsageError, match="plans 10 actions, so none is left after a delay of 10"):
        run(task, Looks(), delay=10)


def test_guards_intervene_and_are_counted(task: Task) -> None:
    free = run(task, Looks(), seed=6).policies[0]
    slow = run(task, Looks(), seed=6, limits=Limits(rate=(0.2, 0.2))).policies[0]
    assert free["guard"] == {}
    assert slow["guard"]["rate"] > 10
    assert slow["steps_to_success"]["mean"] > free["steps_to_success"]["mean"] + 2
    shut = run(task, Looks(), seed=6, limits=Limits(minimum=(-0.1, -0.1), maximum=(0.1, 0.1))).policies[0]
    assert shut["guard"]["range"] > 20
    assert shut["success"]["successes"] == 0


def test_a_guard_that_stops_ends_the_episode(task: Task) -> None:
    found = run(task, Looks(), seed=6, delay=4, limits=Limits(deadline_ms=90.0, fallback="stop"))
    policy = found.policies[0]
    assert policy["stopped"] == 4
    assert policy["success"]["successes"] == 0
    assert policy["guard"] == {"deadline": 12}  # of the first inference too, in front of its chunk and with it
    assert [one["steps"] for one in policy["episodes"]] == [9] * 4  # the second inference, asked for at 5, is late at 8
    assert any("its guard stopped the robot in 4 episodes" in note for note in found.notes)


class Falters(Looks):
    """Refuses every third observation."""

    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        chunk = super().infer(observation)
        if self.calls % 3 == 0:
            raise ObservationError("The image is too dark: light the scene.")
        return chunk


def test_refused_inferences_are_counted_and_the_robot_goes_on(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(task, Falters(), seed=1, episodes=6)
    policy = found.policies[0]
    assert policy["refused"] == (policy["calls"] + 1) // 3
    assert policy["success"]["rate"] == 1.0
    assert any("inferences were refused" in note for note in found.notes)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # of many
    assert "too dark" in lines[0]


class Mutters(Looks):
    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        chunk: Any = super().infer(observation)
        chunk.notes = ("it is dark", f"it is {'late' if self.calls % 2 else 'early'}")
        return chunk


def test_what_a_policy_notes_is_told_once(task: Task) -> None:
    found = run(task, Mutters(), Looks(), seed=1)
    assert sorted(found.policies[0]["notes"]) == ["it is dark", "it is early", "it is late"]
    assert found.policies[1]["notes"] == []
    assert sum("it is dark" in note for note in found.notes) == 1


class Never(Looks):
    def infer(self, observation: Mapping[str, Any], /) -> Chunk:
        raise ObservationError("The image is too dark: light the scene.")


def test_a_policy_that_never_answers_is_an_error(task: Task) -> None:
    with pytest.raises(RemoteError, match="too dark"):
        run(task, Never())


def test_a_server_that_goes_away(task: Task) -> None:
    policy = Looks()
    with serving(policy, log=Log(quiet=True)) as server, PolicyClient(port=server.port, timeout_s=60) as client:
        driver = Driver(task, client, Contender("looks", policy), Options(episodes=7))
        assert driver.episode(0).steps_to_success is not None
        server.stop()
        with pytest.raises(ServeError, match="The server of looks was lost in episode 2 of 7, at action"):
            driver.episode(1)


@pytest.mark.parametrize(
    ("told", "cameras", "error", "message"),
    [
        ({"state_dim": 8}, {}, ObservationError, "takes a state of 8 numbers, and the robot of the task reacher has 4"),
        ({"action_dim": 7}, {}, ObservationError, "gives 7 numbers an action, and the robot of the task reacher has 2"),
        ({"cameras": ["top", "wrist"], "required_cameras": ["wrist"]}, {}, ObservationError, "--camera wrist=NAME"),
        ({"cameras": ["base"], "required_cameras": []}, {}, ObservationError, "needs the camera base"),
        ({}, {"wrist": "top"}, UsageError, "Looks has no camera 'wrist'; it has top"),
        ({}, {"top": "side"}, UsageError, "task reacher has no camera 'side'; it has top"),
    ],
)
def test_policies_that_do_not_fit(
    task: Task, told: dict[str, Any], cameras: dict[str, str], error: type[Exception], message: str
) -> None:
    policy = Looks(**told)
    with pytest.raises(error, match=message):
        run(task, policy, cameras=cameras)
    assert policy.calls == 0


def test_actions_of_another_robot_are_refused_though_nothing_was_told(task: Task) -> None:
    policy = Looks(lambda state, target: np.zeros((6, 3)))
    policy.metadata = {}
    with pytest.raises(ObservationError, match="gives 3 numbers an action, and the robot of the task reacher takes 2"):
        run(task, policy)


def test_cameras_of_other_names(task: Task) -> None:
    named = Looks(cameras=["observation.images.top", "extra"], required_cameras=["observation.images.top"])
    found = run(task, named)
    assert found.policies[0]["success"]["rate"] == 1.0
    assert named.cameras == {"observation.images.top"}
    assert found.notes[0] == "Looks: no image for the cameras extra, which are masked"
    for own, given in (("base", {"base": "top"}), ("observation.images.base", {"base": "observation.images.top"})):
        base = Looks(cameras=[own], required_cameras=[own])
        assert run(task, base, cameras=given).policies[0]["cameras"] == {own: "top"}
        assert base.cameras == {own}


def test_wrong_questions(task: Task) -> None:
    with pytest.raises(UsageError, match=f"There is no task 'pusht'; the tasks are {', '.join(TASKS)}"):
        open_task("pusht")
    with pytest.raises(UsageError, match="they are rendered or drawn"):
        open_task("reacher", "painted")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="3 policies"):
        run(task, Looks(), Looks(), Looks())
    for wrong in ({"episodes": 0}, {"seed": -1}, {"delay": -1}, {"timeout_s": 0.0}):
        with pytest.raises(UsageError, match="A run needs an episode"):
            Options(**wrong)


@pytest.mark.parametrize("package", ["gymnasium", "mujoco"])
def test_without_the_simulator(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"package {package}.*pip install 'edgewright\[host,simulate\]'"):
        open_task("reacher", "drawn")


@pytest.mark.parametrize("count", [1, 2])
def test_the_page(task: Task, tmp_path: Path, count: int) -> None:
    found = run(task, *[Looks(), Wanders()][:count], episodes=7)
    html = closed_page(found)
    text, images = read(html)
    assert html.count("<polyline") == 7 * count
    assert len(images) == 6 * (1 + count)
    assert "task reacher" in text
    assert "success rate, 95 % interval 1 [0.646, 1]" in text
    assert f"episode 5 Looks: success after {found.runs[0].episodes[5].steps_to_success} actions" in text
    assert ("On the same episodes" in text) == (count == 2)
