"""`edgewright compile`: an exported folder, or another machine's bundle, for this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewright.cli._build import add_output, report_built
from edgewright.cli._platform import add_platform, add_target, asked_platform, target_options
from edgewright.cli._progress import progress_for

NAME = "compile"
HELP = "Compile an exported folder, or a bundle made on another machine, for this machine."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="a folder that export or deploy wrote")
    add_output(parser, "BUNDLE")
    add_target(parser)
    add_platform(parser, "the platform that is compiled for")


def run(args: argparse.Namespace) -> int:
    """Compile."""
    from edgewright.build.pipeline import compile_bundle

    built = compile_bundle(
        args.folder,
        Path(args.output),
        target=args.target,
        platform=asked_platform(args),
        options=target_options(args),
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    report_built(args, built.path, built.manifest, reused=built.reused)
    return 0
