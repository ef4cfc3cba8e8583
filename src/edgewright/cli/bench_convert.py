"""`edgewright bench convert`: case files of command lines and use-case lines."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._cases import add_case_arguments, cases_of, parse_with_words
from edgewright.cli._output import note
from edgewright.errors import OutputError, UsageError

if TYPE_CHECKING:
    from edgewright.bench.case.spec import Case

NAME = "bench convert"
HELP = "Write case files of use-case lines, of genie-t2t-run's options after --, or of a case file anew."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_case_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="a file ending in .yaml or .json, or a folder for one file a case (default: print a single case)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; those after `--` are genie-t2t-run's."""
    return parse_with_words(NAME, HELP, add_arguments, words)


def run(args: argparse.Namespace) -> int:
    """Convert; raises OutputError for a file that exists."""
    from edgewright.bench.case.writer import to_yaml
    from edgewright.files import os_errors

    cases = cases_of(args)
    if args.output is None:
        if len(cases) > 1:
            raise UsageError(f"There are {len(cases)} cases: give -o with a folder, or --only with a name.")
        sys.stdout.write(to_yaml(cases[0], Path()))
        return 0
    places = _places(Path(args.output), cases)
    for _, place in places:
        if place.exists() and not args.overwrite:
            raise OutputError(f"{place} exists already: choose another name, or pass --overwrite.")
    for case, place in places:
        with os_errors(str(place)):
            _write(case, place)
        note(f"wrote {place}", quiet=args.quiet)
    return 0


def _places(output: Path, cases: Sequence[Case]) -> list[tuple[Case, Path]]:
    """Return each case with its file; raises UsageError for several cases and one file."""
    from edgewright.bench.case.files import SUFFIXES

    if output.suffix.lower() not in SUFFIXES:
        return [(case, output / f"{case.name}.yaml") for case in cases]
    if len(cases) > 1:
        raise UsageError(f"{output} is one file for {len(cases)} cases: give a folder, or --only with a name.")
    return [(cases[0], output)]


def _write(case: Case, place: Path) -> None:
    """Write a case file that can be read; raises UsageError for a case that no file can hold."""
    from edgewright.bench.case.files import read_case
    from edgewright.bench.case.writer import case_data, to_yaml

    place.parent.mkdir(parents=True, exist_ok=True)
    suffix = place.suffix.lower()
    new = place.with_name(f".{place.stem}.partial-{os.getpid()}{suffix}")
    try:
        if suffix == ".json":
            text = json.dumps(case_data(case, place.parent), indent=2, ensure_ascii=False)
            new.write_text(f"{text}\n", encoding="utf-8")
        else:
            new.write_text(to_yaml(case, place.parent), encoding="utf-8")
        read_case(new)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)
