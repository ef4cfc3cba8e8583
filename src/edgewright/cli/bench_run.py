"""`edgewright bench run`: several dialogs on one accelerator, everything recorded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._cases import add_case_arguments, cases_of, parse_with_words
from edgewright.cli._output import note, print_json
from edgewright.cli._parser import positive_int
from edgewright.cli._progress import progress_for
from edgewright.errors import EdgewrightError, UsageError

if TYPE_CHECKING:
    from edgewright.bench.case import Case
    from edgewright.bench.records import RunResult

NAME = "bench run"
HELP = "Run cases of several dialogs on one accelerator: shares, latencies and interference, recorded in a run folder."
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_case_arguments(parser, words=False)
    parser.add_argument("-o", "--output", default="runs", metavar="OUT", help="run folders are OUT/CASE/RUN (runs)")
    parser.add_argument("--run-id", metavar="ID", help="name of the run's folder (default: date and time)")
    parser.add_argument("--overwrite", action="store_true", help="replace a run folder of that name")
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="runs of all dialogs at once")
    parser.add_argument("--no-solo", action="store_true", help="leave out the runs of each dialog alone")
    parser.add_argument("--no-figures", action="store_true", help="draw nothing; `bench plot` does it at any time")
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON instead of tables")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; raises UsageError for options of genie-t2t-run, which are a verb's of their own."""
    if "--" in words:
        raise UsageError(
            "`bench run` takes no options of genie-t2t-run: `edgewright genie-t2t-run` runs them, and "
            "`edgewright bench convert -- ...` makes a case file of them."
        )
    return parse_with_words(NAME, HELP, add_arguments, words)


def run(args: argparse.Namespace) -> int:
    """Run all cases of the file, one after the other; nothing is run where one of them is wrong."""
    runs = [_runs(_changed(case, args), args) for case in cases_of(args)]
    results: list[RunResult] = []
    try:
        for once in runs:
            results.append(once())
            if not args.json:
                _print(results[-1], quiet=args.quiet)
            if results[-1].exit_code == _INTERRUPTED:
                break
            if not args.no_figures:
                _draw(results[-1], quiet=args.quiet)
    finally:  # also of the cases before one that couldn't be written
        if args.json and results:
            print_json([{"folder": str(one.folder), **one.summary} for one in results])
    return worst([one.exit_code for one in results])


def worst(codes: Sequence[int]) -> int:
    """Return the exit code of several cases: that of all where they are alike, 3 where some failed and some did not."""
    if _INTERRUPTED in codes:
        return _INTERRUPTED
    return codes[0] if len(set(codes)) == 1 else 3


def _changed(case: Case, args: argparse.Namespace) -> Case:
    """Return a case with what the command line says about its run."""
    run = case.run
    if args.repeats is not None:
        run = replace(run, repeats=args.repeats)
    return replace(case, run=replace(run, solo=False) if args.no_solo else run)


def _runs(case: Case, args: argparse.Namespace) -> Callable[[], RunResult]:
    """Return what runs a case, which has been checked, and whose run folder can be made."""
    from edgewright.bench.case.check import require
    from edgewright.bench.records.folder import check_run_folder

    require(case)
    check_run_folder(Path(args.output), case.name, args.run_id, overwrite=args.overwrite)
    options = {"run_id": args.run_id, "overwrite": args.overwrite, "progress": progress_for(quiet=args.quiet)}
    out = Path(args.output)
    if case.runner is not None:
        from edgewright.bench.external import run_external

        runner = case.runner
        return lambda: run_external(case, runner, out, **options)
    from edgewright.bench.concurrent import run_case

    return lambda: run_case(case, out, **options)


def _print(result: RunResult, *, quiet: bool) -> None:
    from edgewright.bench.records import tables

    sys.stdout.write(tables(result.summary) + "\n")
    for finding in result.summary.get("findings", ()):
        note(finding, quiet=quiet)
    sys.stdout.write(f"{result.folder}\n")


def _draw(result: RunResult, *, quiet: bool) -> None:
    """Draw a run, whose figures are no part of its success: what stands in the way is only told."""
    from edgewright.cli import bench_plot
    from edgewright.report.subject import Subject

    if find_spec("matplotlib") is None:
        note("note: no figures without matplotlib: pip install 'edgewright[report]', then bench plot", quiet=quiet)
        return
    try:
        bench_plot.draw(Subject.read(result.folder), result.folder)
    except EdgewrightError as error:
        note(f"note: the run could not be drawn: {error}", quiet=quiet)
