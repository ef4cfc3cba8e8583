"""The flags that say which engine runs which stage."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._output import note

if TYPE_CHECKING:
    from edgewright.build.engines import EngineRequest


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--engine",
        metavar="NAME|STAGE=NAME,...|auto",
        help="what runs the stages on --target cpu: onnxruntime, openvino, one for each stage named (a language model "
        "may have a stage prefill beside llm), or auto, which measures both here (default: onnxruntime)",
    )
    parser.add_argument("--optimize", metavar="latency|memory", help="what --engine auto picks by (default: latency)")


def asked_engines(args: argparse.Namespace) -> EngineRequest:
    """Return what the flags ask for; raises UsageError."""
    from edgewright.build.engines import engine_request

    return engine_request(args.engine, args.optimize)


def print_choice(args: argparse.Namespace, bundle: Path) -> None:
    """Print on stderr what was measured of the engines, where it was."""
    from edgewright.build.choice import REPORT, choice_lines

    if args.engine == "auto" and not args.quiet:
        for line in choice_lines(json.loads((bundle / REPORT).read_bytes())):
            note(line)
