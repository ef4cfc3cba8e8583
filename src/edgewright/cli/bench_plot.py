"""`edgewright bench plot`: figures and a page of recorded runs, from their files alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._output import note
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.report.subject import Subject

NAME = "bench plot"
HELP = "Draw recorded runs: figures as PNG and SVG, and one HTML page that needs nothing else."
FORMATS = ("png", "svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a folder that `bench run` wrote")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="put figures/ and page.html there (default: into the run's folder); with several runs, each into a folder "
        "CASE-RUN of it",
    )
    parser.add_argument("--formats", metavar="F,F", default="png,svg", help="of the figures: png, svg (default: both)")
    parser.add_argument("--no-page", action="store_true", help="write no page")


def run(args: argparse.Namespace) -> int:
    """Draw."""
    from edgewright.report.subject import Subject

    formats = _formats(args.formats)
    subjects = [Subject.read(path) for path in args.runs]
    places = _places(subjects, args.output)
    for subject, place in zip(subjects, places, strict=True):
        for text in subject.notes:
            note(f"note: {subject.title}: {text}", quiet=args.quiet)
        written = draw(subject, place, formats, with_page=not args.no_page)
        if not written:
            note(f"note: {subject.title}: nothing could be drawn", quiet=args.quiet)
        sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


def draw(subject: Subject, place: Path, formats: Sequence[str] = FORMATS, *, with_page: bool = True) -> list[Path]:
    """Write a run's figures and page into `place`; returns the files. Needs matplotlib; raises OutputError."""
    from edgewright.bench.records.folder import FIGURES, PAGE
    from edgewright.files import write_text
    from edgewright.report.figures import draw_files
    from edgewright.report.page import page

    written = draw_files(subject, place / FIGURES, formats)
    if with_page:
        write_text(place / PAGE, page(subject))
        written.append(place / PAGE)
    return written


def _formats(text: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    wrong = [part for part in chosen if part not in FORMATS]
    if wrong:
        raise UsageError(f"Unknown format {wrong[0]!r} in --formats: choose from {', '.join(FORMATS)}.")
    return chosen


def _places(subjects: list[Subject], output: str | None) -> list[Path]:
    """Return where each run's figures go; raises UsageError where two would go to one place."""
    if output is None:
        return [subject.run.folder for subject in subjects]
    if len(subjects) == 1:
        return [Path(output)]
    places = [Path(output) / f"{s.run.folder.resolve().parent.name}-{s.run.folder.resolve().name}" for s in subjects]
    double = next((place for place in places if places.count(place) > 1), None)
    if double is not None:
        raise UsageError(f"Two of the runs would be drawn into {double}: draw them one by one, with -o for each.")
    return places
