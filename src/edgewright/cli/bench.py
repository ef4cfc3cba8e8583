"""`edgewright bench`: how fast is a bundle here?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._output import print_json, size, table
from edgewright.cli._parser import positive_int, positive_ints
from edgewright.cli._progress import progress_for

if TYPE_CHECKING:
    from edgewright.bench import Measurement

NAME = "bench"
HELP = "Measure load, prefill, first token, decode and memory of a bundle."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that deploy wrote")
    parser.add_argument("--prompt-tokens", type=positive_int, default=512, metavar="N", help="prefill (default: 512)")
    parser.add_argument("--decode-tokens", type=positive_int, default=64, metavar="N", help="decode (default: 64)")
    parser.add_argument(
        "--after",
        type=positive_ints,
        default=[32, 1024],
        metavar="N,N",
        help="contexts after which decode is measured (default: 32,1024)",
    )
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="times (default: 5)")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="cores to use (default: the physical ones)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random token ids (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="write JSON there; '-' prints it instead of the table")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    from edgewright.bench import Plan, measure_bundle
    from edgewright.files import canonical_json, os_errors

    plan = Plan(args.prompt_tokens, args.decode_tokens, tuple(args.after), args.repeats, args.seed)
    result = measure_bundle(args.bundle, plan, threads=args.threads, progress=progress_for(quiet=args.quiet))
    if args.json == "-":
        print_json(result.to_json())
        return 0
    if args.json:
        with os_errors(args.json):
            Path(args.json).write_bytes(canonical_json(result.to_json()))
    sys.stdout.write(_table(result) + "\n")
    return 0


def _table(result: Measurement) -> str:
    plan = result.plan
    rows: list[tuple[str, str, str]] = [
        ("load", str(result.load_ms), "ms"),
        (f"prefill {plan.prompt_tokens}", str(result.prefill_tokens_per_s), "tok/s"),
        ("first token after 32", str(result.ttft_ms), "ms"),
    ]
    for decode in result.decode:
        rows.append((f"decode {plan.decode_tokens} after {decode.after}", str(decode.tokens_per_s), "tok/s"))
        percentiles = f"{decode.inter_token_p50_ms:.4g} / {decode.inter_token_p95_ms:.4g}"
        rows.append(("  between tokens, p50 / p95", percentiles, "ms"))
    rows.append(("bundle", size(result.bundle_bytes), ""))
    for name, count in (("peak memory", result.peak_rss_bytes), ("peak anonymous", result.peak_anonymous_bytes)):
        rows.append((name, "unknown" if count is None else size(count), ""))
    return table(("figure", f"median [min..max] of {plan.repeats}", "unit"), rows)
