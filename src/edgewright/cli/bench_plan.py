"""`edgewright bench plan`: what cases will do, before they do it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgewright.cli._cases import add_case_arguments, cases_of, parse_with_words
from edgewright.cli._output import note, print_json, size, table

if TYPE_CHECKING:
    from edgewright.bench.case.plan import DialogPlan, EncodingPlan, Plan
    from edgewright.runtime.encoding import Encoding

NAME = "bench plan"
HELP = "Say what cases will do: dialogs and their inputs, encodings, shares of the accelerator over time, memory."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_case_arguments(parser)
    parser.add_argument("--no-files", action="store_true", help="don't look at bundles, tables and inputs")
    parser.add_argument("--json", action="store_true", help="print JSON: one object for a case, else a list")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; those after `--` are genie-t2t-run's."""
    return parse_with_words(NAME, HELP, add_arguments, words)


def run(args: argparse.Namespace) -> int:
    """Plan the cases; raises CaseError with everything that is wrong with one."""
    from edgewright.bench.case.check import require
    from edgewright.bench.case.plan import plan_case

    plans = []
    for case in cases_of(args):
        require(case, need_files=not args.no_files)
        plans.append(plan_case(case))
    if args.json:
        data = [plan.to_json() for plan in plans]
        print_json(data[0] if len(data) == 1 else data)
        return 0
    sys.stdout.write("\n".join(_shown(plan) for plan in plans))
    for plan in plans:
        for text in plan.notes:
            note(f"note: {text}", quiet=args.quiet)
    return 0


def _shown(plan: Plan) -> str:
    case = plan.case
    kind = " on a simulated device" if plan.simulated else ""
    if case.runner is not None:
        kind = f" by {' '.join(case.runner.command)}"
    count = f"{len(plan.dialogs)} dialog{'' if len(plan.dialogs) == 1 else 's'}"
    lines = [f"{case.name}: {count}, {case.scheduler.discipline}{kind}", "", _dialogs(plan)]
    encodings = [(dialog.name, dialog.encoding) for dialog in plan.dialogs if dialog.encoding is not None]
    if encodings:
        lines += ["", _encodings(encodings)]
    lines += ["", _segments(plan), ""]
    if not plan.simulated:
        lines += [_memory(plan), ""]
    return "\n".join(lines)


def _dialogs(plan: Plan) -> str:
    rows = [
        (
            dialog.name,
            dialog.model,
            dialog.asked,
            _or(dialog.prompt_tokens, "?"),
            _or(dialog.max_tokens, "to the end"),
            dialog.iterations,
            dialog.weights if ":" in dialog.weights and "," in dialog.weights else dialog.weights.partition(":")[0],
            dialog.priority,
            _or(dialog.bound, "none"),
        )
        for dialog in plan.dialogs
    ]
    head = ("dialog", "model", "asked with", "prompt", "tokens", "times", "weight", "priority", "steps waited at most")
    return table(head, rows)


def _encodings(encodings: Sequence[tuple[str, EncodingPlan]]) -> str:
    rows = []
    for name, plan in encodings:
        way = "-" if plan.k is None else f"{plan.k:.12g} * code + {plan.b:.12g}"
        rows.append((name, _range(plan.input), "-" if plan.table is None else _range(plan.table), way))
    return table(("dialog", "input", "table", "table to input"), rows)


def _range(encoding: Encoding) -> str:
    if encoding.dtype == "float32":
        return "float32"
    low, high = (encoding.scale * (code + encoding.offset) for code in (encoding.low, encoding.high))
    return f"{encoding} = [{low:.6g}, {high:.6g}]"


def _segments(plan: Plan) -> str:
    rows = []
    for part in plan.segments:
        times = f"{part.start_ms} to {'the end' if part.end_ms is None else part.end_ms}"
        cells = []
        for name, weight in part.weights.items():
            share = "" if part.shares is None else f" = {100 * part.shares[name]:.1f} %"
            cells.append(f"{weight:g}{share}")
        rows.append((times, *cells))
    what = "weights" if plan.share_of is None else f"weights and shares of {plan.share_of}"
    return f"{what}, while all of them have work\n" + table(("ms", *(dialog.name for dialog in plan.dialogs)), rows)


def _memory(plan: Plan) -> str:
    rows = [(f"model {name}", "unknown" if count is None else size(count)) for name, count in plan.memory.items()]
    rows += [(f"cache of {dialog.name}, at most", _cache(dialog)) for dialog in plan.dialogs if dialog.cache_bytes]
    return table(("memory", "bytes"), rows)


def _cache(dialog: DialogPlan) -> str:
    return size(dialog.cache_bytes or 0)


def _or(value: int | None, other: str) -> str:
    return other if value is None else str(value)
