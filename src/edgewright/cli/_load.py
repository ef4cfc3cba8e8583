"""Loading a bundle for the verbs that run it."""

from __future__ import annotations

import argparse
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
