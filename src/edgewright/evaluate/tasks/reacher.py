"""A two-joint arm in a plane that reaches for a target: Gymnasium's Reacher-v5, simulated by MuJoCo.

The policy feels the joints only; where the target is it must see.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edgewright.errors import HostError, MissingExtraError, first_line
from edgewright.evaluate.tasks.task import Floats, Image, TaskSpec, View

#: Images are squares of so many pixels that show so many meters around the arm's base.
PIXELS, REACH_M = 128, 0.24
_PACKAGES = ("gymnasium", "mujoco")
#: Lengths of the links in meters, the second one to the middle of the fingertip.
_LINKS_M = (0.1, 0.11)
_ARM, _TIP, _TARGET, _GROUND = (0, 90, 150), (0, 200, 150), (230, 50, 50), (225, 225, 225)
#: The joint controller: critically damped at 15 rad/s for the arm's armature of 1 and gear of 200.
_STIFFNESS, _DAMPING = 15.0**2 / 200.0, (2 * 15.0 - 1.0) / 200.0


class Reacher:
    """The arm driven by joint angles: a controller in the simulation follows the angle that was last sent."""

    spec: ClassVar[TaskSpec] = TaskSpec(
        name="reacher",
        what="a two-joint arm moves its fingertip to a target; actions are joint angles",
        prompt="move the fingertip to the red target",
        cameras=("top",),
        state=("shoulder [rad]", "elbow [rad]", "shoulder [rad/s]", "elbow [rad/s]"),
        action=("shoulder [rad]", "elbow [rad]"),
        rate_hz=25.0,
        steps=50,
        distance="from the fingertip to the target",
        unit="m",
        tolerance=0.02,
        hold=5,
    )

    def __init__(self, view: View = "rendered") -> None:
        self.view: View = view
        self._env, self._camera = _environment(render=view == "rendered"), None
        self._arm: Any = self._env.unwrapped
        self._periods = round(1.0 / (self.spec.rate_hz * self._arm.dt))
        if view == "rendered":
            self._camera = _TopCamera(self._arm.model)

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self._env.reset(seed=seed)

    def observe(self) -> dict[str, Any]:
        """Return image, state and prompt."""
        data = self._arm.data
        image = self._drawn() if self._camera is None else self._camera.image(data)
        state = np.concatenate([data.qpos[:2], data.qvel[:2]]).astype(np.float32)
        return {"images": {self.spec.cameras[0]: image}, "state": state, "prompt": self.spec.prompt}

    def rest(self) -> Floats:
        """Return the joints' angles."""
        return np.array(self._arm.data.qpos[:2], np.float64)

    def act(self, action: npt.ArrayLike) -> None:
        """Follow an action."""
        wanted = np.asarray(action, np.float64)
        for _ in range(self._periods):
            self._env.step(np.clip(self._torque(wanted), -1.0, 1.0))

    def _torque(self, wanted: Floats) -> Floats:
        data = self._arm.data
        return np.asarray(_STIFFNESS * (wanted - data.qpos[:2]) - _DAMPING * data.qvel[:2], np.float64)

    def distance(self) -> float:
        """Return the distance in meters."""
        return float(np.linalg.norm(self._arm.get_body_com("fingertip") - self._arm.get_body_com("target")))

    def versions(self) -> Mapping[str, str]:
        """Return the versions of Gymnasium and MuJoCo."""
        return {name: metadata.version(name) for name in _PACKAGES}

    def close(self) -> None:
        """Free the renderer and the simulation."""
        if self._camera is not None:
            self._camera.close()
        self._env.close()

    def _drawn(self) -> Image:
        """Return the scene from above without OpenGL, edges smoothed over a pixel."""
        first, second = self._arm.data.qpos[:2]
        elbow = _LINKS_M[0] * _direction(first)
        tip = elbow + _LINKS_M[1] * _direction(first + second)
        target = np.array(self._arm.get_body_com("target")[:2])
        picture = np.full((PIXELS, PIXELS, 3), _GROUND, np.float64)
        _paint(picture, np.zeros(2), elbow, 0.01, _ARM)
        _paint(picture, elbow, tip, 0.01, _ARM)
        _paint(picture, target, target, 0.015, _TARGET)  # wider than the arm, to stay in sight
        _paint(picture, tip, tip, 0.008, _TIP)
        return picture.round().astype(np.uint8)


class ReacherTorque(Reacher):
    """The arm as Gymnasium has it: driven by torques, 50 times a second."""

    spec: ClassVar[TaskSpec] = replace(
        Reacher.spec,
        name="reacher-torque",
        what="the same arm; actions are torques from -1 to 1",
        action=("shoulder [200 N m]", "elbow [200 N m]"),
        rate_hz=50.0,
        steps=100,
        hold=10,
    )

    def rest(self) -> Floats:
        """Return no torque: the arm's damping stops it."""
        return np.zeros(2)

    def _torque(self, wanted: Floats) -> Floats:
        return wanted


def _environment(*, render: bool) -> Any:
    """Return the environment without a limit of steps; MuJoCo is told to do without a display where there is none."""
    if sys.platform == "linux" and not {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ["MUJOCO_GL"] = "egl"  # is read once, when mujoco is imported
    try:
        import gymnasium
        import mujoco  # noqa: F401 - Gymnasium's own error would say less

        return gymnasium.make("Reacher-v5", max_episode_steps=-1, disable_env_checker=True)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"The simulation needs the package {error.name}, which is not installed: "
            "pip install 'edgewright[host,simulate]'."
        ) from None
    except Exception as error:
        raise (
            _no_rendering(error)
            if render
            else HostError(
                f"The simulator can't be started ({first_line(error)}): pip install 'edgewright[host,simulate]' again."
            )
        ) from None


def _no_rendering(error: Exception) -> HostError:
    return HostError(
        f"Images can't be rendered here ({first_line(error)}): install OpenGL (EGL and Mesa) and set MUJOCO_GL=egl, or "
        "have them drawn with --view drawn."
    )


class _TopCamera:
    """MuJoCo's renderer, from above; x points right and y up."""

    def __init__(self, model: Any) -> None:
        import mujoco

        try:
            self._renderer = mujoco.Renderer(model, PIXELS, PIXELS)
        except Exception as error:
            raise _no_rendering(error) from None
        self._camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(model, self._camera)
        self._camera.lookat[:] = 0.0
        self._camera.distance = REACH_M / np.tan(np.radians(model.vis.global_.fovy / 2))
        self._camera.elevation, self._camera.azimuth = -90.0, 90.0

    def image(self, data: Any) -> Image:
        self._renderer.update_scene(data, self._camera)
        return np.array(self._renderer.render(), np.uint8)

    def close(self) -> None:
        self._renderer.close()


def _direction(angle: float) -> Floats:
    return np.array([np.cos(angle), np.sin(angle)])


def _paint(picture: Floats, begin: Floats, end: Floats, radius_m: float, color: tuple[int, int, int]) -> None:
    """Paint all that is within a radius of a line from `begin` to `end` (in meters)."""
    pixel_m = 2 * REACH_M / PIXELS
    across = (np.arange(PIXELS) + 0.5) * pixel_m - REACH_M
    x, y, along = across - begin[0], -across[:, None] - begin[1], end - begin
    share = np.clip((x * along[0] + y * along[1]) / max(float(along @ along), 1e-12), 0.0, 1.0)
    far = np.hypot(x - share * along[0], y - share * along[1])
    cover = np.clip((radius_m - far) / pixel_m + 0.5, 0.0, 1.0)[..., None]
    picture *= 1.0 - cover
    picture += cover * np.array(color, np.float64)
