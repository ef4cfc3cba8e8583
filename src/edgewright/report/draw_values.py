"""Figures of values by dialog: times between tokens, shares, times to the first token, waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewright.report.charts import short
from edgewright.report.draw_time import Drawn, spelled, time_unit
from edgewright.report.figure_data import Share, Spread, first_tokens, queues, shares, token_gap_curves
from edgewright.report.style import (
    FONT_POINTS,
    INK,
    SOFT,
    Size,
    blank,
    color,
    counts,
    dashes,
    label,
    lane_axis,
    legend,
    legend_points,
)
from edgewright.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Segments whose shares are drawn, and how many stand beside each other.
_MOST_SEGMENTS = 12
_PANELS: dict[Size, int] = {"wide": 3, "narrow": 1}
#: A scale that covers more than this is drawn as a logarithmic one.
_LOGARITHMIC = 20.0
#: On a logarithmic scale that covers less than this, 3, 30, ... are marked, too.
_FEW_DECADES = 1e3
#: What a logarithmic scale shows for nothing, in milliseconds.
_LEAST = 1e-3
#: How far a logarithmic scale of waiting reaches down from the longest.
_DEEPEST = 1e4


def token_gaps(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw the distribution of the times between tokens."""
    series = token_gap_curves(subject)
    if not series:
        return None
    from matplotlib.lines import Line2D

    names = [label(subject.names[one.dialog]) for one in series]
    figure = blank(size, 225 + legend_points(names, size), note=note)
    axes = figure.add_subplot()
    entries = []
    for one, name in zip(series, names, strict=True):
        look: dict[str, Any] = {"color": color(one.dialog), "linestyle": dashes(one.dialog), "linewidth": 1.6}
        axes.step(np.maximum(one.x, _LEAST), one.y, where="post", **look)
        entries.append((Line2D([], [], **look), name))
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 0.9, 1.0], ["0", "50 %", "90 %", "100 %"])
    _value_axis(axes, [value for one in series for value in (float(one.x[0]), float(one.x[-1]))], "time between tokens")
    axes.grid(axis="both")
    legend(figure, entries, size)
    pooled = f" Of {len(subject.repeats)} repeats together." if len(subject.repeats) > 1 else ""
    told = counts([(subject.names[one.dialog], one.count) for one in series])
    return Drawn(figure, f"Part of the times that are at most so long; times: {told}.{pooled}")


def achieved_shares(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw requested and achieved shares of each segment."""
    found = shares(subject.summary, subject.names)
    if not found:
        return None
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = found[:_MOST_SEGMENTS]
    columns = min(_PANELS[size], len(drawn))
    rows = -(-len(drawn) // columns)
    figure = blank(size, rows * (len(subject.names) * 24 + 34) + 56, note=note)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    right = max(0.05, min(1.0, 1.1 * max(one.most for one in drawn)))
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for place, (axes, one) in enumerate(zip(grid.flat, drawn, strict=False)):
        _share_panel(axes, one, subject.names, named=place % columns == 0)
        axes.set_xlim(0, right)
        axes.tick_params(labelbottom=place + columns >= len(drawn))
    entries: list[tuple[Any, str]] = [
        (Patch(color=SOFT), "of the steps"),
        (Patch(color=SOFT, alpha=0.4), "of the time"),
    ]
    unit = {"quanta": "steps", "time": "time"}.get(drawn[0].unit or "")
    if unit is not None:
        mark = Line2D([], [], color=INK, marker="|", markersize=10, linestyle="", markeredgewidth=2)
        entries.append((mark, f"requested, of the {unit}"))
    legend(figure, entries, size)
    more = f" {len(found) - len(drawn)} more segments are in the table." if len(found) > len(drawn) else ""
    unasked = "" if unit is not None else " The discipline promises no shares."
    return Drawn(figure, f"Of all steps and of the time of all steps in a segment.{unasked}{more}")


def times_to_first_token(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw the times to the first token at once with the others, and alone."""
    found = first_tokens(subject)
    if not found:
        return None
    from matplotlib.patches import Patch

    names = [subject.names[together.dialog] for together, _ in found]
    figure = blank(size, len(found) * 30 + 74, note=note)
    axes = figure.add_subplot()
    reach = max(max(one.high, one.middle) for pair in found for one in pair if one is not None)
    unit, factor = time_unit(reach)
    for lane, (together, alone) in enumerate(found):
        for spread, y, alpha in ((together, lane - 0.18, 1.0), (alone, lane + 0.18, 0.4)):
            if spread is None:
                continue
            axes.barh(y, spread.middle / factor, 0.3, color=color(together.dialog), alpha=alpha, linewidth=0)
            if spread.count > 1:
                axes.plot([spread.low / factor, spread.high / factor], [y, y], color=INK, linewidth=1)
        slower = "" if alone is None or alone.middle <= 0 else f" {short(together.middle / alone.middle)}×"
        axes.annotate(slower, (max(together.high, together.middle) / factor, lane - 0.18), xytext=(3, 0),
                      textcoords="offset points", va="center", color=INK)  # fmt: skip
    lane_axis(axes, names)
    axes.set_xlim(0, reach / factor * (1.12 if size == "wide" else 1.25))
    axes.set_xlabel(f"time to the first token [{unit}]")
    axes.grid(axis="x")
    solo = any(alone is not None for _, alone in found)
    entries = [(Patch(color=SOFT), "concurrent")] + ([(Patch(color=SOFT, alpha=0.4), "alone")] if solo else [])
    legend(figure, entries, size)
    missing = "" if solo else " No dialog was run alone."
    text = "Medians, from when a query was there and its dialog not paused; lines from the 5th to the 95th percentile."
    return Drawn(figure, text + missing)


def waiting_times(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw how long the steps of each dialog waited for the accelerator."""
    found = queues(subject)
    if not found or max(one.most for one in found) <= 0:
        return None
    from matplotlib.lines import Line2D

    figure = blank(size, len(found) * 24 + 74, note=note)
    axes = figure.add_subplot()
    least = max(_LEAST, max(one.most for one in found) / _DEEPEST)
    for lane, one in enumerate(found):
        _range(axes, one, lane, least)
    lane_axis(axes, [subject.names[one.dialog] for one in found])
    reach = [max(value, least) for one in found for value in (one.low, one.most)]
    _value_axis(axes, reach, "waiting for the accelerator")
    axes.grid(axis="x")
    look: dict[str, Any] = {"color": SOFT, "linestyle": ""}
    legend(
        figure,
        [
            (Line2D([], [], marker="o", markersize=6, **look), "median"),
            (Line2D([], [], color=SOFT, linewidth=4, alpha=0.45), "5 % to 95 %"),
            (Line2D([], [], marker="|", markersize=9, markeredgewidth=1.5, **look), "longest"),
        ],
        size,
    )
    told = counts([(subject.names[one.dialog], one.count) for one in found])
    less = f" Less than {spelled(least)} is drawn as that." if min(one.low for one in found) < least else ""
    return Drawn(figure, f"Times in which a weight was 0 are not counted. Steps: {told}.{less}")


def _share_panel(axes: Axes, one: Share, names: Sequence[str], *, named: bool) -> None:
    """Draw a segment: a bar for each dialog, a thinner one by time, a mark where it was to be."""
    places = {"quanta": (-0.14, 0.38, 1.0), "time": (0.22, 0.26, 0.4)}
    for dialog, _ in enumerate(names):
        for unit, values in (("quanta", one.quanta), ("time", one.time)):
            place, height, alpha = places[unit]
            axes.barh(dialog + place, values[dialog] or 0.0, height, color=color(dialog), alpha=alpha, linewidth=0)
        wanted = one.requested[dialog]
        if wanted is not None and one.unit in places:
            place, height, _ = places[one.unit]
            reach = height / 2 + 0.08
            axes.plot([wanted, wanted], [dialog + place - reach, dialog + place + reach], color=INK, linewidth=2)
    lane_axis(axes, names)
    if not named:
        axes.set_yticks(range(len(names)), [""] * len(names))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    axes.locator_params(axis="x", nbins=4)
    axes.set_title(_segment_title(one), fontsize=FONT_POINTS - 0.5)
    axes.grid(axis="x")


def _segment_title(one: Share) -> str:
    return f"{spelled(one.start)} to {'the end' if one.end is None else spelled(one.end)}"


def _range(axes: Axes, one: Spread, lane: int, least: float) -> None:
    """Draw the middle of values as a dot, most of them as a line, the largest as a mark."""
    low, middle, high, most = (max(value, least) for value in (one.low, one.middle, one.high, one.most))
    shade = color(one.dialog)
    axes.plot([low, high], [lane, lane], color=shade, linewidth=5, alpha=0.45, solid_capstyle="butt")
    axes.plot([middle], [lane], color=shade, marker="o", markersize=6, linestyle="")
    axes.plot([most], [lane], color=shade, marker="|", markersize=10, markeredgewidth=1.5, linestyle="")


def _value_axis(axes: Axes, values: Sequence[float], what: str) -> None:
    """Scale the horizontal axis for values in milliseconds: logarithmic where they are far apart."""
    from matplotlib.ticker import LogLocator

    low, high = max(min(values), _LEAST), max(*values, _LEAST)
    if high / low > _LOGARITHMIC:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
        few = high / low < _FEW_DECADES
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if few else (1.0,)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter("")
    else:
        axes.set_xlim(0, high * 1.05)
    axes.set_xlabel(f"{what} [ms]")
