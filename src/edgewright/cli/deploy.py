"""`edgewright deploy`: from a checkpoint to a verified bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewright.cli._build import add_output, add_source, print_plan, report_built
from edgewright.cli._progress import progress_for

NAME = "deploy"
HELP = "Make a verified bundle from a checkpoint: quantize, export, compile, verify."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser, "int4")
    add_output(parser, "BUNDLE")
    parser.add_argument("--target", default="cpu", help="what the bundle is compiled for: cpu (default: cpu)")
    parser.add_argument("--no-verify", action="store_true", help="leave out the last step, the comparison in float32")


def run(args: argparse.Namespace) -> int:
    """Deploy; an unchanged build is answered without the heavy imports."""
    from edgewright.build.key import build_key, source_record, up_to_date
    from edgewright.checkpoint import open_checkpoint
    from edgewright.quant.recipe import load_recipe

    output, verify = Path(args.output), not args.no_verify
    checkpoint = open_checkpoint(args.source)
    recipe = load_recipe(args.recipe)
    if output.exists():
        key = build_key(
            source_record(checkpoint),
            recipe,
            target=args.target,
            max_context=args.max_context,
            verify=verify,
            allow_nonfinite=args.allow_nonfinite,
        )
        if (manifest := up_to_date(output, key, verified=verify)) is not None:
            report_built(args, output, manifest, reused=True)
            return 0
    print_plan(args, checkpoint, f"{args.target}{' and verify' if verify else ', not verified'}")

    from edgewright.build.pipeline import deploy

    built = deploy(
        args.source,
        output,
        recipe=recipe,
        target=args.target,
        max_context=args.max_context,
        verify=verify,
        allow_nonfinite=args.allow_nonfinite,
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    report_built(args, built.path, built.manifest, reused=built.reused)
    return 0
