"""The flags that name a platform, for the verbs that refuse what it lacks before they begin."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.build.sources import Source
    from edgewright.quant.recipe import Recipe
    from edgewright.targets.platform import Platform


def add_platform(parser: Any, purpose: str = "refuse formats that this platform lacks", *names: str) -> None:
    """Add the flags; `names` are more spellings of the first."""
    words = f"{purpose}, such as jetson-orin-nx-16gb"
    parser.add_argument("--for", *names, dest="platform", metavar="PLATFORM", help=words)
    parser.add_argument(
        "--platform-file", type=Path, metavar="FILE", help="the same for a platform that a YAML file of yours describes"
    )


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is compiled for."""
    parser.add_argument("--target", default="cpu", help="what is compiled for: see docs/targets.md (default: cpu)")
    parser.add_argument(
        "--target-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="tell the target's compiler something; may be given several times",
    )


def target_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the target's options by name; raises UsageError on one without a value, or one that is there twice."""
    options: dict[str, str] = {}
    for given in args.target_option:
        name, equals, value = given.partition("=")
        if not equals or not name:
            raise UsageError(f"--target-option {given!r} is not of the form NAME=VALUE: write one such as jobs=2.")
        if name in options:
            raise UsageError(f"--target-option {name} is given twice: leave one out.")
        options[name] = value
    return options


def asked_platform(args: argparse.Namespace) -> Platform | None:
    """Return the platform that the flags name, None without them; raises UsageError or PlatformError."""
    if args.platform is not None and args.platform_file is not None:
        raise UsageError("--for and --platform-file both name a platform: give one of them.")
    if args.platform is None and args.platform_file is None:
        return None
    from edgewright.targets.platform import find_platform, read_platform

    return find_platform(args.platform) if args.platform is not None else read_platform(args.platform_file)


def check_platform(args: argparse.Namespace, recipe: Recipe) -> None:
    """Raise RecipeError, with the line, where a recipe asks for a format that the platform of the flags lacks."""
    if (platform := asked_platform(args)) is not None:
        from edgewright.targets.support import check_support

        check_support(platform, recipe)


def check_source(args: argparse.Namespace, source: Source) -> None:
    """Do the same for a build; what a recipe takes over as it is stored is looked up in the checkpoint."""
    platform = asked_platform(args)
    if platform is None:
        return
    from edgewright.targets.support import asks_for_stored, check_support

    check_support(platform, source.recipe)
    if asks_for_stored(source.recipe):
        from edgewright.plan.source import Checkpoint, open_stages

        policy = source.request.policy
        opened = open_stages(args.source, context=None, options=None if policy is None else policy.options)
        Checkpoint(opened, platform, source.recipe)
