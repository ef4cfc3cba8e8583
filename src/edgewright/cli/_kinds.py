"""What a bundle holds, and the flags of a verb that have no meaning for it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from edgewright.errors import UsageError


def holds_policy(bundle: str | Path) -> bool:
    """Tell whether a bundle holds a robot policy, by its manifest; raises BundleError where there is none."""
    from edgewright.bundle import read_manifest

    return read_manifest(Path(bundle)).model.get("policy") is not None


def refuse_foreign(args: argparse.Namespace, flags: Iterable[str], *, policy: bool) -> None:
    """Raise UsageError where one of `flags`, which have no meaning for this kind of bundle, is given."""
    wrong = [flag for flag in flags if flag in args.given]
    if wrong:
        held, other = ("robot policy", "language models") if policy else ("language model", "robot policies")
        have = "has a meaning" if len(wrong) == 1 else "have a meaning"
        raise UsageError(
            f"{Path(args.bundle).name} holds a {held}, and {' and '.join(wrong)} {have} for {other} only: leave "
            f"{'it' if len(wrong) == 1 else 'them'} out."
        )
