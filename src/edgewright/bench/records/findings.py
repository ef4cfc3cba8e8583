"""What somebody who reads a summary should be told: one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.bench.records.reader import Run

#: Shares that differ by more than this are told of, where a segment has enough steps to say so.
_SHARE, _ENOUGH = 0.03, 50


def findings(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """Return sentences about what went wrong or looks odd."""
    found = [f"The files are not whole: {note}." for note in run.notes]
    if summary["status"] == "interrupted":
        found.append("The run was interrupted: what is here was recorded until then.")
    found += [str(event.get("text")) for event in run.events if event.get("event") == "note"]
    for name, one in summary["dialogs"].items():
        found += _dialog(name, one)
    for segment in summary["segments"]:
        found += _segment(segment)
    return found


def _dialog(name: str, one: Mapping[str, Any]) -> list[str]:
    found = []
    if one["failed"]:
        found.append(f"{name}: {one['failed']} of {one['jobs']} jobs failed. {one['error']}")
    elif one["error"]:
        found.append(f"{name}: {'it failed' if one['jobs'] else 'it did not run'}. {one['error']}")
    elif not one["jobs"]:
        found.append(f"{name}: no job of it ended.")
    if one["stopped"]:
        found.append(f"{name}: {one['stopped']} of {one['jobs']} jobs were stopped before their end.")
    if one["same_tokens_as_solo"] is False:
        found.append(f"{name}: its tokens are not those of its solo run.")
    if one["saturated"]:
        found.append(f"{name}: {one['saturated']} values saturated while embeddings were requantized.")
    if one["deadline_misses"]:
        found.append(f"{name}: {one['deadline_misses']} of {one['deadlines']} deadlines were missed.")
    return found


def _segment(one: Mapping[str, Any]) -> list[str]:
    if one["error"] is None or one["error"] <= _SHARE or one["quanta"] < _ENOUGH:
        return []
    unit, requested = one["unit"], one["requested"]
    worst = max(requested, key=lambda name: abs(one["achieved"][name][unit] - requested[name]))
    end = "the end" if one["end_ms"] is None else f"{one['end_ms']:g} ms"
    return [
        f"From {one['start_ms']:g} ms to {end}, {worst} had {100 * one['achieved'][worst][unit]:.1f} % of the "
        f"{'steps' if unit == 'quanta' else 'time'} where {100 * requested[worst]:.1f} % was requested."
    ]
