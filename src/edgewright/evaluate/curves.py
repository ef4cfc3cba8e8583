"""Line charts as plain values (points and labels in pixels); the page's template draws them as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.report.charts import short

#: Size of a chart in pixels, and its margins (left, top, right, bottom).
_WIDTH, _HEIGHT = 720, 150
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 10, 8, 22
#: Points of one line; a longer one is thinned.
_MOST_POINTS = 1200


@dataclass(frozen=True)
class Line:
    """Values at `start`, `start` + 1, ...; `kind` picks the color (recorded, first, second), `title` is a tooltip."""

    kind: str
    title: str
    start: int
    values: npt.NDArray[np.float64]


def curves(lines: Sequence[Line], *, from_zero: bool = False) -> dict[str, Any] | None:
    """Return a chart of lines on common axes; `from_zero` begins the vertical one at 0. None without finite values."""
    known = [line.values[np.isfinite(line.values)] for line in lines]
    known = [values for values in known if values.size]
    if not known:
        return None
    low, high = min(float(v.min()) for v in known), max(float(v.max()) for v in known)
    low = min(low, 0.0) if from_zero else low
    high = high if high > low else low + (abs(low) or 1.0)
    first = min(line.start for line in lines)
    last = max(line.start + len(line.values) - 1 for line in lines)
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(step: float) -> float:
        return round(_LEFT + (step - first) / max(1, last - first) * wide, 1)

    def level(value: float) -> float:
        return round(_TOP + (high - value) / (high - low) * tall, 1)

    drawn = []
    for line in lines:
        stride = max(1, -(-len(line.values) // _MOST_POINTS))
        pairs = [(step, float(line.values[step])) for step in range(0, len(line.values), stride)]
        points = " ".join(f"{place(line.start + step)},{level(v)}" for step, v in pairs if np.isfinite(v))
        drawn.append({"kind": line.kind, "title": line.title, "points": points})
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "lines": drawn,
        "ticks": [{"y": level(v), "text": short(v)} for v in (low, (low + high) / 2, high)],
        "labels": [{"x": place(step), "text": str(step)} for step in sorted({first, (first + last) // 2, last})],
    }
