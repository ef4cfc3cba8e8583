"""`edgewright run` for a robot policy: one observation, one chunk of actions."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from edgewright.cli._load import warn_failed
from edgewright.cli._output import note, print_json, table
from edgewright.cli._parser import positive_int
from edgewright.errors import ObservationError, UsageError
from edgewright.runtime.npz import read_npz

if TYPE_CHECKING:
    from edgewright.runtime.policy import Chunk, Policy

#: The flags that have no meaning for a language model.
POLICY_FLAGS = ("--observation", "--noise", "--steps")
_NOISE = "noise"


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what only a policy takes."""
    group = parser.add_argument_group("robot policies")
    group.add_argument(
        "--observation",
        metavar="FILE.npz",
        help="images by the names of the cameras, state, prompt; --prompt may give the last",
    )
    group.add_argument("--noise", metavar="FILE.npz", help="what the flow begins with, as noise (default: random)")
    group.add_argument("--steps", type=positive_int, metavar="N", help="denoise steps (default: the bundle's)")


def run_policy(args: argparse.Namespace, prompt: str | None) -> int:
    """Infer one chunk and print it; `prompt` is the command line's, None where there is none.

    Raises UsageError and ObservationError for what the command line and its files lack, and what loading and inferring
    raise.
    """
    observation = _observation(args, prompt)
    noise = None if args.noise is None else _noise(args.noise)
    policy, load_ms = _load(args)
    chunk = policy.infer(observation, noise, args.steps)
    for text in chunk.notes:
        note(f"note: {text}", quiet=args.quiet)
    if args.json:
        print_json(_to_json(policy, chunk, load_ms))
        return 0
    sys.stdout.write("\n".join([_table(chunk), "", *_timings(chunk, load_ms), ""]))
    return 0


def _observation(args: argparse.Namespace, prompt: str | None) -> dict[str, Any]:
    if args.observation is None:
        raise UsageError(
            "A robot policy acts on an observation: give --observation FILE.npz with its images, state and prompt."
        )
    observation: dict[str, Any] = dict(read_npz(args.observation))
    if prompt is not None:
        if {"prompt", "task"} & observation.keys():
            raise UsageError(f"{args.observation} has a prompt already: leave it out there or on the command line.")
        observation["prompt"] = prompt
    return observation


def _noise(path: str) -> Any:
    arrays = read_npz(path)
    if set(arrays) != {_NOISE}:
        raise ObservationError(
            f"{path} holds {', '.join(sorted(arrays)) or 'no arrays'}, not one array named {_NOISE}: write it with "
            "numpy.savez(path, noise=array)."
        )
    return arrays[_NOISE]


def _load(args: argparse.Namespace) -> tuple[Policy, float]:
    from edgewright.runtime.policy import Policy

    start = time.perf_counter()
    policy = Policy.load(args.bundle, threads=args.threads, seed=args.seed or 0)
    load_ms = 1000.0 * (time.perf_counter() - start)
    if policy.manifest is not None:
        warn_failed(policy.manifest)
    return policy, load_ms


def _table(chunk: Chunk) -> str:
    head = ["step", *(f"action {index}" for index in range(chunk.actions.shape[1]))]
    rows = [[step, *(_Number(value) for value in row)] for step, row in enumerate(chunk.actions.tolist())]
    return table(head, rows)


class _Number(float):
    """A number that a table shows with as many digits as its neighbours."""

    def __str__(self) -> str:
        return f"{self:.5f}"


def _timings(chunk: Chunk, load_ms: float) -> list[str]:
    times, steps = chunk.timings, chunk.timings["denoise"]
    each = f" ({len(steps)} x {sum(steps) / len(steps):.1f})" if len(steps) > 1 else ""
    return [
        f"load {load_ms:.0f} ms",
        f"prepare {times['prepare']:.1f} ms, vision {times['vision']:.1f} ms, prefix {times['prefix']:.1f} ms, "
        f"denoise {sum(steps):.1f} ms{each}, total {times['total']:.1f} ms",
    ]


def _to_json(policy: Policy, chunk: Chunk, load_ms: float) -> dict[str, Any]:
    times = chunk.timings
    return {
        "kind": policy.spec.kind,
        "actions": chunk.actions.tolist(),
        "normalized": chunk.normalized.tolist(),
        "timings": {
            "load_ms": round(load_ms, 3),
            **{f"{name}_ms": round(times[name], 3) for name in ("prepare", "vision", "prefix")},
            "denoise_ms": [round(step, 3) for step in times["denoise"]],
            "total_ms": round(times["total"], 3),
        },
        "notes": list(chunk.notes),
    }
