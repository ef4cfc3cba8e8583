"""`edgewright deploy`: from a checkpoint to a verified bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewright.cli._build import add_output, add_source, print_plan, report_built, request_of
from edgewright.cli._engines import add_engine, asked_engines, print_choice
from edgewright.cli._platform import add_platform, add_target, asked_platform, check_source, target_options
from edgewright.cli._policy import add_memory
from edgewright.cli._progress import progress_for

NAME = "deploy"
HELP = "Make a verified bundle from a checkpoint: quantize, export, compile, verify."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser, None, "int4, of policies policy-int8")
    add_output(parser, "BUNDLE")
    add_target(parser)
    add_engine(parser)
    parser.add_argument("--no-verify", action="store_true", help="leave out the last step, the comparison in float32")
    add_platform(parser)
    add_memory(parser.add_argument_group("verification of robot policies"))


def run(args: argparse.Namespace) -> int:
    """Deploy; an unchanged build is answered without the heavy imports."""
    from edgewright.build.kept import unchanged
    from edgewright.build.sources import PolicySource, open_source, refuse_memory
    from edgewright.targets import goal_key

    output, verify = Path(args.output), not args.no_verify
    request = request_of(args)
    refuse_memory(request.policy, verify=verify)
    source = open_source(args.source, request)
    check_source(args, source)
    platform, options = asked_platform(args), target_options(args)
    engines = asked_engines(args)
    told = engines.key(policy=isinstance(source, PolicySource))
    if output.exists():
        key = source.key(source.record(), verify=verify, **goal_key(args.target, platform, options), **told)
        if (manifest := unchanged(output, key, verified=verify, force=args.force)) is not None:
            report_built(args, output, manifest, reused=True)
            return 0
    print_plan(args, source, f"{args.target}{' and verify' if verify else ', not verified'}")

    from edgewright.build.pipeline import deploy

    built = deploy(
        args.source,
        output,
        recipe=request.recipe,
        target=args.target,
        platform=platform,
        options=options,
        engines=engines,
        max_context=request.max_context,
        vocabulary=request.vocabulary,
        embeddings=request.embeddings,
        policy=request.policy,
        verify=verify,
        allow_nonfinite=request.allow_nonfinite,
        requantize=request.requantize,
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    print_choice(args, built.path)
    report_built(args, built.path, built.manifest, reused=built.reused)
    return 0
