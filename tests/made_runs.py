"""Run folders made by hand: their rows follow from a few numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MS = 1_000_000


def step(dialog: str, start: float, end: float, **other: Any) -> dict[str, Any]:
    """A step with times in milliseconds; `ready` is `start`, `done` is `end` where nothing else is said."""
    times = {"ready": other.pop("ready", start), "start": start, "end": end, "done": other.pop("done", end)}
    return {
        "part": "run", "repeat": 0, "dialog": dialog, "iteration": 0, "index": 0, "phase": "decode", "tokens": 1,
        "padded": None, "held": 0, "emits": True, **{f"{name}_ns": round(t * MS) for name, t in times.items()},
        "weight": 1.0, **other,
    }  # fmt: skip


def job(dialog: str, release: float, end: float, **other: Any) -> dict[str, Any]:
    """A job with times in milliseconds that was ready and eligible when it was released."""
    return {
        "part": "run", "repeat": 0, "dialog": dialog, "iteration": 0, "release_ns": round(release * MS),
        "ready_ns": round(release * MS), "eligible_ns": round(release * MS), "end_ns": round(end * MS),
        "deadline_ns": None, "finish": "complete", "error": None, **other,
    }  # fmt: skip


def write_run(
    folder: Path,
    timelines: Mapping[str, str],
    steps: Sequence[Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]] = (),
    *,
    env: Mapping[str, Any] | None = None,
    case: Mapping[str, Any] | None = None,
    how: str = "finished",
) -> Path:
    """Write a run folder; `timelines` are the weights by dialog."""
    folder.mkdir(parents=True)
    dialogs = [{"name": name, "model": "m", "timeline": text} for name, text in timelines.items()]
    whole = {"name": folder.parent.name, "dialogs": dialogs, "scheduler": {"discipline": "weighted"}, **(case or {})}
    (folder / "case.resolved.json").write_text(json.dumps(whole))
    (folder / "env.json").write_text(json.dumps({"simulated": False, "machine": {"cpu": "a cpu"}, **(env or {})}))
    for name, rows in (("steps", steps), ("jobs", jobs), ("events", [{"event": "end", "how": how}])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def shared_run(
    folder: Path,
    timelines: Mapping[str, str] | None = None,
    *,
    order: str = "ABACABA",
    costs: Mapping[str, float] | None = None,
    rounds: int = 10,
    simulated: bool = False,
    solo: bool = True,
    speed: float = 1.0,
    repeats: int = 1,
    hold: float = 0.0,
) -> Path:
    """Write a run whose accelerator serves the dialogs A, B, ... of `order` again and again.

    A step of a dialog takes `costs` / `speed` milliseconds. Each repeat is a percent slower than the one before. The
    first step of each dialog is a prefill of three times the cost; `hold` is how long the accelerator is idle, and
    everybody waits, after each round.
    """
    lines = timelines or {"A": "4:0", "B": "2:0", "C": "1:0"}
    cost = {name: (costs or {}).get(name, 10.0) / speed for name in lines}
    steps, jobs = [], []
    for repeat in range(repeats):
        rows = _shared(order * rounds, lines, cost, repeat, 1 + repeat / 100, hold)
        steps += rows
        for name in lines:
            own = [row for row in rows if row["dialog"] == name]
            if own:
                jobs.append(job(name, 0, own[-1]["done_ns"] / MS, repeat=repeat, prompt_tokens=32))
    for name in lines if solo else ():
        alone = _shared(name * 20, lines, cost, 0, 1.0, 0.0)
        steps += [{**row, "part": f"solo:{name}"} for row in alone]
        jobs.append(job(name, 0, alone[-1]["done_ns"] / MS, part=f"solo:{name}", prompt_tokens=32))
    warm = [{**row, "part": "warmup"} for row in _shared("".join(lines), lines, cost, 0, 5.0, 0.0)]
    return write_run(folder, lines, [*warm, *steps], jobs, env={"simulated": simulated})


def _shared(
    order: str, lines: Mapping[str, str], cost: Mapping[str, float], repeat: int, slow: float, hold: float
) -> list[dict[str, Any]]:
    """The steps of a part: one after the other, each dialog ready again as soon as its step has ended."""
    now, ready, held, rows = 0.0, dict.fromkeys(lines, 0.0), dict.fromkeys(lines, 0), []
    for place, name in enumerate(order):
        first = not held[name]
        end = now + cost[name] * slow * (3 if first else 1)
        rows.append(
            step(
                name, now, end, ready=ready[name], repeat=repeat, index=held[name], held=held[name] + 32,
                phase="prefill" if first else "decode", tokens=32 if first else 1,
            )
        )  # fmt: skip
        held[name] += 1
        ready[name] = end
        now = end + (hold if place % 7 == 6 else 0.0)
    return rows
