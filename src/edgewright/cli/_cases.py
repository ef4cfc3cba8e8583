"""The ways of naming cases on a command line: a case file, use-case lines, or the words of genie-t2t-run after `--`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._parser import Parser, add_common, did_you_mean, positive_int
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.bench.case.spec import Case, RunnerSpec

PROGRAM = "genie-t2t-run"


def add_case_arguments(parser: argparse.ArgumentParser, *, words: bool = True) -> None:
    """Add what names cases; with `words` that may be genie-t2t-run's options after `--` as well."""
    other = f"; or give -- and {PROGRAM}'s options" if words else ""
    parser.add_argument(
        "case",
        metavar="CASE",
        nargs="?" if words else None,
        help=f"a case file (.yaml, .yml, .json), or a file of use-case lines{other}",
    )
    parser.add_argument("--models", metavar="FILE", help="registry of models; use-case lines need it")
    parser.add_argument("--iter", type=positive_int, metavar="N", help="queries of dialogs that don't say how many")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this case; may be repeated")
    parser.add_argument(
        "--runner",
        metavar="WORDS",
        help=f"on a device, by its {PROGRAM}: the words before the options, as one: 'adb shell /data/{PROGRAM}'",
    )


def parse_with_words(
    name: str, text: str, add: Callable[[argparse.ArgumentParser], None], words: Sequence[str]
) -> argparse.Namespace:
    """Parse a verb's arguments; those after `--` become `words`, None where there are none."""
    before, after = list(words), None
    if "--" in before:
        place = before.index("--")
        before, after = before[:place], before[place + 1 :]
    parser = Parser(f"edgewright {name}", text)
    add(parser)
    add_common(parser)
    args = parser.parse(before)
    args.words = after
    return args


def cases_of(args: argparse.Namespace) -> tuple[Case, ...]:
    """Return the cases that arguments name; raises UsageError (CaseError with everything that is wrong)."""
    if (args.case is None) == (args.words is None):
        raise UsageError(f"Give a CASE, or the words of {PROGRAM} after --; see --help.")
    cases = _of_words(args) if args.words is not None else _of_file(args)
    names = [case.name for case in cases]
    for name in args.only:
        if name not in names:
            raise UsageError(f"There is no case {name!r}{did_you_mean(name, names)}: choose from {', '.join(names)}.")
    return tuple(case for case in cases if not args.only or case.name in args.only)


def _of_file(args: argparse.Namespace) -> tuple[Case, ...]:
    from edgewright.bench.case import read_cases

    models = None if args.models is None else Path(args.models)
    return read_cases(Path(args.case), models=models, iterations=args.iter, runner=runner_of(args))


def _of_words(args: argparse.Namespace) -> tuple[Case, ...]:
    """Return the case of the words of genie-t2t-run; the program's own name may stand first."""
    from edgewright.bench.case.flags import case_of, parse_flags, registry_of

    words = args.words[1:] if args.words and not args.words[0].startswith("-") else args.words
    found = parse_flags(words)
    for option, value in (("--models", args.models), ("--runner", args.runner)):
        if value is not None and option in found.values:
            raise UsageError(f"{option} stands before and after --: keep one of them.")
        if value is not None:
            found.values[option] = value
    if args.iter is not None:
        found.values.setdefault("--iterations", str(args.iter))
    return (case_of(found, registry_of(found)),)


def runner_of(args: argparse.Namespace) -> RunnerSpec | None:
    """Return the external program of --runner; raises UsageError for one that can't be used."""
    from edgewright.bench.case.fields import command_words
    from edgewright.bench.case.files import paths_are_elsewhere
    from edgewright.bench.case.spec import RunnerSpec

    if args.runner is None:
        return None
    runner = RunnerSpec(command=command_words(args.runner, "--runner"))
    paths_are_elsewhere(runner)
    return runner
