"""Hand-made rows of runs, and run folders made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewright.bench.records.folder import CASE, DIALOGS, ENVIRONMENT, EVENTS, JOBS, STEPS
from edgewright.bench.records.rows import JobRow, StepRow, line

MS = 1_000_000


def step(dialog: str, start: float, end: float, **other: Any) -> StepRow:
    """A step on the accelerator from `start` to `end` milliseconds, by default a decode step that was ready then."""
    times = {"ready": start, "done": end} | {name: other.pop(name) for name in ("ready", "done") if name in other}
    values: dict[str, Any] = {
        "part": "run", "repeat": 0, "dialog": dialog, "iteration": 0, "index": 0, "phase": "decode", "tokens": 1,
        "padded": None, "held": 0, "emits": True, "weight": 1.0,
    }  # fmt: skip
    spans = {"ready_ns": times["ready"], "start_ns": start, "end_ns": end, "done_ns": times["done"]}
    return StepRow(**{**values, **{name: round(ms * MS) for name, ms in spans.items()}, **other})


def job(dialog: str, release: float, end: float, **other: Any) -> JobRow:
    """A job that was complete; times in milliseconds, `ready` and `eligible` by default the release."""
    times = {"ready": release, "eligible": release, "deadline": None}
    times |= {name: other.pop(name) for name in times if name in other}
    values: dict[str, Any] = {"part": "run", "repeat": 0, "dialog": dialog, "iteration": 0, "finish": "complete"}
    spans = {f"{name}_ns": None if ms is None else round(ms * MS) for name, ms in times.items()}
    return JobRow(**{**values, **spans, "release_ns": round(release * MS), "end_ns": round(end * MS), **other})


def served(order: Iterable[str], cost_ms: Mapping[str, float], **other: Any) -> list[StepRow]:
    """One step after the other in `order`, of dialogs that are ready again at once."""
    now, found = 0.0, []
    ready: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name in order:
        end = now + cost_ms[name]
        counts[name] = counts.get(name, -1) + 1
        found.append(step(name, now, end, ready=ready.get(name, 0.0), index=counts[name], **other))
        ready[name] = now = end
    return found


def whole_jobs(steps: Sequence[StepRow], **other: Any) -> list[JobRow]:
    """One job for each dialog, from 0 to the end of the last of the steps."""
    end = max(one.done_ns for one in steps) / MS
    return [job(name, 0, end, **other) for name in dict.fromkeys(one.dialog for one in steps)]


def write_run(
    folder: Path,
    dialogs: Mapping[str, str],
    steps: Sequence[StepRow] = (),
    jobs: Sequence[JobRow] = (),
    events: Sequence[Mapping[str, Any]] = ({"event": "end", "how": "finished"},),
    *,
    discipline: str = "weighted",
    simulated: bool = False,
) -> Path:
    """Write a run folder; `dialogs` maps names to timelines."""
    (folder / DIALOGS).mkdir(parents=True)
    case = {
        "version": 1,
        "name": "hand-made",
        "dialogs": [{"name": name, "model": "m", "timeline": line} for name, line in dialogs.items()],
        "scheduler": {"discipline": discipline},
    }
    (folder / CASE).write_text(json.dumps(case))
    (folder / ENVIRONMENT).write_text(json.dumps({"simulated": simulated}))
    (folder / STEPS).write_text("".join(line(one._asdict()) for one in steps))
    (folder / JOBS).write_text("".join(line(one.to_json()) for one in jobs))
    (folder / EVENTS).write_text("".join(line(one) for one in events))
    return folder
