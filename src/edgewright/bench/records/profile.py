"""`profile.json`: a run in the layout of Genie's profiles, with figures by Genie's definitions.

Dialogs are dialog0, dialog1, ... in the case's order; policies are components of the same kind. A query is an event of
the run's part, its repeats one after another. As in the library, a query that failed has no event, and a stopped one
has an event without figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from edgewright.bench.records.folder import PROFILE
from edgewright.bench.records.metrics import count_of
from edgewright.bench.records.reader import Run
from edgewright.bench.records.rows import RUN, JobRow, StepRow
from edgewright.genie import Component, Event, Kpis, genie_kpis, write_profile

_CREATE, _QUERY = "GenieDialog_create", "GenieDialog_query"


def write_genie_profile(run: Run) -> None:
    """Write the profile of a run into its folder; raises OutputError."""
    write_profile(run.folder / PROFILE, components(run), 0)


def components(run: Run) -> list[Component]:
    """Return the dialogs as components: their models' loading, then their queries in the order of their ends.

    The clock begins with the loading of the first model; the parts follow one another on it.
    """
    loads = [event for event in run.events if event.get("event") == "load"]
    starts = _starts(run)
    steps: dict[tuple[str, int, int], list[StepRow]] = defaultdict(list)
    for step in run.steps:
        if step.part == RUN:
            steps[step.dialog, step.repeat, step.iteration].append(step)
    found = []
    for number, name in enumerate(run.dialogs):
        events = [*_created(loads, name)]
        jobs = [job for job in run.jobs if job.part == RUN and job.dialog == name and job.finish != "failed"]
        for job in jobs:
            mine = steps[name, job.repeat, job.iteration]
            if job.ready_ns is not None:
                events.append(_query(job, mine, starts.get(job.repeat, 0)))
        found.append(Component(f"dialog{number}", "dialog", tuple(events)))
    return found


def _created(loads: list[Mapping[str, Any]], name: str) -> Iterator[Event]:
    for load in loads:
        if name in load.get("dialogs", ()) and not load.get("error"):
            duration = int(load.get("ms", 0) * 1000)
            yield Event(_CREATE, int(load.get("start_ms", 0) * 1000), duration, {"init-time": (duration, "us")})


def _starts(run: Run) -> dict[int, int]:
    """Return when each repeat began, in microseconds since loading began."""
    parts = (event for event in run.events if event.get("event") == "begin" and event.get("part") == RUN)
    return {int(event.get("repeat", 0)): int(event.get("start_ms", 0) * 1000) for event in parts}


def _query(job: JobRow, steps: list[StepRow], start_us: int) -> Event:
    begin = job.ready_ns or 0
    kpis: Kpis = {}
    if job.finish == "complete":
        tokens = sorted(step.done_ns for step in steps if step.emits)
        kpis = genie_kpis(count_of(job.facts, "prompt_tokens"), min([begin, *tokens]), tokens, job.end_ns)
    return Event(_QUERY, start_us + begin // 1000, (job.end_ns - begin) // 1000, kpis)
