"""Closed loop: a policy drives a simulated robot through a policy server, and succeeds or not.

The simulation waits for the policy: its clock counts control periods and stands still during an inference, so that
the result does not depend on how fast this machine is. What an inference would have cost is said with `delay`: its
chunk arrives so many control periods after the observation, and the robot goes on with the chunk before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgewright.errors import ObservationError, UsageError
from edgewright.evaluate.closed_results import ClosedLoop, Episode, Run, result_of
from edgewright.evaluate.contenders import Contender, check_numbers, match_cameras, observation_of
from edgewright.evaluate.tasks import Task
from edgewright.progress import SILENT, Progress
from edgewright.runtime.policy.chunks import Chunking, Request
from edgewright.runtime.policy.control import Control
from edgewright.serve import Answer, Log, MessageError, PolicyClient, RemoteError, ServeError, Settings, serving

#: Episodes whose first and last images are kept for the page.
SHOWN = 6
#: How much longer the client waits than the server lets a policy take.
_MORE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a task is run: `episodes` decided by `seed`; `delay` is how many control periods an inference takes.

    `cameras` maps the policy's names of cameras to the task's where they differ. An inference may take `timeout_s`.
    Raises UsageError for numbers that can't be.
    """

    episodes: int = 50
    seed: int = 0
    delay: int = 0
    cameras: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.seed < 0 or self.delay < 0 or not self.timeout_s > 0:
            raise UsageError("A run needs an episode at least, a seed and a delay of 0 or more, and time to infer.")


def evaluate_task(
    task: Task,
    contenders: Sequence[Contender],
    options: Options = Options(),
    *,
    log: Log | None = None,
    progress: Progress = SILENT,
) -> ClosedLoop:
    """Run a task with one contender, or with two on the same episodes, each behind a policy server of its own.

    Raises ObservationError when a policy doesn't fit the task's robot, ServeError when its server breaks off. An
    inference that the server refuses is counted, and the robot goes on without it, as its guard says; where the first
    one of all is refused, that is raised as RemoteError.
    """
    if not 1 <= len(contenders) <= 2:
        raise UsageError(f"{len(contenders)} policies were given: evaluate one, or two on the same episodes.")
    settings = Settings(port=0, deadline_ms=1000 * options.timeout_s)
    runs = []
    for contender in contenders:
        with (
            serving(contender.policy, settings, log=log or _FirstErrors()) as server,
            PolicyClient(port=server.port, timeout_s=options.timeout_s + _MORE_S) as client,
            progress.step(f"{contender.name}: {options.episodes} episodes", options.episodes) as advance,
        ):
            driver = Driver(task, client, contender, options)
            episodes = []
            for number in range(options.episodes):
                episodes.append(driver.episode(number))
                advance(1)
            runs.append(Run(contender.name, driver.cameras, driver.masked, driver.chunking, episodes))
    return result_of(task, runs, options.seed, options.delay)


class _FirstErrors(Log):
    """A server's log that tells of the first errors only: a policy that fails may do so at every step."""

    _left = 3

    def event(self, event: str, *, routine: bool = False, **values: Any) -> None:
        """Write an error."""
        if event == "error" and self._left:
            self._left -= 1
            super().event(event, **values)


class Driver:
    """Drives a task's robot with the policy at the other end of a client; checks first that they fit.

    Raises ObservationError when they don't, RemoteError when the first inference is refused, ServeError when the
    connection breaks.
    """

    def __init__(self, task: Task, client: PolicyClient, contender: Contender, options: Options) -> None:
        self.task, self.limits, self.delay = task, contender.limits, options.delay
        self._client, self._contender, self._options = client, contender, options
        told, name = client.metadata, contender.name
        check_numbers(name, told, task.spec)
        self.cameras = match_cameras(name, told, task.spec, options.cameras)
        self.masked = [camera for camera in told.get("cameras") or () if camera not in self.cameras]
        self._told = dict(told)
        horizon, dims = self._trial().actions.shape
        if dims != len(task.spec.action):
            raise ObservationError(
                f"{name} gives {dims} numbers an action, and the robot of the task {task.spec.name} takes "
                f"{len(task.spec.action)} ({', '.join(task.spec.action)}): evaluate a policy of this robot."
            )
        if self.delay >= horizon:
            raise UsageError(
                f"{name} plans {horizon} actions, so none is left after a delay of {self.delay}: give a smaller one."
            )
        run = told.get("steps_to_run")
        self.chunking = Chunking(
            rate_hz=task.spec.rate_hz,
            horizon=horizon,
            steps_to_run=run if isinstance(run, int) and 1 <= run <= horizon else horizon,
            delay=self.delay,
        )

    def _trial(self) -> Answer:
        """Infer once before the first episode: the first run of an engine is slow, and what doesn't fit shows here."""
        self._begin(0)
        return self._client.infer(self._seen())

    def _begin(self, number: int) -> None:
        scene, noise = np.random.SeedSequence([self._options.seed, number]).spawn(2)
        self.task.reset(int(scene.generate_state(1)[0]))
        if self._contender.begin is not None:
            self._contender.begin(np.random.default_rng(noise))

    def _seen(self) -> dict[str, Any]:
        return observation_of(self.task.observe(), self.cameras, self._told)

    def episode(self, number: int) -> Episode:
        """Run one episode; raises ServeError when the connection breaks."""
        self._begin(number)
        return _Rollout(self, number).run()

    def infer(self, number: int, tick: int) -> tuple[Answer | None, float]:
        """Return the answer to what the robot sees now, None where it is refused, and how long that took in ms."""
        observation = self._seen()
        start = time.perf_counter()
        try:
            answer: Answer | None = self._client.infer(observation)
        except RemoteError:
            answer = None
        except MessageError:
            raise
        except ServeError as error:
            raise ServeError(
                f"The server of {self._contender.name} was lost in episode {number + 1} of {self._options.episodes}, "
                f"at action {tick + 1}, so there is no success rate: {error}"
            ) from None
        return answer, 1000 * (time.perf_counter() - start)


class _Rollout:
    """One episode under way."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver, self._task = driver, driver.task
        self._tick = 0
        spec = self._task.spec
        self._control = Control(
            driver.limits, len(spec.action), driver.chunking, clock=lambda: self._tick / spec.rate_hz
        )
        self._control.reset(self._task.rest())
        self._coming: tuple[int, Request, Answer | None] | None = None
        self.episode = Episode(number, distances=[self._task.distance()], images=[self._picture(number)])

    def _picture(self, number: int) -> dict[str, Any]:
        return self._task.observe()["images"] if number < SHOWN else {}

    def run(self) -> Episode:
        """Act until the task is done, its steps are used up or the guard has stopped the robot."""
        spec, episode, inside = self._task.spec, self.episode, 0
        while self._tick < spec.steps and not self._control.guard.stopped:
            self._step()
            self._tick += 1
            episode.distances.append(self._task.distance())
            inside = inside + 1 if episode.distances[-1] < spec.tolerance else 0
            if inside == spec.hold:
                episode.steps_to_success = self._tick
                break
        guard, buffer = self._control.guard, self._control.buffer
        episode.stopped = guard.stopped
        episode.guard, episode.chunks = Counter(guard.counts), Counter(buffer.counts)
        if episode.images[0]:
            episode.images.append(self._picture(episode.number))
        return episode

    def _step(self) -> None:
        request = self._control.due()
        if request is not None:
            answer, took_ms = self._driver.infer(self.episode.number, self._tick)
            self.episode.note(answer, took_ms)
            self._coming = (self._tick + self._driver.delay, request, answer)
        if self._coming is not None and self._tick >= self._coming[0]:
            _, request, answer = self._coming
            self._coming = None
            self._arrive(request, answer)
        guarded = self._control.step()
        sent = None if guarded is None else guarded.action
        self._task.act(self._task.rest() if sent is None else sent)

    def _arrive(self, request: Request, answer: Answer | None) -> None:
        if answer is None:
            self._control.failed(request)
            return
        if answer.actions.shape != (self._driver.chunking.horizon, len(self._task.spec.action)):
            raise MessageError(
                f"The policy's actions have the shape {list(answer.actions.shape)}, and had another before: a chunk "
                "must be as long as the first one."
            )
        self._control.deliver(request, answer.actions)
