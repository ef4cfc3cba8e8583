"""The page of two runs: figures with their ratios and intervals, what can't be compared, both runs' drawings."""

from __future__ import annotations

from typing import Any

from edgewright.report.compare import Comparison, Figure, Row
from edgewright.report.figures import draw_inline
from edgewright.report.page import NONE, Table, shown, warnings
from edgewright.report.style import (
    DARK_PALETTE,
    INK,
    PALETTE,
    SOFT,
    Size,
    blank,
    color,
    drawing,
    inline_svg,
    label,
    lane_axis,
)
from edgewright.report.template import rendered

#: Ratios that are marked beside 1, the largest that fits.
_TICKS = (1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
_TITLE = "Ratio of the second run to the first"


def compare_page(found: Comparison) -> str:
    """Return the page of a comparison. Raises MissingExtraError without matplotlib."""
    pair = (found.first, found.second)
    drawn = [draw_inline(subject, f"{side}-")[0] for side, subject in zip("ab", pair, strict=True)]
    by_name = [{one.name: one for one in side} for side in drawn]
    names = {one.name: one.title for side in drawn for one in side}
    return rendered(
        "edgewright.report",
        "compare.html",
        wide=True,
        light=PALETTE,
        dark=DARK_PALETTE,
        titles=[subject.title for subject in pair],
        simulated=[subject.run.simulated for subject in pair],
        statuses=[subject.status for subject in pair],
        repeats=[len(subject.repeats) for subject in pair],
        warnings=[warnings(subject) for subject in pair],
        reasons=found.reasons,
        apart=found.apart,
        changed=found.changed,
        table=comparison_table(found),
        ratios=_ratios(found),
        figures=[(title, [side.get(name) for side in by_name]) for name, title in names.items()],
    )


def comparison_table(found: Comparison) -> Table:
    """Return the figures of both runs, with ratios and what their intervals say."""
    table = Table(("", "first", "second", "ratio", "95 % interval", ""))
    dialogs = {name: index for index, name in enumerate(dict.fromkeys((*found.first.names, *found.second.names)))}
    for row in found.rows:
        name = f"{row.name} [{row.unit}]" if row.unit else row.name
        table.add(
            name if row.dialog is None else f"{row.dialog}: {name}",
            _spelled(row.first),
            _spelled(row.second),
            NONE if row.ratio is None else f"{row.ratio:.3f}",
            NONE if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}",
            row.finding or "",
            dialog=None if row.dialog is None else dialogs[row.dialog],
        )
    return table


def _spelled(one: Figure | None) -> str:
    return NONE if one is None else shown(one.mean)


def _ratios(found: Comparison) -> dict[Size, str] | None:
    """Return a drawing of all ratios by the size of the window; None where there is none."""
    rows = [row for row in found.rows if row.ratio is not None]
    if not rows:
        return None
    names = {name: index for index, name in enumerate(dict.fromkeys((*found.first.names, *found.second.names)))}
    sizes: tuple[Size, ...] = ("wide", "narrow")
    drawn: dict[Size, str] = {}
    with drawing("ratios"):
        for size in sizes:
            drawn[size] = inline_svg(_draw_ratios(rows, names, size, found), f"ratios-{size}-", _TITLE)
    return drawn


def _draw_ratios(rows: list[Row], names: dict[str, int], size: Size, found: Comparison) -> Any:
    """Draw each ratio as a dot with its interval, on a scale on which half and twice are equally far from 1."""
    figure = blank(size, len(rows) * 17 + 60, note="simulated device" if found.first.run.simulated else "")
    axes = figure.add_subplot()
    for lane, row in enumerate(rows):
        shade = SOFT if row.dialog is None else color(names[row.dialog])
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [lane, lane], color=shade, linewidth=3, alpha=0.5, solid_capstyle="butt")
        axes.plot([row.ratio or 1.0], [lane], color=shade, marker="o", markersize=5, linestyle="")
    lane_axis(axes, [""] * len(rows))
    texts = [row.name if row.dialog is None else f"{label(row.dialog)}: {row.name}" for row in rows]
    axes.set_yticks(range(len(rows)), [text if size == "wide" else _short(text) for text in texts])
    axes.set_xscale("log")
    ends = [value for row in rows for value in (row.low, row.high, row.ratio) if value]
    reach = max(*ends, *(1 / value for value in ends), 1.01) ** 1.1
    axes.set_xlim(1 / reach, reach)
    upper = max((tick for tick in _TICKS if tick <= reach), default=reach)
    ticks = [2 - upper if upper < 1.5 else 1 / upper, 1.0, upper]
    axes.set_xticks(ticks, [f"{tick:.4g}" for tick in ticks])
    axes.xaxis.set_minor_formatter("")
    axes.axvline(1.0, color=INK, linewidth=0.8)
    axes.grid(axis="x")
    axes.set_xlabel("second / first")
    return figure


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:23]}…"
