"""Figures over time: who had the accelerator, and the tokens that came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewright.report.charts import short
from edgewright.report.columns import Floats, Spans, total
from edgewright.report.figure_data import Lanes, closeup, lanes, query_spans, tokens
from edgewright.report.style import (
    FONT_POINTS,
    IDLE,
    LINE,
    OTHER_PHASE,
    PHASES,
    SOFT,
    STALLED,
    WIDTHS,
    Size,
    blank,
    color,
    counts,
    dashes,
    label,
    lane_axis,
    legend,
    legend_points,
    text_points,
)
from edgewright.report.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Height of a lane and of what stands around the lanes, in points.
_LANE, _AROUND = 22.0, 74.0
#: How much fewer bars a narrow figure shows.
_PARTS: dict[Size, float] = {"wide": 1.0, "narrow": 0.4}
_BAR = 0.72
_MOST_CHANGES = 200


@dataclass(frozen=True)
class Drawn:
    """A figure, and what is to be said of it."""

    figure: Figure
    caption: str


def accelerator(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw which dialog had the accelerator when, in which phase, and when nobody had it."""
    found = lanes(subject.shown, subject.paused, part=_PARTS[size])
    return None if found is None else _draw_lanes(subject, found, size, note, "")


def steps(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw a part of the run so near that each step is seen; None where the whole is as near."""
    window = closeup(subject.shown, _changes(subject), 60 if size == "wide" else 24)
    found = None if window is None else lanes(subject.shown, subject.paused, window)
    return None if found is None else _draw_lanes(subject, found, size, note, f"From {spelled(found.start)} on: ")


def queries(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw when each dialog had a query: of runs whose steps nobody saw, such as those of an external program."""
    jobs = [] if len(subject.shown) else query_spans(subject)
    if not jobs:
        return None
    end = max(one.end for one in jobs)
    unit, factor = time_unit(end)
    figure = blank(size, _LANE * len(subject.names) + _AROUND, note=note)
    axes = figure.add_subplot()
    for one in jobs:
        look: dict[str, Any] = {"facecolor": color(one.dialog), "alpha": 0.5}
        if not one.complete:
            look = {"facecolor": "none", "edgecolor": color(one.dialog), "linewidth": 1.2}
        axes.broken_barh([(one.start / factor, (one.end - one.start) / factor)], (one.dialog - _BAR / 2, _BAR), **look)
    lane_axis(axes, subject.names)
    axes.set_xlim(0, end / factor)
    axes.set_xlabel(f"time [{unit}]")
    failed = sum(not one.complete for one in jobs)
    told = f" {failed} of them failed or were stopped: their boxes are empty." if failed else ""
    return Drawn(figure, f"{len(jobs)} queries from release to end; no step of them was recorded.{told}")


def tokens_over_time(subject: Subject, size: Size, note: str) -> Drawn | None:
    """Draw how many tokens each dialog has had by when, with the changes of weights."""
    series = tokens(subject.shown, subject.names)
    if not series:
        return None
    from matplotlib.lines import Line2D

    unit, factor = time_unit(float(subject.shown.done.max()))
    names = [label(subject.names[one.dialog]) for one in series]
    figure = blank(size, 225 + legend_points(names, size), note=note)
    axes = figure.add_subplot()
    entries = []
    for one, name in zip(series, names, strict=True):
        look: dict[str, Any] = {"color": color(one.dialog), "linestyle": dashes(one.dialog), "linewidth": 1.6}
        x = np.concatenate([[one.x[0]], one.x]) / factor
        axes.step(x, np.concatenate([[0.0], one.y]), where="post", **look)
        entries.append((Line2D([], [], **look), name))
    axes.set_xlim(0, float(subject.shown.done.max()) / factor)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="y", integer=True)
    axes.set_xlabel(f"time [{unit}]")
    kinds = [name for name, phase in (("tokens", "decode"), ("chunks", "denoise")) if phase in subject.shown.phase]
    axes.set_ylabel(", ".join(kinds) or "tokens")
    axes.grid(axis="y")
    weights = _mark_weights(axes, subject, factor, size)
    legend(figure, entries, size)
    told = counts([(subject.names[one.dialog], one.count) for one in series])
    return Drawn(figure, f"{told}.{_thinned(series)}{weights}")


def time_unit(span_ms: float) -> tuple[str, float]:
    """Return a unit in which a time is spelled with few digits, and its length in milliseconds."""
    for unit, length, most in (("ms", 1.0, 2e3), ("s", 1e3, 3e5), ("min", 6e4, 2.4e7)):
        if span_ms < most:
            return unit, length
    return "h", 3.6e6


def _draw_lanes(subject: Subject, found: Lanes, size: Size, note: str, prefix: str) -> Drawn:
    from matplotlib.patches import Patch

    unit, factor = time_unit(found.end)
    rows = [*subject.names, "nobody"]
    figure = blank(size, _LANE * len(rows) + _AROUND, note=note)
    axes = figure.add_subplot()
    for (dialog, phase), spans in found.spans.items():
        look = {"color": color(dialog), "alpha": PHASES.get(phase, OTHER_PHASE), "linewidth": 0}
        if found.columns is None:
            _bars(axes, spans / factor, dialog, look)
    if found.columns is None:
        for spans, shade in ((found.idle, IDLE), (found.stalled, STALLED)):
            _bars(axes, spans / factor, len(subject.names), {"color": shade, "linewidth": 0})
    else:
        _fill_columns(axes, found, factor, len(subject.names))
    lane_axis(axes, rows)
    axes.set_xlim(found.start / factor, found.end / factor)
    axes.set_xlabel(f"time [{unit}]")
    for change in _changes(subject):
        if found.start < change < found.end:
            axes.axvline(change / factor, color=SOFT, linewidth=0.8, linestyle=(0, (3, 2)))
    for lane in range(len(rows) - 1):
        axes.axhline(lane + 0.5, color=LINE, linewidth=0.6)
    entries = [(Patch(color=SOFT, alpha=PHASES.get(p, OTHER_PHASE), linewidth=0), p) for p in found.phases]
    entries += [(Patch(color=STALLED), "idle, somebody waits")] if len(found.stalled) else []
    entries += [(Patch(color=IDLE), "idle")] if len(found.idle) else []
    legend(figure, entries, size)
    return Drawn(figure, prefix + _lane_caption(found))


def _lane_caption(found: Lanes) -> str:
    length = found.length
    parts = [("busy", found.busy), ("idle while somebody waits", total(found.stalled)), ("idle", total(found.idle))]
    text = ", ".join(f"{name} {short(100 * value / length)} %" for name, value in parts)
    if found.columns is None:
        return f"{text}."
    width = length / len(next(iter(found.columns.values())))
    return f"{text}. Each column is {spelled(width)}; its height is the part of that time."


def _bars(axes: Axes, spans: Spans, lane: int, look: dict[str, Any]) -> None:
    if len(spans):
        axes.broken_barh(np.stack([spans[:, 0], spans[:, 1] - spans[:, 0]], axis=1).tolist(), (lane - _BAR / 2, _BAR),
                         **look)  # fmt: skip


def _fill_columns(axes: Axes, found: Lanes, factor: float, nobody: int) -> None:
    """Draw each dialog's columns from the bottom of its lane up, phase over phase, and those of nobody in the last."""
    assert found.columns is not None
    levels: dict[int, Floats] = {}
    for (dialog, phase), share in found.columns.items():
        edges = np.linspace(found.start, found.end, len(share) + 1) / factor
        lane = nobody if dialog < 0 else dialog
        shade = {"stalled": STALLED, "idle": IDLE}[phase] if dialog < 0 else color(dialog)
        ink = 1.0 if dialog < 0 else PHASES.get(phase, OTHER_PHASE)
        floor = levels.get(lane, np.full(len(share), lane + _BAR / 2))
        top = floor - share * _BAR
        low, high = (np.append(level, level[-1]) for level in (floor, top))
        axes.fill_between(edges, low, high, step="post", linewidth=0, color=shade, alpha=ink)
        levels[lane] = top


def _changes(subject: Subject) -> list[float]:
    """Return when weights change, in milliseconds; the first of too many to be drawn."""
    return [one.start_ns / 1e6 for one in subject.segments[1:_MOST_CHANGES]]


def _mark_weights(axes: Axes, subject: Subject, factor: float, size: Size) -> str:
    """Draw a line at each change of weights and write the weights between; returns what is to be said of them."""
    left, right = axes.get_xlim()
    spans = [
        (one.start_ns / 1e6 / factor, right if one.end_ns is None else one.end_ns / 1e6 / factor, one.weights)
        for one in subject.segments[:_MOST_CHANGES]
    ]
    seen = [(max(start, left), min(end, right), weights) for start, end, weights in spans if start < right]
    for start, _, _ in seen[1:]:
        axes.axvline(start, color=SOFT, linewidth=0.8, linestyle=(0, (3, 2)))
    texts = [" : ".join(short(weight) for weight in weights) for _, _, weights in seen]
    room = (WIDTHS[size] - 60) / (right - left)
    numbered = ""
    for place, ((start, end, _), text) in enumerate(zip(seen, texts, strict=True)):
        fitting = next((one for one in (text, f"#{place + 1}") if text_points(one) < (end - start) * room), "")
        numbered = numbered if fitting == text else " #: the number of a segment, whose weights are in the table."
        axes.annotate(fitting, ((start + end) / 2, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
                      textcoords="offset points", ha="center", va="bottom", fontsize=FONT_POINTS - 1,
                      color=SOFT)  # fmt: skip
    many = len(subject.names) > 6
    order = "of the dialogs" if many else ", ".join(map(label, subject.names))
    if len(seen) == 1:
        return f" Weights {texts[0]} ({order})." if len(subject.names) > 1 and not many else ""
    return f" Weights above the segments, in the order {order}.{numbered}"


def _thinned(series: Sequence[Any]) -> str:
    return " Lines are thinned." if any(one.count > len(one.x) for one in series) else ""


def spelled(value_ms: float) -> str:
    """Spell a time."""
    unit, factor = time_unit(value_ms)
    return f"{value_ms / factor:.4g} {unit}" if value_ms else "0"
