"""Open-loop evaluation: what a policy would have done at recorded frames, against what was done.

At every chosen frame a predictor sees the recorded observation and noise that depends on the seed and the frame only,
so that two predictors see the same; its chunk is compared with the recorded actions from this frame on, step by step,
as far as the episode goes. Nothing the policy does changes what it sees next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgewright.checkpoint.text import shown as quoted
from edgewright.errors import UsageError
from edgewright.evaluate.dataset import Dataset, Frame, Recording
from edgewright.evaluate.figures import Pair, Scale, Score
from edgewright.evaluate.frames import FrameChoice, noise_of
from edgewright.evaluate.predictors import (
    Predictor,
    check_dims,
    check_pair,
    match_cameras,
    observation_of,
    predict,
    same_camera,
)
from edgewright.evaluate.results import Drawn, Evaluation, described, dimension_names, notes_of, policy_result
from edgewright.evaluate.thresholds import judge
from edgewright.progress import SILENT, Progress

__all__ = ["Evaluation", "FrameChoice", "Predictor", "evaluate"]
#: Frames whose images are kept for the page, and chunks that are kept of the episode that is drawn.
SHOWN, DRAWN = 6, 48


def evaluate(
    dataset: Dataset,
    predictors: Sequence[Predictor],
    choice: FrameChoice = FrameChoice(),  # noqa: B008 - frozen
    *,
    cameras: Mapping[str, str] | None = None,
    thresholds: Mapping[str, float] | None = None,
    grippers: Sequence[int] | None = None,
    progress: Progress = SILENT,
) -> Evaluation:
    """Evaluate one predictor, or two side by side, on the chosen frames of a dataset.

    `cameras` maps the predictors' camera names to the dataset's where they differ; `grippers` are the dimensions of
    the action that open and close (None: those with "gripper" in their name). Of two predictors the second is compared
    with the first. Raises DatasetError when the dataset is damaged or of another robot, UsageError when predictors,
    dimensions or bounds don't fit.
    """
    matched = _matched(dataset, predictors, cameras or {})
    chosen = choice.of(dataset)
    scale = _scale(dataset, [episode for episode, _ in chosen], _grippers(dataset, grippers))
    run = _Run(dataset, predictors, matched, scale, choice.seed)
    total = sum(len(steps) for _, steps in chosen)
    kept = {int(place) for place in np.linspace(0, total - 1, min(SHOWN, total))}
    with progress.step(f"evaluate {total} frames", total) as advance:
        for episode, steps in chosen:
            recording = dataset.recording(episode)
            for step in steps:
                run.take(recording, step, kept)
                advance(1)
    policies = [
        policy_result(dataset, predictor, score, one, choice.seed)
        for predictor, score, one in zip(predictors, run.scores, matched, strict=True)
    ]
    comparison = None if run.pair is None else run.pair.figures(choice.seed)
    frames = {"count": total, "episodes": [e for e, _ in chosen], "seed": choice.seed, "every": choice.every}
    return Evaluation(
        dataset=described(dataset, scale),
        frames=frames,
        policies=policies,
        comparison=comparison,
        verdict=judge(thresholds or {}, [(one["name"], one["figures"]) for one in policies], comparison),
        notes=[*dataset.notes, *notes_of(dataset, predictors, matched, run.scores, scale)],
        shown=run.shown,
        drawn=run.drawn,
    )


@dataclass
class _Run:
    """The evaluation while it goes on; memory follows the number of frames only by a few numbers each."""

    dataset: Dataset
    predictors: Sequence[Predictor]
    matched: Sequence[Mapping[str, str]]
    scale: Scale
    seed: int
    shown: list[Frame] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    done: int = 0

    def __post_init__(self) -> None:
        self.scores = [Score(self.scale, predictor.horizon, predictor.run) for predictor in self.predictors]
        self.pair = Pair(self.scale) if len(self.predictors) == 2 else None
        self.wanted = sorted({name for one in self.matched for name in one.values()})

    def take(self, recording: Recording, step: int, kept: set[int]) -> None:
        """Evaluate one frame; `kept` are the numbers of the frames whose images stay."""
        frame = self.dataset.frame(recording, step, self.wanted)
        recorded = recording.action[step : step + self.predictors[0].horizon].astype(np.float64)
        noise = noise_of(self.seed, frame.index, self.predictors[0].noise_shape)
        chunks = [
            predict(predictor, observation_of(frame, cameras), noise)
            for predictor, cameras in zip(self.predictors, self.matched, strict=True)
        ]
        for score, chunk in zip(self.scores, chunks, strict=True):
            score.add(frame.episode, step, chunk, recorded)
        if self.pair is not None:
            self.pair.add(frame.episode, chunks, recorded, self.predictors[1].run)
        if not self.drawn:
            self.drawn.append(Drawn(frame.episode, recording.action.astype(np.float64)))
        if self.drawn[0].episode == frame.episode and len(self.drawn[0].chunks) < DRAWN:
            self.drawn[0].chunks.append((step, [chunk[: len(recorded)] for chunk in chunks]))
        if self.done in kept:
            self.shown.append(frame)
        self.done += 1


def _matched(dataset: Dataset, predictors: Sequence[Predictor], given: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the cameras of each predictor after all checks that need no frame."""
    if not 1 <= len(predictors) <= 2:
        raise UsageError(f"{len(predictors)} policies were given: evaluate one, or two side by side.")
    check_pair(predictors)
    known = [camera for predictor in predictors for camera in predictor.cameras]
    if unknown := [name for name in given if same_camera(name, known) is None]:
        there = ", ".join(sorted(set(known))) or "none"
        raise UsageError(f"No policy has a camera {quoted(unknown[0])}; there are {there}.")
    for predictor in predictors:
        check_dims(predictor, dataset)
    return [
        match_cameras(
            one, dataset, {name: there for name, there in given.items() if same_camera(name, one.cameras) is not None}
        )
        for one in predictors
    ]


def _grippers(dataset: Dataset, given: Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        return tuple(i for i, name in enumerate(dimension_names(dataset)) if "gripper" in name.lower())
    if wrong := [dim for dim in given if not 0 <= dim < dataset.action.size]:
        raise UsageError(f"The gripper can't be dimension {wrong[0]}: an action has 0 to {dataset.action.size - 1}.")
    return tuple(sorted(set(given)))


def _scale(dataset: Dataset, episodes: Sequence[int], grippers: tuple[int, ...]) -> Scale:
    """Return the ranges of the recorded actions of some episodes."""
    low = np.full(dataset.action.size, np.inf)
    high = -low
    for episode in episodes:
        actions = dataset.recording(episode).action.astype(np.float64)
        low, high = np.minimum(low, actions.min(0)), np.maximum(high, actions.max(0))
    return Scale(low, high, grippers)
