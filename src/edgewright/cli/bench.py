"""`edgewright bench`: how fast is a bundle here? Its actions run several dialogs at once on one accelerator."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._kinds import holds_policy, refuse_foreign
from edgewright.cli._load import warn_failed
from edgewright.cli._output import fields, note, print_json, size, table
from edgewright.cli._parser import positive_int, positive_ints, seed
from edgewright.cli._progress import progress_for

if TYPE_CHECKING:
    from edgewright.bench import Measurement, PolicyMeasurement

NAME = "bench"
HELP = (
    "Measure a bundle; or run several dialogs at once on one accelerator, see its actions.\n"
    "Of a language model: load, prefill, first token, decode and memory; of a policy: load, stages, chunk and memory."
)
#: Each is the module bench_<action>. A bundle that is called like one is given as ./<action>.
ACTIONS = ("run", "plan", "validate", "convert", "embed", "plot", "compare", "profile")
_ACTIONS_HELP = """\
actions, for several dialogs on one accelerator (edgewright bench ACTION --help tells more):
  run       run a case: solo, then all at once; everything goes into a run folder
  plan      say what a case will do: dialogs, encodings, shares over time
  validate  find everything that is wrong with a case
  convert   turn command lines and use cases into case files
  embed     write input embeddings and tables as raw files
  plot      draw figures and a page of run folders
  compare   compare two runs
  profile   print the figures of a Genie profile
"""
#: The flags that have a meaning for one kind of bundle only.
LLM_FLAGS = ("--prompt-tokens", "--decode-tokens", "--after")
POLICY_FLAGS = ("--steps", "--cameras", "--prompt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _ACTIONS_HELP
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that deploy wrote")
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="times (default: 5; chunks of a policy: 20)")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="cores to use (default: the physical ones)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the random inputs (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="write JSON there; '-' prints it instead of the table")
    group = parser.add_argument_group("language models")
    group.add_argument("--prompt-tokens", type=positive_int, default=512, metavar="N", help="prefill (default: 512)")
    group.add_argument("--decode-tokens", type=positive_int, default=64, metavar="N", help="decode (default: 64)")
    group.add_argument(
        "--after",
        type=positive_ints,
        default=[32, 1024],
        metavar="N,N",
        help="contexts after which decode is measured (default: 32,1024)",
    )
    group = parser.add_argument_group("robot policies")
    group.add_argument("--steps", type=positive_int, metavar="N", help="denoise steps (default: the bundle's)")
    group.add_argument("--cameras", type=positive_int, metavar="N", help="how many send an image (default: all)")
    group.add_argument("--prompt", metavar="TEXT", help="the instruction (default: one of eleven words)")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    from edgewright.bundle import read_manifest
    from edgewright.files import canonical_json, os_errors

    policy = holds_policy(args.bundle)
    refuse_foreign(args, LLM_FLAGS if policy else POLICY_FLAGS, policy=policy)
    warn_failed(read_manifest(Path(args.bundle)))
    data, shown = _policy(args) if policy else _llm(args)
    if args.json == "-":
        print_json(data)
        return 0
    if args.json:
        with os_errors(args.json):
            Path(args.json).write_bytes(canonical_json(data))
    sys.stdout.write(shown + "\n")
    return 0


def _llm(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the result as JSON and as a table."""
    from edgewright.bench import Plan, measure_bundle

    repeats = Plan.repeats if args.repeats is None else args.repeats
    plan = Plan(args.prompt_tokens, args.decode_tokens, tuple(args.after), repeats, args.seed)
    result = measure_bundle(args.bundle, plan, threads=args.threads, progress=progress_for(quiet=args.quiet))
    return result.to_json(), _table(result)


def _policy(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the result as JSON and as a table."""
    from edgewright.bench.policy import PROMPT, PolicyPlan, measure_policy

    plan = PolicyPlan(
        repeats=PolicyPlan.repeats if args.repeats is None else args.repeats,
        steps=args.steps,
        cameras=args.cameras,
        prompt=PROMPT if args.prompt is None else args.prompt,
        seed=args.seed,
    )
    result = measure_policy(args.bundle, plan, threads=args.threads, progress=progress_for(quiet=args.quiet))
    for text in result.notes:
        note(f"note: {text}", quiet=args.quiet)
    return result.to_json(), _policy_table(result)


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


def _policy_table(result: PolicyMeasurement) -> str:
    names = {"denoise": f"denoise x {result.steps}"}
    rows = [
        (names.get(name, name), *(f"{value:.4g}" for value in (one.p50_ms, one.p95_ms, one.p99_ms)))
        for name, one in result.latencies.items()
    ]
    cameras = f"{len(result.cameras)} camera{'' if len(result.cameras) == 1 else 's'}"
    sizes = [
        ("load", f"{result.load_ms} ms"),
        ("bundle", size(result.bundle_bytes)),
        *(
            (name, "unknown" if count is None else size(count))
            for name, count in (
                ("peak memory", result.peak_rss_bytes),
                ("peak anonymous", result.peak_anonymous_bytes),
            )
        ),
    ]
    return "\n".join(
        [
            f"{result.kind}, {cameras}, {result.prefix_tokens} tokens in the prefix, {result.plan.repeats} chunks",
            table(("ms", "p50", "p95", "p99"), rows),
            "",
            fields(sizes),
        ]
    )
