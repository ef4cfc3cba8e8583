"""Loading a bundle for the verbs that run it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgewright.cli._output import note

if TYPE_CHECKING:
    from edgewright.runtime.llm import LLM


def load(args: argparse.Namespace) -> LLM:
    """Load `args.bundle` with `args.threads`; a bundle whose verification failed runs with a warning."""
    from edgewright.runtime.llm import LLM

    llm = LLM.load(args.bundle, threads=args.threads)
    if llm.manifest.verdict["status"] == "failed":
        note("warning: this bundle failed its verification; see reports/verify.json in it")
    return llm


def warn_respelled(llm: LLM, respelled: Mapping[int, int], *, quiet: bool = False) -> None:
    """Say which tokens of a prompt a reduced vocabulary dropped, and that kept ones spell them."""
    if respelled:
        most = sorted(respelled, key=lambda token: (-respelled[token], token))
        shown = ", ".join(repr(llm.tokenizer.id_to_token(token)) for token in most[:5])
        more = f" and {len(most) - 5} others" if len(most) > 5 else ""
        note(
            "note: tokens that the reduced vocabulary lacks were spelled in smaller ones, "
            f"{sum(respelled.values())} in the prompt: {shown}{more}",
            quiet=quiet,
        )
