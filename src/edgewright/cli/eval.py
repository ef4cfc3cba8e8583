"""`edgewright eval`: a policy bundle against recorded episodes, or in a simulated task."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._eval_task import check_flags, run_task
from edgewright.cli._load import warn_failed
from edgewright.cli._output import note, print_found, table
from edgewright.cli._parser import positive_int
from edgewright.cli._parser import seed as seed_number
from edgewright.cli._progress import progress_for
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.evaluate import Evaluation, FrameChoice, Predictor

NAME = "eval"
HELP = "Evaluate one policy bundle, or two side by side, on a recorded LeRobot dataset or in a simulated task."
#: The figures that are printed; --json has all.
_PRINTED = ("mae", "rmse", "max_error", "run_mae", "jerk_ratio", "jump", "gripper_agreement")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundles", metavar="BUNDLE", nargs="+", help="a policy's bundle; a second is compared with it")
    on = parser.add_mutually_exclusive_group(required=True)
    on.add_argument("--dataset", metavar="FOLDER", help="a LeRobot dataset, layout v2.0, v2.1 or v3.0")
    on.add_argument("--task", metavar="NAME", help="a task in a simulator, such as reacher")
    parser.add_argument(
        "--episodes",
        type=_numbers,
        metavar="LIST|N",
        help="of a dataset those to use, such as 0,3,5-8 (default: all); of a task how many (default: 50)",
    )
    parser.add_argument(
        "--frames", type=_frame_count, default=64, metavar="N", help="frames to evaluate, or all (default: 64)"
    )
    parser.add_argument(
        "--every", type=positive_int, metavar="K", help="evaluate every K-th frame of the episodes instead of --frames"
    )
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="S", help="decides frames, scenes and noise (default: 0)"
    )
    parser.add_argument("--threads", type=positive_int, metavar="N", help="cores to use (default: all physical ones)")
    parser.add_argument(
        "--camera",
        action="append",
        default=[],
        metavar="NAME=FEATURE",
        help="the dataset's or task's image for a policy's camera",
    )
    parser.add_argument("--state", metavar="FEATURE", help="the dataset's state (default: observation.state)")
    parser.add_argument("--action", metavar="FEATURE", help="the dataset's action (default: action)")
    parser.add_argument(
        "--gripper",
        type=_numbers,
        metavar="LIST",
        help="dimensions of the action that open and close (default: by name)",
    )
    parser.add_argument(
        "--thresholds", metavar="SPEC", help="bounds of the verdict: a YAML file, or figure=number,figure=number"
    )
    parser.add_argument(
        "--view",
        choices=("rendered", "drawn"),
        default="rendered",
        help="how a task's images are made: with OpenGL, or without (default: rendered)",
    )
    parser.add_argument(
        "--delay",
        type=_delay,
        default=0,
        metavar="K",
        help="control periods of a task that an inference takes (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--page", metavar="FILE", help="write the result as an HTML page as well")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; returns 1 when a bound is exceeded or could not be checked."""
    if len(args.bundles) > 2:
        raise UsageError(f"{len(args.bundles)} bundles were given: evaluate one, or two side by side.")
    check_flags(args)
    if args.task is not None:
        return run_task(args, _names(args.bundles), _cameras(args.camera))
    return _run_dataset(args)


def _run_dataset(args: argparse.Namespace) -> int:
    from edgewright.evaluate.thresholds import read_thresholds

    thresholds = read_thresholds(args.thresholds, pair=len(args.bundles) == 2) if args.thresholds else {}
    found = _evaluate(args, thresholds)
    print_found(found, _lines(found), as_json=args.json, quiet=args.quiet)
    if args.page is not None:
        from edgewright.evaluate.page import write_page

        write_page(Path(args.page), found)
    if found.verdict.passed:
        return 0
    note(f"edgewright: error: the evaluation is {found.verdict.status}: {found.verdict.reasons[0]}")
    return 1


def _evaluate(args: argparse.Namespace, thresholds: Mapping[str, float]) -> Evaluation:
    from edgewright.evaluate import evaluate, open_dataset
    from edgewright.evaluate.dataset import ACTION, STATE

    progress = progress_for(quiet=args.quiet)
    with open_dataset(args.dataset, state=args.state or STATE, action=args.action or ACTION) as dataset:
        choice = _choice(args)
        choice.of(dataset)  # what can't be chosen is said before bundles are loaded
        with progress.step("load"):
            predictors = _predictors(args)
        return evaluate(
            dataset,
            predictors,
            choice,
            cameras=_cameras(args.camera),
            thresholds=thresholds,
            grippers=args.gripper,
            progress=progress,
        )


def _choice(args: argparse.Namespace) -> FrameChoice:
    from edgewright.evaluate import FrameChoice

    return FrameChoice(args.episodes, args.frames or None, args.every, args.seed)


def _predictors(args: argparse.Namespace) -> list[Predictor]:
    from edgewright.bundle import read_manifest
    from edgewright.evaluate.predictors import load_predictor

    found = []
    for name, bundle in zip(_names(args.bundles), args.bundles, strict=True):
        found.append(load_predictor(name, bundle, args.threads))
        warn_failed(read_manifest(Path(bundle)), name)
    return found


def _names(bundles: list[str]) -> list[str]:
    """Return what bundles are called; two of one name are told apart by their whole paths."""
    names = [Path(bundle).resolve().name for bundle in bundles]
    if len(set(names)) == len(names):
        return names
    return list(bundles) if len(set(bundles)) == len(names) else [f"{names[0]} (first)", names[1]]


def _cameras(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, feature = text.partition("=")
        if not (name and equals and feature) or name in found:
            raise UsageError(f"--camera {text} is not NAME=FEATURE with a new name: give the policy's name first.")
        found[name] = feature
    return found


def _numbers(text: str) -> list[int]:
    """Argument type: whole numbers and ranges of them with commas between."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdigit() and len(end) < 9 for end in ends) or int(ends[0]) > int(ends[1]):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,3,5-8")
        found += range(int(ends[0]), int(ends[1]) + 1)
    return found


def _frame_count(text: str) -> int:
    """Argument type: a number from 1 upwards, or `all` (0)."""
    return 0 if text == "all" else positive_int(text)


def _delay(text: str) -> int:
    """Argument type: a small number from 0 upwards."""
    return 0 if text == "0" else positive_int(text)


def _lines(found: Evaluation) -> list[str]:
    """Return the verdict and a table of the main figures."""
    frames, data = found.frames, found.dataset
    rows = [[one["name"], *(_short(one["figures"][key]) for key in _PRINTED)] for one in found.policies]
    lines = [
        f"{data['name']} ({data['layout']}): {frames['count']} frames of {len(frames['episodes'])} episodes, "
        f"seed {frames['seed']}",
        table(["policy", *_PRINTED], rows),
        "errors, jerk and jumps in parts of the range of the recorded actions",
    ]
    if found.comparison is not None:
        lines.append(_pair(found.comparison))
    lines.append(f"verdict   {found.verdict.status}")
    return lines + [f"  {reason}" for reason in found.verdict.reasons]


def _pair(figures: Mapping[str, Any]) -> str:
    increase = figures["mae_increase"]
    text = f"difference {_short(figures['difference'])} on average, {_short(figures['max_difference'])} at most"
    if increase is None:
        return text
    return (
        f"{text}; change of error {_short(increase['mean'])} [{_short(increase['low'])}, {_short(increase['high'])}] "
        f"(95 %, over {increase['over']})"
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
