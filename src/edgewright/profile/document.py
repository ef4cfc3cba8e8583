"""A profile as JSON and back: everything is in it, so that tables, traces, pages and comparisons can be made later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.errors import ProfileError
from edgewright.profile.profile import Layer, Peaks, Phase, Profile, Span
from edgewright.profile.reading import MOST_ITEMS, read_json
from edgewright.profile.table import Row, rows, total

#: Version of the layout; a reader refuses others.
SCHEMA = 1
_KIND = "edgewright-profile"
#: Digits after the point of milliseconds and microseconds.
_DIGITS = 6


def to_json(profile: Profile) -> dict[str, Any]:
    """Return a profile as JSON-compatible values, with the rows of groups of modules beside the layers."""
    return {
        "format": _KIND,
        "schema": SCHEMA,
        "bundle": profile.bundle,
        "kind": profile.kind,
        "engines": dict(profile.engines),
        "threads": profile.threads,
        "peaks": {
            "title": profile.peaks.title,
            "bytes_per_s": profile.peaks.bytes_per_s,
            "ops_per_s": dict(profile.peaks.ops_per_s),
        },
        "phases": [_phase(phase, profile.peaks) for phase in profile.phases],
        "peak_rss_bytes": profile.peak_rss_bytes,
        "peak_anonymous_bytes": profile.peak_anonymous_bytes,
        "notes": list(profile.notes),
    }


def row_json(row: Row) -> dict[str, Any]:
    """Return a row as JSON-compatible values."""
    return {key: round(value, _DIGITS) if isinstance(value, float) else value for key, value in vars(row).items()}


def _phase(phase: Phase, peaks: Peaks) -> dict[str, Any]:
    return {
        "name": phase.name,
        "sizes": dict(phase.sizes),
        "total": row_json(total(phase, peaks)),
        "groups": [row_json(row) for row in rows(phase, peaks)],
        "layers": [_layer(layer) for layer in phase.layers],
        "totals_ms": _rounded(phase.totals_ms),
        "mean_ms": phase.mean_ms,
        "latencies_ms": _rounded(phase.latencies_ms),
        "planned": phase.planned,
        "unplaced_macs": phase.unplaced_macs,
        "unplaced_bytes": phase.unplaced_bytes,
        "timeline": [[span.layer, round(span.start_us, 3), round(span.us, 3)] for span in phase.timeline],
    }


def _layer(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "stage": layer.stage,
        "modules": list(layer.modules),
        "nodes": list(layer.nodes),
        "group": layer.group,
        "calls": layer.calls,
        "times_ms": _rounded(layer.times_ms),
        "mean_ms": layer.mean_ms,
        "median_ms": layer.median_ms,
        "macs": dict(layer.macs),
        "bytes": layer.bytes,
    }


def _rounded(times: tuple[float, ...]) -> list[float]:
    return [round(value, _DIGITS) for value in times]


def read_profile(path: Path) -> Profile:
    """Read a profile that was written as JSON; raises ProfileError."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != _KIND:
        raise ProfileError(f"{path.name} is no profile: give a file that `edgewright profile --json` wrote.")
    if data.get("schema") != SCHEMA:
        raise ProfileError(
            f"{path.name} has the layout {data.get('schema')!r:.20} and this version reads {SCHEMA}: profile again."
        )
    try:
        return _profile(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ProfileError(f"{path.name} lacks or misspells {str(error)[:100]}: profile again.") from None


def _profile(data: Mapping[str, Any]) -> Profile:
    peaks = data["peaks"]
    return Profile(
        bundle=_text(data["bundle"]),
        kind=_text(data["kind"]),
        engines={_text(key): _text(value) for key, value in data["engines"].items()},
        threads=None if data["threads"] is None else int(data["threads"]),
        peaks=Peaks(
            _text(peaks["title"]),
            _maybe(peaks["bytes_per_s"]),
            {_text(key): _above(value) for key, value in peaks["ops_per_s"].items()},
        ),
        phases=tuple(_read_phase(phase) for phase in _list(data["phases"])),
        peak_rss_bytes=None if data["peak_rss_bytes"] is None else _count(data["peak_rss_bytes"]),
        peak_anonymous_bytes=None if data["peak_anonymous_bytes"] is None else _count(data["peak_anonymous_bytes"]),
        notes=tuple(_text(note) for note in _list(data["notes"])),
    )


def _read_phase(data: Mapping[str, Any]) -> Phase:
    totals = tuple(_time(value) for value in _list(data["totals_ms"]))
    layers = tuple(_read_layer(layer, len(totals)) for layer in _list(data["layers"]))
    spans = tuple(Span(_count(layer), _time(start), _time(us)) for layer, start, us in _list(data["timeline"]))
    if any(span.layer >= len(layers) for span in spans):
        raise ValueError("a layer of the timeline")
    return Phase(
        name=_text(data["name"]),
        sizes={_text(key): _count(value) for key, value in data["sizes"].items()},
        layers=layers,
        totals_ms=totals,
        mean_ms=_time(data["mean_ms"]),
        latencies_ms=tuple(_time(value) for value in _list(data["latencies_ms"])),
        planned=data["planned"] is True,
        unplaced_macs=_count(data["unplaced_macs"]),
        unplaced_bytes=_count(data["unplaced_bytes"]),
        timeline=spans,
    )


def _read_layer(data: Mapping[str, Any], runs: int) -> Layer:
    times = tuple(_time(value) for value in _list(data["times_ms"]))
    if len(times) not in (0, runs):
        raise ValueError("times_ms of a layer, one for each run")
    return Layer(
        name=_text(data["name"]),
        kind=_text(data["kind"]),
        stage=_text(data["stage"]),
        modules=tuple(_text(one) for one in _list(data["modules"])),
        group=_text(data["group"]),
        calls=_time(data["calls"]),
        times_ms=times,
        mean_ms=_time(data["mean_ms"]),
        median_ms=None if data["median_ms"] is None else _time(data["median_ms"]),
        nodes=tuple(_text(one) for one in _list(data["nodes"])),
        macs={_text(key): _count(value) for key, value in data["macs"].items()},
        bytes=_count(data["bytes"]),
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_ITEMS:
        raise ValueError("a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"a text where {value!r:.40} is")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"a count where {value!r:.40} is")
    return value


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"a time where {value!r:.40} is")
    return float(value)


def _above(value: Any) -> float:
    if not _time(value):
        raise ValueError("a peak above 0")
    return float(value)


def _maybe(value: Any) -> float | None:
    return None if value is None else _above(value)
