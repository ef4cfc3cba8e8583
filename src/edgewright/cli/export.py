"""`edgewright export`: a checkpoint's graph in a dialect, not compiled."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewright.cli._build import add_output, add_source, print_plan, report_built
from edgewright.cli._progress import progress_for
from edgewright.cli._vocabulary import vocabulary_request

NAME = "export"
HELP = "Write a checkpoint's graph as ONNX with its weights and tokenizer, without compiling it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser, "float32")
    add_output(parser, "FOLDER")
    parser.add_argument(
        "--dialect",
        default="portable",
        help="portable (runs in any ONNX runtime), onnx-qdq (standard operators only, for compilers that read "
        "quantization off the graph) or onnxruntime (its fused operators) (default: portable)",
    )


def run(args: argparse.Namespace) -> int:
    """Export."""
    from edgewright.build.key import checked_recipe
    from edgewright.build.pipeline import export
    from edgewright.checkpoint import open_checkpoint

    recipe = checked_recipe(args.recipe, allow_nonfinite=args.allow_nonfinite, requantize=args.requantize)
    print_plan(args, open_checkpoint(args.source), f"{args.dialect} graph")
    built = export(
        args.source,
        Path(args.output),
        recipe=recipe,
        dialect=args.dialect,
        max_context=args.max_context,
        vocabulary=vocabulary_request(args),
        embeddings=args.embeddings,
        allow_nonfinite=args.allow_nonfinite,
        requantize=args.requantize,
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    report_built(args, built.path, built.manifest, reused=built.reused)
    return 0
