"""What scheduling costs: microseconds between two steps on the accelerator, and seconds for a simulated hour.

    .venv/bin/python benchmarks/gate.py
    .venv/bin/python benchmarks/gate.py --steps 2000 --json gate.json

A step here sleeps for a millisecond, as one that an engine computes without the interpreter's lock. The gap is the
time from the end of a step to the start of the next: handing over, the interpreter's lock, recording, the wake-up of a
thread. It counts where whoever comes next was waiting already, or, with one dialog, had nothing else to do; there it
has the host work in it. "host 0.3 ms" is that much work in Python after each step, which holds the interpreter's lock
while the next one wants to begin; "rows written" records as `edgewright bench run` does. "CPU" is what the processors
spend on a step altogether, host work not counted; it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from edgewright.bench.records.writer import LineFile, PartRecorder
from edgewright.runtime.scheduling import threads
from edgewright.runtime.scheduling.course import Recorder
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.seat import Client
from edgewright.runtime.scheduling.simulated import DialogCosts, SimulatedDialog
from edgewright.runtime.scheduling.timeline import Timeline
from edgewright.runtime.scheduling.virtual import run_virtual
from edgewright.runtime.scheduling.work import JobRecord, StepRecord

STEP_MS = 1.0
HOUR_NS = 3600 * 10**9


class Rows(Recorder):
    """An observer that also writes the rows of a run folder."""

    def __init__(self, folder: Path, dialogs: int) -> None:
        super().__init__()
        steps, jobs = LineFile(folder / "steps.jsonl"), LineFile(folder / "jobs.jsonl")
        self._part = PartRecorder(steps, jobs, "run", 0, [f"D{index}" for index in range(dialogs)])

    def step(self, record: StepRecord) -> None:
        """Keep and write a step."""
        super().step(record)
        self._part.step(record)

    def job(self, record: JobRecord) -> None:
        """Keep and write a job."""
        super().job(record)
        self._part.job(record)


def busy(ns: int) -> None:
    """Compute in Python for a time."""
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass


def worker(device_ns: int) -> Callable[[int], None]:
    """Return what a task does for a cost: sleep where it is the accelerator's, compute where it is the host's."""

    def work(ns: int) -> None:
        if ns == device_ns:
            time.sleep(ns / 1e9)
        elif ns:
            busy(ns)

    return work


def gaps(weights: Sequence[float], steps: int, host_ms: float, observer: Recorder) -> dict[str, float]:
    """Run dialogs and return the gaps in microseconds, and by how much the achieved shares missed the requested."""
    costs = DialogCosts(prefill_ms=STEP_MS, decode_ms=STEP_MS, host_ms=host_ms, context=1 << 40)
    total = sum(weights)
    dialogs = [
        SimulatedDialog(
            name=f"D{index}",
            costs=costs,
            max_tokens=round(steps * weight / total),
            work=worker(round(STEP_MS * 1e6)),
        )
        for index, weight in enumerate(weights)
    ]
    clients = [
        Client(name=one.name, timeline=Timeline.constant(weight)) for one, weight in zip(dialogs, weights, strict=True)
    ]
    scheduler = Scheduler(clients)
    began = time.process_time_ns()
    outcome = threads.run_threads(dialogs, scheduler, observer)
    cpu_us = (time.process_time_ns() - began) / 1e3 / len(observer.steps) - host_ms * 1e3
    ordered = sorted(observer.steps, key=lambda step: step.start_ns)
    # Whoever came after the end of the step before was late by itself, but for a lone dialog.
    found = [
        (after.start_ns - before.end_ns) / 1e3
        for before, after in pairwise(ordered)
        if len(weights) == 1 or after.ready_ns <= before.end_ns
    ]
    cuts = statistics.quantiles(found, n=100)
    first_end = min(max(step.start_ns for step in ordered if step.task == index) for index in range(len(weights)))
    shared = [step for step in ordered if step.start_ns <= first_end]
    missed = max(
        abs(sum(step.task == index for step in shared) / len(shared) - weight / total)
        for index, weight in enumerate(weights)
    )
    return {
        "gaps": len(found),
        "cpu_us": cpu_us,
        "p50_us": cuts[49],
        "p90_us": cuts[89],
        "p99_us": cuts[98],
        "held_ms": outcome.held_ns / 1e6,
        "lost_turns": outcome.lost_turns,
        "share_missed": missed,
    }


def hour(dialogs: int) -> dict[str, float]:
    """Simulate an hour of dialogs of 15 ms a step, and return the seconds that took."""
    costs = DialogCosts(prefill_ms=30, decode_ms=15)
    tasks = [
        SimulatedDialog(
            name=f"D{index}", costs=costs, prompt_tokens=200, max_tokens=100, rhythm=Rhythm(iterations=None)
        )
        for index in range(dialogs)
    ]
    clients = [Client(name=task.name, timeline=Timeline.constant(index + 1)) for index, task in enumerate(tasks)]
    recorder = Recorder()
    wall, cpu = time.perf_counter(), time.process_time()
    run_virtual(tasks, Scheduler(clients), recorder, until_ns=HOUR_NS)
    return {"quanta": len(recorder.steps), "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


HEAD = f"{'':44} {'p50':>7} {'p90':>7} {'p99':>7} {'CPU':>7} us  {'held':>7} ms  {'lost':>4}  share missed"


def real(weights: Sequence[float], host_ms: float, rows: bool, interval_s: float, steps: int) -> dict[str, Any]:
    """Measure one setting in real time, print its row and return it."""
    usual, threads.SWITCH_INTERVAL_S = threads.SWITCH_INTERVAL_S, min(interval_s, sys.getswitchinterval())
    try:
        with tempfile.TemporaryDirectory() as folder:
            gc.collect()
            row = gaps(weights, steps, host_ms, Rows(Path(folder), len(weights)) if rows else Recorder())
    finally:
        threads.SWITCH_INTERVAL_S = usual
    name = f"{len(weights)} dialogs, host {host_ms:g} ms{', rows written' if rows else ''}"
    if interval_s != usual:
        name += f", {interval_s * 1e6:.0f} us"
    figures = " ".join(f"{row[key]:7.1f}" for key in ("p50_us", "p90_us", "p99_us", "cpu_us"))
    print(f"{name:44} {figures}     {row['held_ms']:7.1f}     {row['lost_turns']:4}  {row['share_missed']:.2%}")
    return {"name": name, "weights": weights, "switch_interval_s": interval_s, **row}


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="steps of each real run (default: 1000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--intervals", default="", help="also with these switch intervals in us, such as 50,5000")
    options = parser.parse_args()
    intervals = [threads.SWITCH_INTERVAL_S, *(float(text) / 1e6 for text in options.intervals.split(",") if text)]
    print(HEAD)
    rows = [
        real(weights, host_ms, written, interval, options.steps)
        for interval, weights, host_ms, written in product(intervals, ((1,), (4, 2, 1)), (0.0, 0.3), (False, True))
    ]
    simulated = hour(16)
    print(
        f"a simulated hour of 16 dialogs: {simulated['quanta']} quanta in {simulated['wall_s']:.1f} s "
        f"({simulated['cpu_s']:.1f} s of CPU)"
    )
    if options.json:
        result = {"step_ms": STEP_MS, "rows": rows, "hour": simulated}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
