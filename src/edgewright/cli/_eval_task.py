"""`edgewright eval --task`: policies drive a simulated robot."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._load import warn_failed
from edgewright.cli._output import print_found, table
from edgewright.cli._progress import progress_for
from edgewright.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from edgewright.evaluate.closed_results import ClosedLoop

#: Flags that mean something for recorded data only, and for tasks only.
_OF_DATASETS = ("--frames", "--every", "--state", "--action", "--gripper", "--thresholds")
_OF_TASKS = ("--view", "--delay")
_EPISODES = 50


def check_flags(args: argparse.Namespace) -> None:
    """Raise UsageError for flags of the other kind of evaluation."""
    wrong, kind = (_OF_TASKS, "--dataset") if args.task is None else (_OF_DATASETS, "--task")
    if given := [flag for flag in wrong if flag in args.given]:
        raise UsageError(f"{given[0]} has no meaning with {kind}: leave it out.")


def run_task(args: argparse.Namespace, names: Sequence[str], cameras: Mapping[str, str]) -> int:
    """Run the task with every bundle, and print; returns 0."""
    from edgewright.bundle import read_manifest

    try:
        from edgewright.evaluate.closed_loop import Options, evaluate_task
        from edgewright.evaluate.contenders import load_contender
        from edgewright.evaluate.tasks import open_task
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("websockets", "msgpack"):
            raise
        raise MissingExtraError(
            f"Tasks are run over a policy server, which needs the package {error.name}, and that is not installed: "
            "pip install 'edgewright[host,simulate]'."
        ) from None
    options = Options(episodes=_count(args.episodes), seed=args.seed, delay=args.delay, cameras=cameras)
    progress = progress_for(quiet=args.quiet)
    with closing(open_task(args.task, args.view)) as task:  # before minutes of loading
        with progress.step("load"):
            contenders = []
            for name, bundle in zip(names, args.bundles, strict=True):
                contenders.append(load_contender(name, bundle, args.threads))
                warn_failed(read_manifest(Path(bundle)), name)
        found = evaluate_task(task, contenders, options, progress=progress)
    print_found(found, _lines(found), as_json=args.json, quiet=args.quiet)
    if args.page is not None:
        from edgewright.evaluate.closed_page import write_closed_page

        write_closed_page(Path(args.page), found)
    return 0


def _count(given: list[int] | None) -> int:
    if given is None:
        return _EPISODES
    if len(given) != 1 or given[0] < 1:
        raise UsageError("--episodes of a task is how many are run: give one number from 1 upwards.")
    return given[0]


def _lines(found: ClosedLoop) -> list[str]:
    """Return a table of the main figures, and the comparison."""
    task = found.task
    head = ["policy", "success", "95 %", "actions", "distance", "calls", "ms p50", "ms p95", "guard"]
    lines = [
        f"{task['name']}: {found.policies[0]['success']['episodes']} episodes, seed {found.seed}, "
        f"{task['rate_hz']:g} actions a second, delay {found.delay}, images {task['view']}",
        table(head, [_row(policy) for policy in found.policies]),
        f"actions to success and distance at the end ({task['unit']}) are medians",
    ]
    if found.comparison is not None:
        pair = found.comparison["success"]
        lines.append(
            f"change of the success rate {pair['difference']:.3g} [{pair['low']:.3g}, {pair['high']:.3g}] (95 %, p "
            f"{pair['p_value']:.3g}): only the first {pair['only_first']}, only the second {pair['only_second']}"
        )
    return lines


def _row(policy: Mapping[str, Any]) -> list[str]:
    success, slow = policy["success"], policy["latency_ms"] or {}
    return [
        policy["name"],
        f"{success['successes']}/{success['episodes']}",
        f"{success['low']:.3g}..{success['high']:.3g}",
        _median(policy["steps_to_success"]),
        _median(policy["final_distance"]),
        str(policy["calls"]),
        *(f"{slow[key]:.3g}" if slow else "-" for key in ("p50", "p95")),
        ", ".join(f"{name} {count}" for name, count in policy["guard"].items()) or "none",
    ]


def _median(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median']:.3g}"
