"""`edgewright deploy`: from a checkpoint to a verified bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewright.cli._build import add_output, add_source, print_plan, report_built
from edgewright.cli._progress import progress_for
from edgewright.cli._vocabulary import vocabulary_request

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
    from edgewright.build.kept import unchanged
    from edgewright.build.key import build_key, checked_recipe, source_record
    from edgewright.checkpoint import open_checkpoint

    output, verify = Path(args.output), not args.no_verify
    vocabulary = vocabulary_request(args)
    recipe = checked_recipe(args.recipe, allow_nonfinite=args.allow_nonfinite, requantize=args.requantize)
    checkpoint = open_checkpoint(args.source)
    if output.exists():
        key = build_key(
            source_record(checkpoint),
            recipe,
            target=args.target,
            max_context=args.max_context,
            vocabulary=vocabulary and vocabulary.key(),
            embeddings=args.embeddings,
            verify=verify,
            allow_nonfinite=args.allow_nonfinite,
            requantize=args.requantize,
        )
        if (manifest := unchanged(output, key, verified=verify, force=args.force)) is not None:
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
        vocabulary=vocabulary,
        embeddings=args.embeddings,
        verify=verify,
        allow_nonfinite=args.allow_nonfinite,
        requantize=args.requantize,
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    report_built(args, built.path, built.manifest, reused=built.reused)
    return 0
