"""How the run of a case ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Exit codes by status: all complete, nothing complete (or stopped at the first failure), some failed, Ctrl-C.
EXIT_CODES: Mapping[str, int] = {"complete": 0, "failed": 1, "partial": 3, "interrupted": 130}


@dataclass(frozen=True)
class RunResult:
    """A run that was recorded in `folder`: its status, the process exit code that says so, and its summary."""

    folder: Path
    status: str
    exit_code: int
    summary: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, summary: Mapping[str, Any]) -> RunResult:
        """Return the result that a summary tells of."""
        status = str(summary["status"])
        return cls(folder, status, EXIT_CODES[status], summary)
