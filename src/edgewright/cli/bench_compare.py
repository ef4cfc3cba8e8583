"""`edgewright bench compare`: two recorded runs side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._output import note, print_json, table

if TYPE_CHECKING:
    from edgewright.report.compare import Comparison, Figure, Row

NAME = "bench compare"
HELP = "Compare two recorded runs: figures with their ratios, and intervals where there are repeats."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("first", metavar="A", help="a folder that `bench run` wrote")
    parser.add_argument("second", metavar="B", help="another one; ratios are B over A")
    parser.add_argument("-o", "--output", metavar="PAGE.html", help="write an HTML page that needs nothing else")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def run(args: argparse.Namespace) -> int:
    """Compare."""
    from edgewright.files import write_text
    from edgewright.report.compare import compare
    from edgewright.report.subject import Subject

    found = compare(Subject.read(args.first), Subject.read(args.second))
    if args.output:
        from edgewright.report.compare_page import compare_page

        write_text(Path(args.output), compare_page(found))
    if args.json:
        print_json(found.to_json())
        return 0
    for subject in (found.first, found.second):
        for text in subject.notes:
            note(f"note: {subject.title}: {text}", quiet=args.quiet)
    sys.stdout.write("\n".join(_lines(found)) + "\n")
    if args.output:
        sys.stdout.write(f"\n{args.output}\n")
    return 0


def _lines(found: Comparison) -> list[str]:
    lines = [f"A  {found.first.title}, {found.first.status}", f"B  {found.second.title}, {found.second.status}"]
    if found.first.run.simulated or found.second.run.simulated:
        which = [name for name, one in zip("AB", (found.first, found.second), strict=True) if one.run.simulated]
        lines.append(f"{' and '.join(which)}: simulated device")
    lines += [f"nothing can be compared: {text}" for text in found.reasons]
    lines += [f"{name} can't be compared: {text}" for name, text in found.apart.items()]
    lines += [f"different  {text}" for text in found.changed]
    if found.rows:
        lines += ["", table(("figure", "A", "B", "B/A", "95 % interval", ""), [_cells(row) for row in found.rows])]
    return lines


def _cells(row: Row) -> tuple[object, ...]:
    name = f"{row.name} [{row.unit}]" if row.unit else row.name
    interval = "-" if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"
    return (
        name if row.dialog is None else f"{row.dialog}: {name}",
        _mean(row.first),
        _mean(row.second),
        "-" if row.ratio is None else f"{row.ratio:.3f}",
        interval,
        row.finding or "",
    )


def _mean(one: Figure | None) -> str:
    return "-" if one is None else f"{one.mean:.4g}"
