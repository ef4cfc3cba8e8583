"""`edgewright bench validate`: everything that is wrong with cases, before any model is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgewright.cli._cases import add_case_arguments, cases_of, parse_with_words
from edgewright.cli._output import print_json

if TYPE_CHECKING:
    from edgewright.bench.case.problems import Problem
    from edgewright.bench.case.spec import Case

NAME = "bench validate"
HELP = "Find everything that is wrong with cases, before any model is loaded; exit code 2 when there is anything."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_case_arguments(parser)
    parser.add_argument("--no-files", action="store_true", help="don't look at bundles, tables and inputs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; those after `--` are genie-t2t-run's."""
    return parse_with_words(NAME, HELP, add_arguments, words)


def run(args: argparse.Namespace) -> int:
    """Check the cases."""
    from edgewright.bench.case.check import problems
    from edgewright.bench.case.problems import CaseError

    cases: tuple[Case, ...] = ()
    found: list[Problem] = []
    try:
        cases = cases_of(args)
    except CaseError as error:
        found = list(error.problems)
    for case in cases:
        found += [one for one in problems(case, need_files=not args.no_files) if one not in found]
    if args.json:
        print_json(
            {
                "cases": [case.name for case in cases],
                "problems": [{"where": problem.where, "text": problem.text} for problem in found],
            }
        )
    else:
        lines = [f"{problem}" for problem in found] or [f"{case.name}: nothing is wrong" for case in cases]
        sys.stdout.write("\n".join([*lines, ""]))
    return 2 if found else 0
