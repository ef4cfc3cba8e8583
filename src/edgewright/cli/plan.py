"""`edgewright plan`: whether a model fits a platform, and how fast it can be there at best; nothing is built."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._build import RECIPE_HELP, SOURCE_HELP
from edgewright.cli._output import note, print_json, size, table
from edgewright.cli._parser import positive_int
from edgewright.cli._platform import add_platform, asked_platform
from edgewright.cli._policy import add_policy, gigabytes
from edgewright.cli._policy_source import policy_options
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.plan import Plan

NAME = "plan"
HELP = "Estimate memory and least latency of a model on a platform, before anything is built."

EXIT_FITS, EXIT_DOES_NOT_FIT = 0, 1
_HEADER = ("stage", "runs", "MACs", "weights", "cache", "activations", "at least", "bound by")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SOURCE", help=f"{SOURCE_HELP}, or a bundle")
    add_platform(parser, "the platform to plan for", "--target")
    parser.add_argument("--recipe", metavar="NAME|FILE", help=f"{RECIPE_HELP} (default: as deploy)")
    parser.add_argument(
        "--context", type=positive_int, metavar="TOKENS", help="tokens a dialog holds (default: as deploy)"
    )
    parser.add_argument("--batch", type=positive_int, default=1, metavar="N", help="dialogs or observations at once")
    parser.add_argument(
        "--prompt-tokens",
        type=positive_int,
        metavar="N",
        help="tokens of the prompt (default: 512, or a policy's most)",
    )
    parser.add_argument(
        "--memory",
        dest="free",
        type=gigabytes,
        metavar="GB",
        help="memory that is free on the device (default: all that it has)",
    )
    parser.add_argument(
        "--bandwidth", type=gigabytes, metavar="GB/s", help="memory bandwidth, where you know better than the platform"
    )
    parser.add_argument(
        "--efficiency",
        type=_share,
        default=1.0,
        metavar="SHARE",
        help="share of peak and bandwidth that is reached, above 0 and up to 1 (default: 1, which nothing reaches)",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_policy(parser)


def _share(text: str) -> float:
    """Argument type: a number above 0 and up to 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Plan; 0 where the model fits, 1 where it doesn't or where the device's memory isn't known."""
    from edgewright.checkpoint.policy import is_policy
    from edgewright.plan import Request, make_plan, open_model

    platform = asked_platform(args)
    if platform is None:
        raise UsageError("plan needs --for PLATFORM or --platform-file FILE; see `edgewright plan --help`.")
    bundle = (Path(args.source) / "manifest.json").is_file()
    options = policy_options(args, policy=bundle or is_policy(args.source))
    model = open_model(args.source, platform, recipe=args.recipe, context=args.context, options=options)
    request = Request(args.context, args.batch, args.prompt_tokens, args.free, args.bandwidth, args.efficiency)
    plan = make_plan(model, platform, request)
    if args.json:
        print_json(plan.to_json())
    else:
        for text in plan.notes:
            note(f"note: {text}", quiet=args.quiet)
        sys.stdout.write("\n".join([*_lines(plan), ""]))
    return EXIT_FITS if plan.fits else EXIT_DOES_NOT_FIT


def _lines(plan: Plan) -> list[str]:
    sizes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in plan.sizes.items())
    reached = "100 % of peak and bandwidth" if plan.efficiency == 1 else f"{plan.efficiency:.0%} of peak and bandwidth"
    return [
        f"{plan.model} ({plan.kind}), recipe {plan.recipe}, on {plan.platform.title}",
        f"sizes     {sizes}",
        "",
        table(_HEADER, [_row(stage) for stage in plan.stages]),
        "",
        *_memory(plan),
        f"latency   an estimate from below: {reached}, no overhead",
        *_verdict(plan),
    ]


def _row(stage: object) -> list[str]:
    from edgewright.plan.estimate import StagePlan

    assert isinstance(stage, StagePlan)
    seconds = stage.bound.seconds
    rate = f" ({stage.tokens / seconds:,.0f} tokens/s)" if stage.tokens and seconds else ""
    least = "not known" if seconds is None else f"{1000 * seconds:.3g} ms{rate}"
    moved = [size(stage.moved(part)) for part in ("weight", "cache", "activation")]
    runs = f"x {stage.times}"
    return [stage.name, runs, _count(stage.macs), *moved, least, stage.bound.binding or "not known"]


def _count(number: float) -> str:
    """Return a number of operations as people read it: 57.4 G."""
    for unit in ("", " k", " M", " G", " T"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} P"


def _memory(plan: Plan) -> list[str]:
    found = plan.memory
    parts = f"weights {size(found.weights)}, cache {size(found.cache)}"
    rest = f"activations {size(found.activations)}, workspace {size(found.workspace)}"
    rest += f", engine {size(found.engine)}" if found.engine else ""
    return [f"memory    {size(found.total)}: {parts}, {rest}"]


def _verdict(plan: Plan) -> list[str]:
    if plan.capacity is None:
        return [f"verdict   not known: no public memory of {plan.platform.title}, give --memory"]
    if plan.fits:
        used = plan.memory.total / plan.capacity
        return [f"verdict   fits: {size(plan.memory.total)} of {size(plan.capacity)} ({used:.0%})"]
    over = size(plan.memory.total - plan.capacity)
    lines = [f"verdict   does not fit: {size(plan.memory.total)} of {size(plan.capacity)}, {over} too much"]
    lines += [
        f"  {change.words}: {size(change.total_bytes)}{', fits' if change.fits else ', not enough'}"
        for change in plan.changes
    ]
    if plan.cheapest is None:
        least = min([plan.memory.total, *(change.total_bytes for change in plan.changes)])
        return [*lines, f"advice    nothing here makes it fit: take a platform with at least {size(least)}"]
    return [*lines, f"advice    {plan.cheapest.words}"]
