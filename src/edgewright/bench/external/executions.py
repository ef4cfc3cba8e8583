"""What a run folder tells of its executions and their figures, as far as it is whole: others may have written in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from edgewright.bench.records.reader import Run
from edgewright.bench.records.rows import JobRow

_NAME = re.compile(r"[a-z]+-[a-z0-9-]+", re.ASCII)
_LARGEST = 1e18


def executions_of(run: Run) -> list[Mapping[str, Any]]:
    """Return the events of executions in their order; what is no such event is left out.

    Their `name` is that of a folder in `executions`, their `dialogs` are the run's.
    """
    return [event for event in run.events if event.get("event") == "execution" and _is_whole(event, run)]


def _is_whole(event: Mapping[str, Any], run: Run) -> bool:
    name, asked, error = event.get("name"), event.get("dialogs"), event.get("error")
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and isinstance(asked, list)
        and bool(asked)
        and all(isinstance(one, str) and one in run.dialogs for one in asked)
        and (error is None or isinstance(error, str))
        and is_number(event.get("started_ms"))
    )


def figures_of(job: JobRow, kind: str) -> dict[str, float]:
    """Return the figures of a job, `genie` or `recomputed`; what is no number is left out."""
    found = job.facts.get(kind)
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {name: float(value) for name, value in pairs if is_number(value)}


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value of a file is a number that can be measured; NaN is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
