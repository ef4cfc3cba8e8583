"""A profile as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewright.files import write_text
from edgewright.profile.profile import Phase, Profile
from edgewright.profile.table import Row, percentiles, rows, total
from edgewright.report.charts import columns
from edgewright.report.template import rendered

#: Rows of the table of modules; the others are in the JSON file.
_MODULES = 60
#: Layers of the chart, in the order they run; more are drawn as the slowest ones.
_BARS = 240


def write_page(path: Path, profile: Profile) -> None:
    """Write the page of a profile; raises OutputError."""
    write_text(path, page(profile))


def page(profile: Profile) -> str:
    """Return the page of a profile: of each phase its parts, its modules and its layers."""
    return rendered(
        "edgewright.profile",
        "profile.html",
        wide=True,
        profile=profile,
        phases=[_phase(phase, profile) for phase in profile.phases],
        ms=_ms,
        count=_count,
        size=_size,
        percent=_percent,
        rate=_rate,
    )


def _phase(phase: Phase, profile: Profile) -> dict[str, Any]:
    modules = rows(phase, profile.peaks, "module")
    shown = sorted(range(len(phase.layers)), key=lambda index: -phase.layers[index].mean_ms)[:_BARS]
    bars = [(phase.layers[index].name, phase.layers[index].mean_ms) for index in sorted(shown)]
    plain, profiled = percentiles(phase.latencies_ms), percentiles(phase.totals_ms)
    return {
        "phase": phase,
        "sizes": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in phase.sizes.items()),
        "plain": plain if plain[0] is not None else None,
        "profiled": profiled if profiled[0] is not None else None,
        "groups": [*rows(phase, profile.peaks), total(phase, profile.peaks)],
        "modules": _cut(modules),
        "hidden": max(0, len(modules) - _MODULES),
        "chart": columns(bars),
        "drawn": len(bars),
    }


def _cut(found: list[Row]) -> list[Row]:
    """Return the rows that are shown: the longest, and what is outside of layers."""
    return found if len(found) <= _MODULES else [*found[: _MODULES - 1], found[-1]]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _count(value: float) -> str:
    return _spelled(value, 1000) if value else "-"


def _size(value: float | None) -> str:
    return f"{_spelled(value, 1000)}B" if value else "-"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:,.3g}"


def _spelled(value: float, base: int) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {unit}".rstrip() + (" " if not unit else "")
        value /= base
    return f"{value:.3g} T"
