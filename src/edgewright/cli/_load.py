"""Loading a bundle for the verbs that run it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgewright.cli._output import note

if TYPE_CHECKING:
    from edgewright.bundle import Manifest
    from edgewright.runtime.llm import LLM


def load(args: argparse.Namespace) -> LLM:
    """Load `args.bundle` with `args.threads`; a bundle whose verification failed runs with a warning."""
    from edgewright.runtime.llm import LLM

    llm = LLM.load(args.bundle, threads=args.threads)
    warn_failed(llm.manifest)
    return llm


def failed_verdict(manifest: Manifest, name: str = "this bundle") -> str | None:
    """Return a warning of a bundle whose verification failed, None for every other."""
    if manifest.verdict.get("status") != "failed":
        return None
    return f"{name} failed its verification; see reports/verify.json in it"


def warn_failed(manifest: Manifest, name: str = "this bundle") -> None:
    """Warn of a bundle whose verification failed; never quiet, since what it gives may be wrong."""
    if text := failed_verdict(manifest, name):
        note(f"warning: {text}")


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
