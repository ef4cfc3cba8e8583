"""Runs a case with an external genie-t2t-run: on a device behind `adb shell` or `ssh`, or here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgewright.bench.external.fit import notes, problems
from edgewright.bench.external.prefix import Prefix

if TYPE_CHECKING:
    from edgewright.bench.external.runner import run_external

__all__ = ["Prefix", "notes", "problems", "run_external"]


def __getattr__(name: str) -> Any:
    """Import what runs a case when it is asked for: whoever only checks one needs no engine."""
    if name != "run_external":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgewright.bench.external.runner import run_external

    return run_external
