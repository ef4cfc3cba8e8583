"""The result of a closed loop as one HTML page that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgewright.evaluate.closed_results import ClosedLoop, Run
from edgewright.evaluate.curves import Line, curves
from edgewright.evaluate.page import image_uri
from edgewright.files import write_text
from edgewright.report.template import rendered

#: Episodes of each policy whose distance is drawn.
_MOST_DRAWN = 48
_KINDS = ("first", "second")


def write_closed_page(path: Path, found: ClosedLoop) -> None:
    """Write the page; see `closed_page`. Raises OutputError."""
    write_text(path, closed_page(found))


def closed_page(found: ClosedLoop) -> str:
    """Return the page: success rates, latencies, guards, the distance over every episode, first and last images."""
    return rendered(
        "edgewright.evaluate",
        "closed_loop.html",
        wide=True,
        e=found,
        kinds=_KINDS,
        distances=_distances(found),
        shown=_shown(found.runs),
        drawn=_MOST_DRAWN,
    )


def _distances(found: ClosedLoop) -> dict[str, Any] | None:
    lines = []
    for kind, run in zip(_KINDS, found.runs, strict=False):
        for one in run.episodes[:_MOST_DRAWN]:
            end = "success" if one.steps_to_success is not None else "no success"
            title = f"{run.name}, episode {one.number}: {end}"
            lines.append(Line(kind, title, 0, np.array(one.distances, np.float64)))
    return curves(lines, from_zero=True)


def _shown(runs: list[Run]) -> list[dict[str, Any]]:
    """Return the images of the first episodes: of the beginning, which all policies share, and of each one's end."""
    rows = []
    for episodes in zip(*(run.episodes for run in runs), strict=True):
        if not episodes[0].images[0]:
            break
        pictures = [("start", image_uri(image)) for image in episodes[0].images[0].values()]
        for run, one in zip(runs, episodes, strict=True):
            pictures += [(f"{run.name}, end", image_uri(image)) for image in one.images[-1].values()]
        ends = [one.steps_to_success for one in episodes]
        rows.append({"number": episodes[0].number, "ends": ends, "images": pictures})
    return rows
