"""Runs a case: loads its models, warms up, runs each dialog alone, then all of them at once; records everything."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from edgewright.bench.case.check import require
from edgewright.bench.case.spec import Case, DialogSpec
from edgewright.bench.case.writer import case_data
from edgewright.bench.concurrent.logs import DialogLogs
from edgewright.bench.concurrent.models import Models, elapsed, load_models
from edgewright.bench.concurrent.tasks import TaskMaker, alone, warming
from edgewright.bench.memory import forget_peak, status_bytes
from edgewright.bench.records import (
    CASE,
    ENVIRONMENT,
    RUN,
    SOLO,
    WARMUP,
    PartRecorder,
    RunResult,
    RunWriter,
    new_run_folder,
    write_json,
    write_outputs,
)
from edgewright.bench.records.energy import EnergyMeter
from edgewright.bench.records.environment import environment
from edgewright.errors import EdgewrightError, UsageError
from edgewright.progress import SILENT, Progress
from edgewright.runtime.scheduling.course import Outcome, told
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.seat import Client
from edgewright.runtime.scheduling.threads import run_threads
from edgewright.runtime.scheduling.virtual import run_virtual
from edgewright.runtime.scheduling.work import JobRecord, StepRecord, Task

#: How a run ended: all was done, somebody stopped it, or a failure did.
How = Literal["finished", "interrupted", "fail-fast"]


def run_case(
    case: Case,
    out: Path,
    *,
    run_id: str | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
    simulate: bool = False,
) -> RunResult:
    """Run a case and return what came of it; the run folder `out/<case>/<run>/` has everything.

    `run_id` is by default the date and time; a run folder of that name is refused, or replaced with `overwrite`. Models
    of a cost model run in virtual time, all or none of them; `simulate` says that none may be real. Ctrl-C ends the
    run with what was recorded ("interrupted"). Raises UsageError before anything is loaded where the case can't be run,
    OutputError where the folder exists or can't be written.
    """
    require(case)
    simulated = is_simulated(case)
    if simulate and not simulated:
        raise UsageError(
            f"The case {case.name} has models that are not simulated, and only a simulation was asked for."
        )
    folder = new_run_folder(out, case.name, run_id, overwrite=overwrite)
    write_json(folder / CASE, resolved(case, folder))
    write_json(folder / ENVIRONMENT, environment(simulated=simulated, threads=case.run.threads))
    names = [dialog.name for dialog in case.dialogs]
    forget_peak()  # a case before this one may have needed more
    with RunWriter(folder) as writer, DialogLogs(folder, names) as logs:
        how = _Runner(case, writer, logs, progress, simulated=simulated).run()
        writer.event("end", how=how, peak_rss_bytes=None if simulated else status_bytes("VmHWM"))
    return RunResult.of(folder, write_outputs(folder))


def is_simulated(case: Case) -> bool:
    """Whether all models are cost models. Raises UsageError where some are, and some are not."""
    kinds = {case.model_of(dialog).simulated is not None for dialog in case.dialogs}
    if len(kinds) > 1:
        raise UsageError(
            f"The case {case.name} mixes simulated models with real ones, whose times can't be compared: simulate all "
            "of them, or none."
        )
    return kinds == {True}


def resolved(case: Case, folder: Path) -> dict[str, Any]:
    """Return a case as a case file in `folder` that leaves nothing to defaults which could change."""
    data = case_data(case, folder)
    for dialog, entry in zip(case.dialogs, data["dialogs"], strict=True):
        entry.pop("weight", None)
        entry |= {"name": dialog.name, "timeline": str(dialog.timeline), "iterations": dialog.iterations}
    data["scheduler"] = asdict(case.scheduler)
    data["run"] = {name: value for name, value in asdict(case.run).items() if value is not None}
    return data


class _StoppedError(Exception):
    """The run ends early."""

    def __init__(self, how: How) -> None:
        super().__init__(how)
        self.how: How = how


class _Runner:
    """The parts of a run, one after the other."""

    def __init__(self, case: Case, writer: RunWriter, logs: DialogLogs, progress: Progress, *, simulated: bool) -> None:
        self._case, self._writer, self._logs, self._progress = case, writer, logs, progress
        self._simulated, self._maker = simulated, TaskMaker(case)
        self._simulated_ns = 0
        self._clock: Callable[[], int] = self._simulated_clock if simulated else elapsed()
        self._models = Models({}, {})
        self._refused: set[str] = set()

    def _simulated_clock(self) -> int:
        """Return how long the parts so far took; they follow one another."""
        return self._simulated_ns

    def run(self) -> How:
        """Run all parts; returns how that ended."""
        try:
            self._load()
            self._parts()
        except _StoppedError as stop:
            return stop.how
        except KeyboardInterrupt:
            return "interrupted"
        return "finished"

    def _load(self) -> None:
        self._models = load_models(self._case, self._progress, self._told_of_load, self._clock)
        if self._models.errors and self._case.run.on_error == "fail-fast":
            raise _StoppedError("fail-fast")
        self._refused = {dialog.name for dialog in self._case.dialogs if dialog.model in self._models.errors}

    def _told_of_load(self, **fields: Any) -> None:
        self._writer.event("load", **fields)

    def _parts(self) -> None:
        """Warm up, run each dialog alone, and all at once. A simulated device has nothing to warm."""
        case = self._case
        if case.run.warmup and not self._simulated:
            with self._progress.step("warm up"):
                self._part(WARMUP, 0, [warming(dialog, case.run.warmup) for dialog in case.dialogs])
        if case.run.solo:
            for dialog in case.dialogs:
                if dialog.name not in self._refused:
                    with self._progress.step(f"{dialog.name} alone"):
                        self._part(SOLO + dialog.name, 0, [alone(dialog)])
        for repeat in range(case.run.repeats):
            title = "run" if case.run.repeats == 1 else f"run {repeat + 1} of {case.run.repeats}"
            with self._progress.step(title):
                self._part(RUN, repeat, list(case.dialogs))

    def _part(self, part: str, repeat: int, dialogs: Sequence[DialogSpec]) -> None:
        """Run a part and record it; raises _StoppedError where the run must not go on."""
        made = [(dialog, task) for dialog in dialogs if (task := self._task(dialog, part, repeat)) is not None]
        if not made:
            return
        present, tasks = [dialog for dialog, _ in made], [task for _, task in made]
        names = [dialog.name for dialog in present]
        scheduler = self._scheduler(part, present)
        recorder = self._writer.part(part, repeat, names)
        observer = _Observer(recorder, self._logs, part, repeat, names)
        self._writer.event("begin", part=part, repeat=repeat, start_ms=round(self._clock() / 1e6, 3))
        meter = None if self._simulated else EnergyMeter()
        try:
            outcome = self._drive(tasks, scheduler, observer)
        finally:
            recorder.flush()
        self._simulated_ns += outcome.end_ns
        self._writer.event(
            "part",
            part=part,
            repeat=repeat,
            end_ns=outcome.end_ns,
            busy_ns=outcome.busy_ns,
            held_ns=outcome.held_ns,
            lost_turns=outcome.lost_turns,
            stopped=outcome.stopped,
            bounds={name: scheduler.bound(index) for index, name in enumerate(names)},
            energy_j=None if meter is None else meter.joules(),
        )
        for index, error in outcome.failures.items():
            self._writer.event("failure", part=part, repeat=repeat, dialogs=[names[index]], error=told(error))
        del tasks, made, scheduler
        gc.collect()  # the sessions of this part, so that the next one neither holds them nor pays for their collection
        self._judge(part, outcome)

    def _drive(self, tasks: Sequence[Task], scheduler: Scheduler, observer: _Observer) -> Outcome:
        run = self._case.run
        if not self._simulated:
            return run_threads(tasks, scheduler, observer, on_error=run.on_error, timeout_s=run.timeout_s)
        until = None if run.timeout_s is None else round(run.timeout_s * 1e9)
        return run_virtual(tasks, scheduler, observer, until_ns=until, on_error=run.on_error)

    def _judge(self, part: str, outcome: Outcome) -> None:
        if outcome.stopped == "interrupt":
            raise _StoppedError("interrupted")
        if outcome.stopped == "failure":
            raise _StoppedError("fail-fast")
        if outcome.stopped in ("timeout", "until"):
            text = f"The part {part} was stopped after {self._case.run.timeout_s:g} s, as the case's timeout_s says."
            self._writer.event("note", text=text)

    def _task(self, dialog: DialogSpec, part: str, repeat: int) -> Task | None:
        """Return the task of a dialog; None, and a row, where it can't be made."""
        if dialog.name in self._refused:
            return None
        loaded = self._models.loaded.get(dialog.model)
        try:
            return self._maker.make(dialog, loaded, self._logs.writer(dialog.name, part, repeat), repeat=repeat)
        except EdgewrightError as error:
            self._refused.add(dialog.name)
            self._writer.event("refused", dialogs=[dialog.name], error=str(error))
            if self._case.run.on_error == "fail-fast":
                raise _StoppedError("fail-fast") from None
            return None

    def _scheduler(self, part: str, dialogs: Sequence[DialogSpec]) -> Scheduler:
        """Return the case's scheduler for the run; for the parts that only prepare it, turns for all alike."""
        clients = [Client(name=one.name, timeline=one.timeline, priority=one.priority) for one in dialogs]
        if part != RUN:
            return Scheduler(clients, "round-robin", hold_ns=0)
        spec = self._case.scheduler
        return Scheduler(clients, spec.discipline, hold_ns=round(spec.hold_ms * 1e6))


class _Observer:
    """Tells the recorder and the logs."""

    def __init__(
        self, recorder: PartRecorder, logs: DialogLogs, part: str, repeat: int, dialogs: Sequence[str]
    ) -> None:
        self._recorder, self._logs = recorder, logs
        self._part, self._repeat, self._dialogs = part, repeat, dialogs

    def step(self, record: StepRecord) -> None:
        """Record a step."""
        self._recorder.step(record)

    def job(self, record: JobRecord) -> None:
        """Record a job that ended."""
        self._recorder.job(record)
        self._logs.ended(self._dialogs[record.task], self._part, self._repeat, record)
