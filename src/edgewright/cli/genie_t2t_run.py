"""`edgewright genie-t2t-run`: the options of genie-t2t-run and of its concurrent mode, run on bundles here."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._output import note
from edgewright.cli._progress import progress_for

if TYPE_CHECKING:
    from edgewright.bench.case.spec import Case
    from edgewright.bench.case.words import Option, Words
    from edgewright.bench.records import RunResult

NAME = "genie-t2t-run"
HELP = "Take genie-t2t-run's options, several dialogs included: existing scripts run on bundles, here."
_EXIT_CODES = """\
stdout has the dialogs' texts, stderr the times; everything is in the run folder.
exit codes: 0 all complete, 1 nothing was, 2 the command line is wrong, 3 some dialogs failed,
  4 the run folder exists or can't be written, 130 interrupted"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: the words are read by `parse`."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words as genie-t2t-run does; prints the help and leaves for --help, or without any words.

    Raises UsageError.
    """
    if not words or "-h" in words or "--help" in words:
        sys.stdout.write(_help())
        raise SystemExit(0)
    from edgewright.bench.case.flags import parse_flags

    found = parse_flags(words)
    return argparse.Namespace(words=found, quiet="--quiet" in found.values)


def run(args: argparse.Namespace) -> int:
    """Run the dialogs; raises CaseError with everything that is wrong."""
    from edgewright.bench.case.flags import case_of, refuse_profile, registry_of
    from edgewright.bench.records import PROFILE
    from edgewright.files import os_errors

    words: Words = args.words
    refuse_profile(words)
    values = words.values
    case = case_of(words, registry_of(words))
    if "--pid" in values:
        print(f"genie-t2t-run pid: {os.getpid()}", flush=True)
    quiet = args.quiet or values.get("--log") == "error"
    result = _run(case, words, quiet=quiet)
    made = result.folder / PROFILE
    try:
        if "--profile" in values and made.is_file():
            with os_errors(values["--profile"]):
                shutil.copyfile(made, values["--profile"])
    finally:  # stdout comes last, as its reader may go away
        _tell(result)
    note(f"run folder: {result.folder}", quiet=quiet)
    return result.exit_code


def _run(case: Case, words: Words, *, quiet: bool) -> RunResult:
    from edgewright.bench.concurrent import run_case
    from edgewright.bench.external import run_external

    values = words.values
    out, run_id, overwrite = Path(values.get("--output", "runs")), values.get("--run-id"), "--overwrite" in values
    progress = progress_for(quiet=quiet)
    if case.runner is not None:
        return run_external(case, case.runner, out, run_id=run_id, overwrite=overwrite, progress=progress)
    return run_case(case, out, run_id=run_id, overwrite=overwrite, progress=progress)


def _tell(result: RunResult) -> None:
    """Print what the dialogs said, one after the other, on stdout, and the times on stderr."""
    from edgewright.bench.external.processes import STDOUT
    from edgewright.bench.external.pull import EXECUTIONS
    from edgewright.bench.records import DIALOGS, TIMING

    logs = sorted((result.folder / DIALOGS).glob("*.log"), key=_natural)
    # What an external program printed is told as it is.
    printed = sorted((result.folder / EXECUTIONS).glob(f"*/{STDOUT}"))
    for log in printed or logs:
        title = log.parent.name if printed else log.stem
        sys.stdout.write(f"== {title}\n{log.read_text(encoding='utf-8', errors='replace')}")
    sys.stdout.flush()
    timing = result.folder / TIMING
    if timing.is_file():
        sys.stderr.write(timing.read_text(encoding="utf-8"))


def _natural(path: Path) -> tuple[int, str]:
    return len(path.stem), path.stem


def _help() -> str:
    from edgewright.bench.case.options import CONCURRENT, OURS, STOCK

    done = [option for option in STOCK if option.kind != "refused"]
    refused = [option for option in STOCK if option.kind == "refused"]
    return "\n".join(
        [
            "usage: edgewright genie-t2t-run -c FILE INPUT [options] [--concurrent ...]",
            "",
            HELP,
            "",
            *_listed("one dialog:", done),
            *_listed("several dialogs; --concurrent-strideN W:T,W:T is a timeline of dialog N, T in ms:", CONCURRENT),
            *_listed("beside them:", OURS),
            *_listed("not done here (with --runner the program gets them as they are):", refused),
            _EXIT_CODES,
            "",
        ]
    )


def _listed(title: str, options: Sequence[Option]) -> list[str]:
    lines = [title]
    for option in options:
        spelled = ", ".join(option.names) + ("" if option.value is None else f" {option.value}")
        lines.append(f"  {spelled}\n      {option.help}")
    return [*lines, ""]
