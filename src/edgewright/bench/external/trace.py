"""`trace.json` of a run by an external program: a track for each dialog with its queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from edgewright.bench.records.folder import TRACE, write_whole
from edgewright.bench.records.reader import Run
from edgewright.bench.records.trace import trace_events


def write_query_trace(run: Run) -> None:
    """Write the trace of a run into its folder, times in microseconds since the part's start; raises OutputError."""
    data = {
        "displayTimeUnit": "ms",
        "otherData": {"case": run.name, "external": True},
        "traceEvents": [*trace_events(run), *_queries(run)],
    }
    write_whole(run.folder / TRACE, json.dumps(data, separators=(",", ":")) + "\n")


def _queries(run: Run) -> Iterator[dict[str, Any]]:
    processes = {part: number for number, part in enumerate(run.parts, 1)}
    tracks = {name: number for number, name in enumerate(run.dialogs, 1)}
    for job in run.jobs:
        if job.dialog not in tracks:
            continue
        yield {
            "ph": "X",
            "pid": processes[job.part, job.repeat],
            "tid": tracks[job.dialog],
            "name": f"query {job.iteration}",
            "cat": job.dialog,
            "ts": job.release_ns / 1000,
            "dur": (job.end_ns - job.release_ns) / 1000,
            "args": {"finish": job.finish, "generated_tokens": job.facts.get("generated_tokens")},
        }
