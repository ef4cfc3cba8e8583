"""`edgewright search`: the mix of formats that meets a budget at the least loss, as a recipe file."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from edgewright.cli._build import SOURCE_HELP
from edgewright.cli._output import fields, print_json, size
from edgewright.cli._parser import positive_int
from edgewright.cli._progress import progress_for

if TYPE_CHECKING:
    from edgewright.build.searched import Searched

NAME = "search"
HELP = "Find the mix of weight formats that meets a budget of size, latency or loss, and write it as a recipe."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument(
        "--budget",
        required=True,
        metavar="WHAT=LIMIT",
        help="size=90MB (of the weight file), latency=12ms (of a decode step on this machine) or kl=0.05 (loss on "
        "held-out text)",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the recipe to write")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--recipe", metavar="BASE", help="a recipe whose algorithm, cache and data are kept (default: gptq)"
    )
    parser.add_argument(
        "--formats",
        default="int4,int8",
        metavar="F,F,...",
        help="what to choose from: formats as recipes name them, with a group after a slash, such as int4/128, "
        "int8/channel, fp8/block, float16 (default: int4,int8)",
    )
    parser.add_argument("--data", metavar="SPEC", help="what to calibrate and measure on (default: the recipe's data)")
    parser.add_argument(
        "--sequences", type=positive_int, metavar="N", help="sequences to calibrate on; a quarter more is held out"
    )
    parser.add_argument("--length", type=positive_int, metavar="TOKENS", help="most tokens of a sequence")
    parser.add_argument("--seed", type=int, metavar="S", help="decides which parts of the data are taken")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="threads to compute and to time with")
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="evaluate on a Ray cluster: local (start one here), auto, or HOST:PORT"
    )
    parser.add_argument(
        "--check", action="store_true", help="measure every format of every module alone as well, and compare"
    )


def run(args: argparse.Namespace) -> int:
    """Search and write the recipe."""
    from edgewright.build.searched import search_recipe
    from edgewright.quant.recipe import Data
    from edgewright.quant.recipe_file import load_recipe
    from edgewright.quantizer.candidates import parse_formats
    from edgewright.quantizer.search import Budget
    from edgewright.quantizer.search_run import Request

    budget, formats = Budget.parse(args.budget), parse_formats(args.formats)
    base = None if args.recipe is None else load_recipe(args.recipe)
    changes = {"source": args.data, "sequences": args.sequences, "length": args.length, "seed": args.seed}
    data = replace(
        Data() if base is None else base.data, **{key: value for key, value in changes.items() if value is not None}
    )
    spelled = {"budget": args.budget, "formats": args.formats}
    spelled |= {} if args.recipe is None else {"recipe": args.recipe}
    done = search_recipe(
        args.source,
        args.output,
        Request(budget, formats, base, check=args.check, ray=args.ray, threads=args.threads),
        data,
        spelled,
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    if args.json:
        print_json(done.to_json())
        return 0
    sys.stdout.write(f"{done.path}: written\n{fields(_fields(done))}\n")
    return 0


def _fields(done: Searched) -> list[tuple[str, object]]:
    from edgewright.quantizer.search_recipe import summary

    found, judged = done.found, done.found.judgement
    formats = ", ".join(f"{count} modules {label}" for label, count in summary(found).items())
    rows: list[tuple[str, object]] = [
        ("weights", f"{size(found.bytes)} ({found.bytes:,} bytes): {formats}"),
        ("KL", f"{judged.kl:.4g} +- {judged.kl_error:.2g} on {judged.positions} held-out positions"),
        ("estimated", f"KL {found.estimated_kl:.4g}"),
        ("perplexity", f"{judged.perplexity:.4g}, the same token first in {judged.top1:.1%}"),
        ("evaluations", f"{found.evaluations} full, and probing worth {found.probing:.2f}"),
    ]
    if found.seconds is not None:
        rows.append(("latency", f"{found.seconds[0] * 1e3:.3g} ms estimated, {found.seconds[1] * 1e3:.3g} ms measured"))
    if (check := found.check) is not None:
        rows += [
            ("check", f"rank correlation {check.correlation:.3f} with the KL of {check.singles} single changes"),
            ("", f"greedy by those: KL {check.greedy_kl:.4g}, the search's {check.found_kl:.4g}"),
            (
                "",
                f"{check.greedy_evaluations} evaluations against {check.search_evaluations:.2f}: "
                f"{check.fewer:.0f} times fewer",
            ),
        ]
    return rows
