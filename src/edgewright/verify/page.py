"""The report as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from edgewright._version import __version__
from edgewright.bundle.manifest import Manifest

#: Size of a chart in pixels, and its margins (left, top, right, bottom).
_WIDTH, _HEIGHT = 720, 150
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 10, 8, 22


def page(name: str, manifest: Manifest, report: Mapping[str, Any]) -> str:
    """Return the page for a report as `Report.to_json` gives it; `name` is the bundle's."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = (resources.files("edgewright.verify") / "data" / "page.html").read_text(encoding="utf-8")
    place = report.get("localisation")
    charts = {}
    if place is not None:
        charts = {
            "positions": chart(place["errors_by_position"], place["bound"]),
            "layers": chart([[i, value] for i, (_, value) in enumerate(place["errors_by_layer"])], 1.0),
        }
    return environment.from_string(text).render(
        name=name, manifest=manifest, report=report, place=place, charts=charts, version=__version__, short=_short
    )


def _short(value: Any) -> str:
    """Spell a figure shortly; None is what was not finite."""
    if value is None:
        return "not finite"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def chart(points: Sequence[Sequence[Any]], bound: float | None) -> dict[str, Any] | None:
    """Return a bar chart of (x, error) pairs on a logarithmic scale: bars, the bound's line, labels of the axis."""
    values = [(x, value) for x, value in points if value is None or value > 0]
    if not values or bound is None or bound <= 0:
        return None
    finite = [value for _, value in values if value is not None]
    top = math.ceil(math.log10(max([*finite, bound]))) + (len(finite) < len(values))
    low = min(math.floor(math.log10(min([*finite, bound]))), top - 1)
    low = max(low, top - 12)

    def y(value: float | None) -> float:
        level = top if value is None else math.log10(max(value, 10.0**low))
        return _TOP + (top - level) / (top - low) * (_HEIGHT - _TOP - _BOTTOM)

    first, last = points[0][0], points[-1][0]
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, last - first + 1)
    floor = _HEIGHT - _BOTTOM
    bars = [
        {
            "x": round(_LEFT + (x - first) * step, 2),
            "y": round(y(value), 2),
            "width": round(max(step * 0.8, 0.8), 2),
            "height": round(max(floor - y(value), 0.5), 2),
            "bad": value is None or value > bound,
            "title": f"{x}: {_short(value)}",
        }
        for x, value in values
    ]
    spacing = max(1, (top - low) // 4)
    ticks = [{"y": round(y(10.0**p), 2), "text": f"1e{p}"} for p in range(low, top + 1, spacing)]
    marks = sorted({first, last, first + (last - first) // 2})
    labels = [{"x": round(_LEFT + (m - first + 0.4) * step, 2), "text": str(m)} for m in marks]
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "floor": floor,
        "bars": bars,
        "bound": round(y(bound), 2),
        "ticks": ticks,
        "labels": labels,
    }
