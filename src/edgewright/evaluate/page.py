"""The result of an evaluation as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.evaluate.curves import Line, curves
from edgewright.evaluate.dataset import Frame
from edgewright.evaluate.pictures import Image
from edgewright.evaluate.results import Evaluation
from edgewright.files import write_text
from edgewright.report.charts import columns
from edgewright.report.template import rendered

#: Dimensions that are drawn, and the larger side of an image in pixels.
_MOST_DRAWN, _SIDE = 16, 240
_KINDS = ("first", "second")
#: The figures of the table: key, what it is, whether it is a part of a range.
_FIGURES = (
    ("mae", "mean absolute error"),
    ("rmse", "root of the mean square error"),
    ("max_error", "largest error"),
    ("run_mae", "mean absolute error of the steps that are executed"),
    ("jerk", "jerk (third difference a step)"),
    ("recorded_jerk", "jerk of the recording"),
    ("jump", "jump between chunks"),
    ("max_jump", "largest jump between chunks"),
    ("gripper_agreement", "share of steps with the gripper as recorded"),
    ("gripper_flips", "gripper flips a chunk"),
    ("recorded_gripper_flips", "gripper flips of the recording"),
)


def write_page(path: Path, evaluation: Evaluation) -> None:
    """Write the page; see `page`. Raises OutputError."""
    write_text(path, page(evaluation))


def page(evaluation: Evaluation) -> str:
    """Return the page: verdict, figures, curves of one episode by dimension, errors by step and dimension, images."""
    dims = evaluation.dataset["dimensions"]
    return rendered(
        "edgewright.evaluate",
        "evaluation.html",
        wide=True,
        e=evaluation,
        verdict=evaluation.verdict,
        labels=[
            (key, text) for key, text in _FIGURES if any(p["figures"][key] is not None for p in evaluation.policies)
        ],
        steps=_by_step(evaluation),
        drawn=[(dims[dim], _episode(evaluation, dim)) for dim in range(min(len(dims), _MOST_DRAWN))],
        left_out=max(0, len(dims) - _MOST_DRAWN),
        bars=[
            (p["name"], columns([(one["name"], one["relative_mae"] or 0.0) for one in p["dimensions"]]))
            for p in evaluation.policies
        ],
        frames=[_frame(frame) for frame in evaluation.shown],
        kinds=_KINDS,
    )


def _by_step(evaluation: Evaluation) -> dict[str, Any] | None:
    """Return the chart of the error over the steps of a chunk."""
    lines = []
    for kind, policy in zip(_KINDS, evaluation.policies, strict=False):
        values = [np.nan if step["mae"] is None else step["mae"] for step in policy["steps"]]
        lines.append(Line(kind, policy["name"], 0, np.array(values, np.float64)))
    return curves(lines, from_zero=True)


def _episode(evaluation: Evaluation, dim: int) -> dict[str, Any] | None:
    """Return the chart of one dimension over an episode: what was recorded and the chunks predicted."""
    if not evaluation.drawn:
        return None
    drawn = evaluation.drawn[0]
    lines = [Line("recorded", "recorded", 0, drawn.recorded[:, dim])]
    for step, chunks in drawn.chunks:
        for kind, policy, chunk in zip(_KINDS, evaluation.policies, chunks, strict=False):
            lines.append(Line(kind, f"{policy['name']} at step {step}", step, chunk[:, dim]))
    return curves(lines)


def _frame(frame: Frame) -> dict[str, Any]:
    pictures = [(name, image_uri(image)) for name, image in frame.images.items()]
    return {"episode": frame.episode, "step": frame.step, "task": frame.task, "images": pictures}


def image_uri(image: Image) -> str:
    """Return an image as a data URI, made smaller where it is large."""
    import PIL.Image

    picture = PIL.Image.fromarray(image)
    picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
