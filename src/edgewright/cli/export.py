"""`edgewright export`: a checkpoint's graph in a dialect, not compiled."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewright.cli._build import add_output, add_source, print_plan, report_built, request_of
from edgewright.cli._platform import add_platform, check_source
from edgewright.cli._progress import progress_for

NAME = "export"
HELP = "Write a checkpoint's graph as ONNX with its weights and tokenizer, without compiling it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser, "float32", "float32")
    add_output(parser, "FOLDER")
    parser.add_argument(
        "--dialect",
        default="portable",
        help="portable (runs in any ONNX runtime), onnx-qdq (standard operators only, for compilers that read "
        "quantization off the graph) or onnxruntime (its fused operators) (default: portable)",
    )
    add_platform(parser)


def run(args: argparse.Namespace) -> int:
    """Export."""
    from edgewright.build.pipeline import export
    from edgewright.build.sources import open_source

    request = request_of(args)
    source = open_source(args.source, request)
    check_source(args, source)
    print_plan(args, source, f"{args.dialect} graph")
    built = export(
        args.source,
        Path(args.output),
        recipe=args.recipe,
        dialect=args.dialect,
        max_context=request.max_context,
        vocabulary=request.vocabulary,
        embeddings=request.embeddings,
        policy=request.policy,
        allow_nonfinite=request.allow_nonfinite,
        requantize=request.requantize,
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    report_built(args, built.path, built.manifest, reused=built.reused)
    return 0
