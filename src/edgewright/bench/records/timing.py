"""The results as tables for people: `timing.txt`, and what `bench run` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NONE = "-"
_HEAD = ("dialog", "jobs", "TTFT ms", "ITL ms p50", "p99", "max", "tok/s", "alone", "slower", "queue ms", "gap")


def tables(summary: Mapping[str, Any]) -> str:
    """Return the dialogs, the segments and the system's figures of a summary."""
    title = f"{summary['case']} / {summary['run']}: {summary['status']}"
    parts = [
        title + (", simulated: times are a cost model's, not a device's" if summary["simulated"] else ""),
        columns(_HEAD, [_dialog(name, one) for name, one in summary["dialogs"].items()]),
    ]
    if summary["segments"]:
        parts.append(columns(*_segments(summary)))
    parts.append(_system(summary["system"]))
    return "\n\n".join(parts) + "\n"


def timing_text(summary: Mapping[str, Any]) -> str:
    """Return the text of `timing.txt`: the tables, the intervals over repeats, and the findings."""
    parts = [tables(summary)]
    repeated = {name: one for name, one in summary["repeats"].items() if one["n"] > 1}
    if repeated:
        rows = [
            (name, *(_number(one[key]) for key in ("mean", "low", "high")), one["n"]) for name, one in repeated.items()
        ]
        parts.append(columns(("over the repeats", "mean", "95 % low", "high", "n"), rows) + "\n")
    if summary["findings"]:
        parts.append("\n".join(summary["findings"]) + "\n")
    return "\n".join(parts)


def columns(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a plain table: the first column to the left, the others to the right."""
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _dialog(name: str, one: Mapping[str, Any]) -> list[str]:
    solo, slower = one["solo"] or {}, one["slowdown"] or {}
    factor = slower.get("itl") if slower.get("itl") is not None else slower.get("total")
    return [
        name,
        f"{one['complete']}/{one['jobs']}",
        _of(one["ttft_eligible_ms"], "mean"),
        _of(one["itl_ms"], "p50"),
        _of(one["itl_ms"], "p99"),
        _of(one["itl_ms"], "max"),
        _number(one["decode_tokens_per_s"]),
        _number(solo.get("decode_tokens_per_s")),
        NONE if factor is None else f"{factor:.3g}x",
        _of(one["queue_ms"], "mean"),
        _number(one["worst_gap_quanta"]),
    ]


def _segments(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the table of shares: what was asked, had by quanta and had by time, a dialog after the other."""
    names = list(summary["dialogs"])
    rows = []
    for one in summary["segments"]:
        end = "end" if one["end_ms"] is None else f"{one['end_ms']:g}"
        row = [f"{one['start_ms']:g}-{end} ms", str(one["quanta"])]
        for name in names:
            asked = NONE if one["requested"] is None else f"{100 * one['requested'][name]:.1f}"
            had = one["achieved"][name]
            row.append(f"{asked} | {100 * had['quanta']:.1f} | {100 * had['time']:.1f}")
        rows.append(row)
    return ["% asked | by steps | by time", "steps", *names], rows


def _system(one: Mapping[str, Any]) -> str:
    peak = one["peak_rss_bytes"]
    rows = [
        ("makespan", _number(one["makespan_ms"]), "ms"),
        ("tokens", _number(one["tokens_per_s"]), "tok/s"),
        ("accelerator busy", NONE if one["busy"] is None else f"{100 * one['busy']:.1f}", "%"),
        ("held for a dialog", _number(one["held_ms"]), "ms"),
        ("fairness of service", _number(one["jain_service"]), "Jain"),
        ("fairness of progress", _number(one["jain_progress"]), "Jain"),
        ("peak memory", NONE if peak is None else f"{peak / 1e6:.0f}", "MB"),
        ("energy", _number(one["energy_j"]), "J"),
    ]
    return columns(("system", "", ""), [row for row in rows if row[1] != NONE])


def _of(found: Mapping[str, Any] | None, name: str) -> str:
    return NONE if found is None else _number(found[name])


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"
