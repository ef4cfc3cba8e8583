"""`edgewright verify`: is the bundle's engine right?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._build import SOURCE_HELP
from edgewright.cli._output import note, print_json, verdict_lines
from edgewright.cli._progress import progress_for
from edgewright.errors import OutputError

if TYPE_CHECKING:
    from edgewright.bundle import Manifest

NAME = "verify"
HELP = "Compare a bundle's engine with its checkpoint in float32, and record the verdict in the bundle."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that deploy or compile wrote")
    parser.add_argument(
        "--source",
        metavar="CHECKPOINT",
        help=f"the checkpoint it was made from, {SOURCE_HELP}; without it only the files' digests are checked",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Verify; returns 1 when the engine is wrong."""
    from edgewright.bundle import check_files, read_manifest

    folder = Path(args.bundle)
    progress = progress_for(quiet=args.quiet)
    manifest = read_manifest(folder)
    if args.source is None:
        with progress.step("check files"):
            check_files(folder, manifest)
        return _files_only(args, manifest)

    from edgewright.checkpoint import open_checkpoint
    from edgewright.verify import verify_bundle

    report = verify_bundle(folder, open_checkpoint(args.source), progress=progress)
    data = report.to_json()
    if args.json:
        print_json(data)
    else:
        print("\n".join(verdict_lines(data)))
    _record(folder, manifest, data)
    if report.passed:
        return 0
    note(f"edgewright: error: the bundle failed verification: {report.reason()}")
    return 1


def _files_only(args: argparse.Namespace, manifest: Manifest) -> int:
    count = len(manifest.files)
    if args.json:
        print_json({"status": "not checked", "files": count, "recorded": dict(manifest.verdict)})
    else:
        print(f"files     all {count} as they were written")
        print("verdict   cannot check here: the numbers were not compared, give --source CHECKPOINT")
        print(f"recorded  {manifest.verdict['status']}")
    return 0


def _record(folder: Path, manifest: Manifest, report: Mapping[str, Any]) -> None:
    """Write the verdict into the bundle, where that is allowed."""
    from edgewright.build.pipeline import record_verdict

    try:
        record_verdict(folder, manifest, report)
    except (OSError, OutputError) as error:
        note(f"note: the verdict was not recorded in the bundle: {error}")
