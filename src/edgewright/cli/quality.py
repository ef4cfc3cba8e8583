"""`edgewright quality`: what quantization cost, as KL, perplexity and agreement on held-out text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._output import print_found, size, table
from edgewright.cli._parser import positive_int
from edgewright.cli._progress import progress_for

if TYPE_CHECKING:
    from edgewright.build.quality import Comparison

NAME = "quality"
HELP = "Compare bundles and quantized checkpoints with the float checkpoint on held-out text: KL, perplexity, top-1."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("candidates", metavar="CANDIDATE", nargs="+", help="a bundle, or a quantized checkpoint")
    parser.add_argument(
        "--against", required=True, metavar="CHECKPOINT", help="the float checkpoint they were made from"
    )
    parser.add_argument(
        "--text", nargs="+", default=(), metavar="FILE", help="plain text to measure on (default: a text that ships)"
    )
    parser.add_argument("--windows", type=positive_int, default=16, metavar="N", help="most windows (default: 16)")
    parser.add_argument("--length", type=positive_int, default=256, metavar="TOKENS", help="of a window (default: 256)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides which windows are taken (default: 0)")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="cores to use (default: all physical ones)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--page", metavar="FILE", help="write the comparison as an HTML page as well")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    from edgewright.build.quality import compare_quality

    found = compare_quality(
        args.candidates,
        args.against,
        texts=args.text,
        count=args.windows,
        length=args.length,
        seed=args.seed,
        threads=args.threads,
        progress=progress_for(quiet=args.quiet),
    )
    print_found(found, _lines(found), as_json=args.json, quiet=args.quiet)
    if args.page is not None:
        _write_page(Path(args.page), args.candidates, found)
    return 0


def _write_page(path: Path, candidates: list[str], found: Comparison) -> None:
    """Write the page, with the report of the one candidate where it has one."""
    from edgewright.quantizer.page import write_page
    from edgewright.quantizer.report import read_report

    report = read_report(Path(candidates[0])) if len(candidates) == 1 else None
    name, modules, record = ("", (), {}) if report is None else report
    write_page(path, name, modules, record, found.to_json())


def _lines(found: Comparison) -> list[str]:
    text, reference = found.text, found.reference
    names = ", ".join(source["name"] for source in text["sources"])
    rows = [
        ["float", size(reference["bytes"]), "-", _pm(reference["perplexity"], reference["perplexity_error"]), "", ""]
    ]
    for one in found.candidates:
        j = one.judgement
        rows.append(
            [
                one.name,
                size(one.bytes),
                f"{j.kl:.4g} +- {_short(j.kl_windows_error)} ({_short(j.kl_error)})",
                _pm(j.perplexity, j.perplexity_error),
                _pm(j.loss_change, j.loss_change_error),
                f"{j.top1:.1%}",
            ]
        )
    head = ["model", "weights", "KL (nats)", "perplexity", "change of loss", "top-1"]
    return [
        f"{names}: {text['windows']} windows of {text['length']} tokens, {text['positions']:,} positions, "
        f"seed {text['seed']}",
        table(head, rows),
        "+- standard errors over windows; of the KL in brackets over positions, as if they were independent",
    ]


def _pm(value: float | None, error: float | None) -> str:
    return "-" if value is None else f"{value:.4g} +- {_short(error)}"


def _short(value: float | None) -> str:
    return "?" if value is None else f"{value:.2g}"
