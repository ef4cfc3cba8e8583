"""How tokens are drawn and a dialog starts: the arguments that `run` and `chat` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgewright.cli._parser import positive_int

if TYPE_CHECKING:
    from edgewright.runtime.sampling import SamplingParams


def add_generation(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """Add bundle, limits and sampling; the defaults are greedy decoding."""
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that deploy wrote")
    parser.add_argument("--system", metavar="TEXT", help="system message before the chat")
    parser.add_argument(
        "--max-tokens",
        type=positive_int,
        default=max_tokens,
        metavar="N",
        help=f"most tokens to generate (default: {max_tokens})",
    )
    group = parser.add_argument_group("sampling (default: greedy)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="keep the K likeliest tokens; 0: all")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep the likeliest tokens up to P")
    group.add_argument("--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P times the likeliest")
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="F", help="1: none")
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="F", help="0: none")
    group.add_argument("--frequency-penalty", type=float, default=0.0, metavar="F", help="0: none")
    group.add_argument("--seed", type=int, metavar="N", help="makes a draw repeatable")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="cores to use (default: the physical ones)")


def sampling_of(args: argparse.Namespace) -> SamplingParams:
    """Return the sampling parameters; raises GenerationError for a value out of range."""
    from edgewright.runtime.sampling import SamplingParams

    return SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=args.seed,
    )
