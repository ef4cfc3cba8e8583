"""`trace.json`: a run as Chrome trace events, which Perfetto and chrome://tracing open.

A process is a part of the run. Its first track is the accelerator; then comes one for each dialog, with its waits, its
steps and the host work after them, and one with the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from edgewright.bench.records.folder import TRACE
from edgewright.bench.records.reader import Run
from edgewright.bench.records.rows import RUN, StepRow
from edgewright.files import os_errors

#: Viewers become slow beyond this, so a longer run is cut; `otherData` says what was left out.
MOST_STEPS = 50_000
#: Events that are spelled at once.
_BATCH = 1000
_ACCELERATOR = 0


def write_trace(run: Run) -> None:
    """Write the trace of a run into its folder; raises OutputError."""
    path = run.folder / TRACE
    work = path.with_name(f".{TRACE}.partial-{os.getpid()}")
    other = {
        "case": run.name,
        "simulated": run.simulated,
        "steps": min(len(run.steps), MOST_STEPS),
        "steps_left_out": max(0, len(run.steps) - MOST_STEPS),
    }
    with os_errors(TRACE):
        try:
            _write(work, trace_events(run), other)
            work.replace(path)
        finally:
            work.unlink(missing_ok=True)


def _write(path: Path, events: Iterable[dict[str, Any]], other: dict[str, Any]) -> None:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n')
        rest, before = iter(events), ""
        while some := list(islice(rest, _BATCH)):
            file.write(before + encode(some)[1:-1])
            before = ",\n"
        file.write("\n]}\n")


def trace_events(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the events: times in microseconds since the part's start."""
    processes = {part: number for number, part in enumerate(run.parts, 1)}
    tracks = {name: number for number, name in enumerate(run.dialogs, _ACCELERATOR + 1)}
    for (part, repeat), process in processes.items():
        yield from _names(process, _title(run, part, repeat), tracks)
        if part == RUN:
            yield from _weights(run, process)
    # What was measured first, so that a cut leaves that, and not the parts that prepared it.
    steps = sorted(run.steps, key=lambda step: step.part != RUN)
    for step in steps[:MOST_STEPS]:
        if step.dialog in tracks:
            yield from _step(step, processes[step.part, step.repeat], tracks[step.dialog])


def _title(run: Run, part: str, repeat: int) -> str:
    title = f"{part} {repeat}" if part == RUN else part
    return f"{title} (simulated)" if run.simulated else title


def _names(process: int, title: str, tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield what names a process and its tracks, and puts them in order."""
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": title}}
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for name, track in {"accelerator": _ACCELERATOR, **tracks}.items():
        yield {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _weights(run: Run, process: int) -> Iterator[dict[str, Any]]:
    for name, timeline in run.timelines.items():
        for time, weight in timeline.changes:
            where = {"pid": process, "tid": 0, "ts": time / 1000}
            yield {"ph": "C", **where, "name": f"weight of {name}", "args": {"weight": weight}}


def _step(step: StepRow, process: int, track: int) -> Iterator[dict[str, Any]]:
    args = {"iteration": step.iteration, "index": step.index, "tokens": step.tokens, "held": step.held}
    phase, dialog = step.phase, step.dialog
    yield _slice(process, _ACCELERATOR, f"{dialog} {phase}", dialog, step.start_ns, step.end_ns, args)
    if step.start_ns > step.ready_ns:
        yield _slice(process, track, "wait", "wait", step.ready_ns, step.start_ns)
    yield _slice(process, track, phase, phase, step.start_ns, step.end_ns, {**args, "weight": step.weight})
    if step.done_ns > step.end_ns:
        yield _slice(process, track, "host", "host", step.end_ns, step.done_ns)


def _slice(
    process: int, track: int, name: str, category: str, start_ns: int, end_ns: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "pid": process, "tid": track, "name": name, "cat": category, **times, "args": args or {}}
