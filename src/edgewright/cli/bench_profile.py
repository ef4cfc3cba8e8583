"""`edgewright bench profile`: the key figures of Genie's profiles, as the library counts them and as they are."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._output import print_json, table

if TYPE_CHECKING:
    from edgewright.genie.profile import Component, Event, Profile

NAME = "bench profile"
HELP = "Print the key figures of Genie's profiles: the library's, and the same without its rounding and miscounting."
_LARGEST_LOG = 256 << 20
_NOTHING = "-"
#: Columns of a query: a heading, a figure, a factor, and digits after the point.
_COLUMNS = (
    ("prompt", "num-prompt-tokens", 1, 0),
    ("ttft ms", "time-to-first-token", 1e-3, 1),
    ("prompt tok/s", "prompt-processing-rate", 1, 1),
    ("tokens", "num-generated-tokens", 1, 0),
    ("decode ms", "token-generation-time", 1e-3, 1),
    ("decode tok/s", "token-generation-rate", 1, 2),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a profile, a run folder, or what an early genie-t2t-run printed",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the figures."""
    found = [_read(Path(name)) for name in args.files]
    if args.json:
        print_json({"profiles": [_json(path, profile) for path, profile in found]})
        return 0
    for number, (path, profile) in enumerate(found):
        sys.stdout.write("\n" * bool(number) + "\n".join(_shown(path, profile)) + "\n")
    return 0


def _read(path: Path) -> tuple[Path, Profile]:
    """Return a profile, or the figures in a program's output as one."""
    from edgewright.errors import GenieError
    from edgewright.genie.document import read_bytes
    from edgewright.genie.printed import printed_queries
    from edgewright.genie.profile import Component, Profile, read_profile

    path = path / "profile.json" if path.is_dir() else path
    try:
        return path, read_profile(path)
    except GenieError:
        if not path.is_file() or path.suffix == ".json":
            raise
        queries = printed_queries(read_bytes(path, _LARGEST_LOG).decode("utf-8", errors="replace"))
        if not queries:
            raise
        return path, Profile((Component("dialog0", "dialog", queries),))


def _queries(profile: Profile) -> Iterator[tuple[Component, int, Event]]:
    for component in profile.components:
        for number, event in enumerate(component.queries):
            yield component, number, event


def _is_counted(event: Event) -> bool:
    """Whether a query has any of the figures of the columns."""
    return any(figure in event.kpis for _, figure, *_ in _COLUMNS)


def _shown(path: Path, profile: Profile) -> list[str]:
    from edgewright.genie.kpis import recomputed
    from edgewright.genie.profile import QUERIES

    lines = [f"{path}: {_counted(len(profile.components), 'component')}"]
    rows: list[list[object]] = []
    for component, number, event in _queries(profile):
        name = f"{component.name} {number}"
        if not event.complete:
            rows.append([name, "no figures: the query failed", *[""] * len(_COLUMNS)])
            continue
        if not _is_counted(event):
            continue  # a pipeline's are of its nodes, below
        rows.append([name, "library", *_cells(event.kpis)])
        rows.append(["", "recomputed", *_cells(recomputed(event.kpis))])
    if rows:
        lines.append(table(("query", "figures", *(heading for heading, *_ in _COLUMNS)), rows))
    others = [
        [component.name, event.type, f"{event.duration_us / 1000:.3f}", _figures(event.kpis)]
        for component in profile.components
        for event in component.events
        if event.type not in QUERIES or (event.complete and not _is_counted(event))
    ]
    if others:
        lines += ["", table(("component", "event", "ms", "figures"), others)]
    measured = _measured(path.with_name("summary.json"))
    if any(cell != _NOTHING for _, *cells in measured for cell in cells):  # an external program leaves no timestamps
        rows = [[f"dialog{number}", *row] for number, row in enumerate(measured)]
        lines += ["", table(("by timestamps", "dialog", "ttft ms", "prompt tok/s", "decode tok/s"), rows)]
    return lines


def _measured(summary: Path) -> list[list[str]]:
    """Return what the summary of a run folder has of each dialog: name, and figures from timestamps; [] of none."""
    try:
        dialogs = json.loads(summary.read_bytes())["dialogs"].items()
        return [
            [
                name,
                _figure((one.get("ttft_ms") or {}).get("p50"), 1),
                _figure(one.get("prefill_tokens_per_s"), 1),
                _figure(one.get("decode_tokens_per_s"), 2),
            ]
            for name, one in dialogs
        ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return []  # a profile stands alone, too


def _figure(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:,.{digits}f}"


def _cells(kpis: Mapping[str, tuple[float, str]]) -> list[str]:
    return [
        f"{kpis[figure][0] * factor:,.{digits}f}" if figure in kpis else _NOTHING
        for _, figure, factor, digits in _COLUMNS
    ]


def _figures(kpis: Mapping[str, tuple[float, str]]) -> str:
    return ", ".join(f"{name} {value:g} {unit}".rstrip() for name, (value, unit) in kpis.items())


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _json(path: Path, profile: Profile) -> dict[str, Any]:
    return {
        "file": str(path),
        "timestamp_us": profile.timestamp_us,
        "components": [
            {"name": one.name, "type": one.type, "events": [_event_json(event) for event in one.events]}
            for one in profile.components
        ],
    }


def _event_json(event: Event) -> dict[str, Any]:
    from edgewright.genie.kpis import recomputed

    return {
        "type": event.type,
        "start_us": event.start_us,
        "duration_us": event.duration_us,
        "library": _kpis_json(event.kpis),
        "recomputed": _kpis_json(recomputed(event.kpis)),
    }


def _kpis_json(kpis: Mapping[str, tuple[float, str]]) -> dict[str, Sequence[object]]:
    return {name: [value, unit] for name, (value, unit) in kpis.items()}
