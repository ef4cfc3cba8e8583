"""The result of an evaluation: figures as JSON-compatible values, frames and chunks to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.evaluate.dataset import Dataset, Frame
from edgewright.evaluate.figures import Floats, Scale, Score
from edgewright.evaluate.predictors import Predictor
from edgewright.evaluate.thresholds import Verdict


@dataclass
class Drawn:
    """What the page draws: the recorded actions of one episode and the chunks predicted in it, by policy."""

    episode: int
    recorded: Floats
    chunks: list[tuple[int, list[Floats]]] = field(default_factory=list)


@dataclass
class Evaluation:
    """The result: figures as `to_json` gives them, and frames and chunks to look at."""

    dataset: dict[str, Any]
    frames: dict[str, Any]
    policies: list[dict[str, Any]]
    comparison: dict[str, Any] | None
    verdict: Verdict
    notes: list[str]
    shown: list[Frame]
    drawn: list[Drawn]

    def to_json(self) -> dict[str, Any]:
        """Return everything but images and chunks as JSON-compatible values."""
        return {
            "dataset": self.dataset,
            "frames": self.frames,
            "policies": self.policies,
            "comparison": self.comparison,
            "verdict": self.verdict.to_json(),
            "notes": self.notes,
        }


def dimension_names(dataset: Dataset) -> list[str]:
    """Return the names of the action's dimensions, their numbers where there are none."""
    names, size = dataset.action.names, dataset.action.size
    return list(names) if len(names) == size else [str(dim) for dim in range(size)]


def described(dataset: Dataset, scale: Scale) -> dict[str, Any]:
    info = dataset.info
    return {
        "name": dataset.folder.resolve().name,
        "layout": info.layout,
        "robot": info.robot,
        "fps": info.fps,
        "episodes": info.episodes,
        "frames": info.frames,
        "dimensions": dimension_names(dataset),
        "low": scale.low.tolist(),
        "high": scale.high.tolist(),
        "grippers": list(scale.grippers),
    }


def policy_result(
    dataset: Dataset, predictor: Predictor, score: Score, cameras: Mapping[str, str], seed: int
) -> dict[str, Any]:
    """Return a predictor's figures, by dimension, by step, and by both."""
    live, width, names = score.scale.live, score.scale.width, dimension_names(dataset)
    reached = max(int(score.frames.sum()), 1)
    dimensions = [
        {
            "name": name,
            "mae": float(score.absolute[:, dim].sum()) / reached,
            "rmse": float(np.sqrt(score.square[:, dim].sum() / reached)),
            "max": float(score.largest[:, dim].max()),
            "relative_mae": float(score.absolute[:, dim].sum() / reached / width[dim]) if live[dim] else None,
        }
        for dim, name in enumerate(names)
    ]
    mae, mse = score.table(score.absolute), score.table(score.square)
    steps = [
        {
            "step": step,
            "frames": int(count),
            "mae": float(score.scale.shares(mae[step]).mean()) if count and live.any() else None,
        }
        for step, count in enumerate(score.frames)
    ]
    return {
        "name": predictor.name,
        "horizon": predictor.horizon,
        "run": predictor.run,
        "cameras": dict(cameras),
        "figures": score.figures(seed),
        "dimensions": dimensions,
        "steps": steps,
        "errors": {"mae": _listed(mae), "mse": _listed(mse), "max": score.largest.tolist()},
    }


def _listed(table: npt.NDArray[np.float64]) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in table]


def notes_of(
    dataset: Dataset,
    predictors: Sequence[Predictor],
    matched: Sequence[Mapping[str, str]],
    scores: Sequence[Score],
    scale: Scale,
) -> list[str]:
    """Say what couldn't be measured and what was left out."""
    notes = []
    if still := [name for name, live in zip(dimension_names(dataset), scale.live, strict=True) if not live]:
        notes.append(f"dimensions that never change in these episodes have no relative error: {', '.join(still)}")
    for predictor, cameras, score in zip(predictors, matched, scores, strict=True):
        if missing := [camera for camera in predictor.cameras if camera not in cameras]:
            notes.append(f"{predictor.name}: no image for the cameras {', '.join(missing)}, which are masked")
        notes += [f"{predictor.name}: {text}" for text in predictor.notes]
        if not score.jump.count:
            notes.append(f"{predictor.name}: no two frames within a chunk of each other, so no jump; choose --every")
    if not scale.grippers:
        notes.append("no dimension is named gripper, so there are no gripper figures")
    return notes
