"""Bar charts as plain values (places, sizes, labels in pixels); the template `base.html` draws them as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

#: Size of a chart in pixels, and its margins (left, top, right, bottom).
_WIDTH, _HEIGHT = 720, 150
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 10, 8, 22
_FLOOR = _HEIGHT - _BOTTOM


def short(value: Any) -> str:
    """Spell a figure shortly; None is what was not finite."""
    if value is None:
        return "not finite"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def columns(titled: Sequence[tuple[str, float]], bad: Sequence[int] = ()) -> dict[str, Any] | None:
    """Return a bar chart of (title, value) pairs on a linear scale that begins at 0; bars in `bad` are marked.

    Values below 0 have no height. None without a value above 0.
    """
    top = max((value for _, value in titled), default=0.0)
    if top <= 0:
        return None
    step = (_WIDTH - _LEFT - _RIGHT) / len(titled)
    bars = [
        _bar(index * step, step * 0.8, max(value, 0.0) / top, f"{title}: {short(value)}", bad=index in bad)
        for index, (title, value) in enumerate(titled)
    ]
    marks = sorted({0, (len(titled) - 1) // 2, len(titled) - 1})
    labels = [{"x": round(_LEFT + (m + 0.4) * step, 2), "text": str(m + 1)} for m in marks]
    return _frame(bars, [(part, short(float(part * top))) for part in (0.0, 0.5, 1.0)], labels)


def histogram(counts: Mapping[str, Sequence[int]], limit: float) -> dict[str, Any] | None:
    """Return a chart of the counts of two sets of numbers in the same bins of [-limit, limit], side by side.

    The second set is marked. Heights are roots of counts, so that rare outliers can be seen. None when all are empty.
    """
    top = max((math.sqrt(max(one)) for one in counts.values()), default=0.0)
    if top <= 0:
        return None
    bars = []
    for place, (name, one) in enumerate(counts.items()):
        step = (_WIDTH - _LEFT - _RIGHT) / len(one)
        for index, count in enumerate(one):
            if count:
                middle = limit * (2 * (index + 0.5) / len(one) - 1)
                left = index * step + place * step * 0.45
                bars.append(
                    _bar(left, step * 0.45, math.sqrt(count) / top, f"{name} near {middle:.3g}: {count}", place > 0)
                )
    labels = [
        {"x": round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 2), "text": short(float((2 * part - 1) * limit))}
        for part in (0.05, 0.5, 0.95)
    ]
    return _frame(bars, [(part, _count((part * top) ** 2)) for part in (0.0, 0.5, 1.0)], labels)


def _count(number: float) -> str:
    """Spell a count in a few letters."""
    for unit in ("", "k", "M"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"


def _bar(left: float, width: float, share: float, title: str, bad: bool) -> dict[str, Any]:
    height = share * (_FLOOR - _TOP)
    return {
        "x": round(_LEFT + left, 2),
        "y": round(_FLOOR - height, 2),
        "width": round(max(width, 0.8), 2),
        "height": round(max(height, 0.5), 2),
        "bad": bad,
        "title": title,
    }


def _frame(
    bars: list[dict[str, Any]],
    ticks: Sequence[tuple[float, str]],
    labels: list[dict[str, Any]],
    bound: float | None = None,
) -> dict[str, Any]:
    """Return the chart around bars; ticks are (share of the height, text)."""
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "floor": _FLOOR,
        "bars": bars,
        "bound": bound,
        "ticks": [{"y": round(_FLOOR - part * (_FLOOR - _TOP), 2), "text": text} for part, text in ticks],
        "labels": labels,
    }


def chart(points: Sequence[Sequence[Any]], bound: float | None) -> dict[str, Any] | None:
    """Return a bar chart of (x, error) pairs on a logarithmic scale: bars, the bound's line, labels of the axis."""
    values = [(x, value) for x, value in points if value is None or value > 0]
    if not values or bound is None or bound <= 0:
        return None
    finite = [value for _, value in values if value is not None]
    top = math.ceil(math.log10(max([*finite, bound]))) + (len(finite) < len(values))
    low = min(math.floor(math.log10(min([*finite, bound]))), top - 1)
    low = max(low, top - 12)

    def share(value: float | None) -> float:
        level = top if value is None else math.log10(max(value, 10.0**low))
        return (level - low) / (top - low)

    first, last = points[0][0], points[-1][0]
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, last - first + 1)
    bars = [
        _bar((x - first) * step, step * 0.8, share(v), f"{x}: {short(v)}", bad=v is None or v > bound)
        for x, v in values
    ]
    spacing = max(1, (top - low) // 4)
    ticks = [(share(10.0**p), f"1e{p}") for p in range(low, top + 1, spacing)]
    marks = sorted({first, last, first + (last - first) // 2})
    labels = [{"x": round(_LEFT + (m - first + 0.4) * step, 2), "text": str(m)} for m in marks]
    return _frame(bars, ticks, labels, round(_FLOOR - share(bound) * (_FLOOR - _TOP), 2))
