"""What the verbs print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Levels of verification in the order they are run; a manifest stores them by name.
_LEVELS = (
    "spec", "weights", "graph", "ops", "engine", "quality", "stages", "features", "actions", "golden", "live",
    "bundles",
)  # fmt: skip


def note(text: str, *, quiet: bool = False) -> None:
    """Tell the user something that is not the result."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def print_found(found: Any, lines: Sequence[str], *, as_json: bool, quiet: bool) -> None:
    """Print a result that has `to_json` and `notes`: one JSON object, or its lines and, beside them, its notes."""
    if as_json:
        print_json(found.to_json())
        return
    for text in found.notes:
        note(f"note: {text}", quiet=quiet)
    sys.stdout.write("\n".join([*lines, ""]))


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """Return `name  value` lines with the values under each other."""
    rows = [(name, str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a plain table: text columns to the left, columns of numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    lines = [list(head), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    numeric = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(head))]

    def spelled(line: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([spelled(head), *map(spelled, cells)])


def size(number: float) -> str:
    """Return bytes as people read them, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5:
            return f"{number:.0f} B" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def count(number: float) -> str:
    """Return a number of things as people read it: 135 M, 38.9 k."""
    for unit in ("", " k", " M"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} B"


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def verdict_lines(verdict: Mapping[str, Any]) -> list[str]:
    """Return a verdict: its status, then a line per level."""
    lines = [f"verdict   {verdict['status']}"]
    levels: Mapping[str, Mapping[str, Any]] = verdict.get("levels", {})
    known = {name: place for place, name in enumerate(_LEVELS)}
    order = sorted(levels, key=lambda name: (known.get(name, len(known)), name))
    return lines + [f"  {name}: {levels[name]['status']}, {levels[name]['summary']}" for name in order]
