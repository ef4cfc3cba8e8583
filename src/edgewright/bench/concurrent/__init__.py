"""Several dialogs on one accelerator, run here."""

from __future__ import annotations

from edgewright.bench.concurrent.run import is_simulated, resolved, run_case
from edgewright.bench.records import RunResult

__all__ = ["RunResult", "is_simulated", "resolved", "run_case"]
