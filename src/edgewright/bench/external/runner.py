"""Runs a case with an external genie-t2t-run and records it in a run folder like that of a run here."""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from edgewright.bench.case.check import require
from edgewright.bench.case.spec import Case, RunnerSpec
from edgewright.bench.concurrent.logs import DialogLogs
from edgewright.bench.concurrent.run import resolved
from edgewright.bench.external.fit import notes
from edgewright.bench.external.judge import Verdict, judge
from edgewright.bench.external.outcome import outcome_of
from edgewright.bench.external.outputs import write_external_outputs
from edgewright.bench.external.plan import Execution, ExecutionPart, flags_of, parts_of, profile_name
from edgewright.bench.external.prefix import Prefix
from edgewright.bench.external.processes import STDERR, STDOUT, Command, Ended, run_chains
from edgewright.bench.external.pull import EXECUTIONS, PROFILE, probe, pull
from edgewright.bench.external.spoken import Spoken, read_spoken
from edgewright.bench.records.environment import environment
from edgewright.bench.records.folder import CASE, ENVIRONMENT, new_run_folder, write_json, write_whole
from edgewright.bench.records.reader import read_run
from edgewright.bench.records.result import RunResult
from edgewright.bench.records.rows import RUN, SOLO
from edgewright.bench.records.writer import RunWriter
from edgewright.errors import OutputError
from edgewright.files import os_errors
from edgewright.genie.printed import printed_queries
from edgewright.progress import SILENT, Progress
from edgewright.runtime.scheduling.work import JobRecord

#: States after which no other execution of the same runner can do better.
_HOPELESS = frozenset({"no-program", "connection"})
#: Of an output, how much is read for its answers.
_MOST_BYTES = 16 << 20
#: Of the queries whose figures were printed, how many are recorded.
_MOST_PRINTED = 1000


def run_external(
    case: Case,
    runner: RunnerSpec,
    out: Path,
    *,
    run_id: str | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> RunResult:
    """Run a case with the program that `runner` names, into the run folder `out/case/run`.

    Each process has a folder `executions/<name>` with its command, its outputs and its profile, which are the device's
    own bytes. Raises UsageError (CaseError with all of it) for a case that the program can't run, OutputError where the
    run folder, or with `run_id` a profile on the device, exists and `overwrite` is not given; with it the profiles get
    new names, and nothing is removed on the device.
    """
    case = replace(case, runner=runner)
    require(case)
    prefix = Prefix(runner)
    fresh = "" if run_id is not None and not overwrite else f"-{secrets.token_hex(4)}"
    if run_id is not None and not fresh:
        _refuse_existing(case, runner, prefix, run_id)
    folder = new_run_folder(out, case.name, run_id, overwrite=overwrite).absolute()
    write_json(folder / CASE, {**resolved(case, folder), "runner": _plain(runner)})
    told = {"command": list(runner.command), "process": runner.process, "shells": prefix.shells}
    write_json(folder / ENVIRONMENT, {**environment(simulated=False, threads=case.run.threads), "external": told})
    with RunWriter(folder) as writer, DialogLogs(folder, [one.name for one in case.dialogs]) as logs:
        _Run(case, runner, prefix, folder, f"{folder.name}{fresh}", writer, logs).all(progress)
    return RunResult.of(folder, write_external_outputs(read_run(folder)))


class _Run:
    """A run under way."""

    def __init__(
        self,
        case: Case,
        runner: RunnerSpec,
        prefix: Prefix,
        folder: Path,
        run: str,
        writer: RunWriter,
        logs: DialogLogs,
    ) -> None:
        self._case, self._runner, self._prefix = case, runner, prefix
        self._folder, self._run, self._writer, self._logs = folder, run, writer, logs
        self._names = [dialog.name for dialog in case.dialogs]
        self._fail_fast = case.run.on_error == "fail-fast"

    def all(self, progress: Progress) -> None:
        """Run every part, or as many as there is sense in, and record how that ended."""
        for text in notes(self._case, self._runner):
            self._writer.event("note", text=text)
        if self._runner.process == "run" and len(self._case.dialogs) > 1:
            text = f"The program prints the answers of all dialogs into one output, {STDOUT}: they can't be told apart."
            self._writer.event("note", text=text)
        try:
            how = self._parts(progress)
        except KeyboardInterrupt:
            how = "interrupted"
        self._writer.event("end", how=how)

    def _parts(self, progress: Progress) -> str:
        """Run the parts; returns how that ended."""
        for part in parts_of(self._case, self._runner):
            with progress.step(f"{part.part} {part.repeat}" if part.part == RUN else part.part):
                verdicts = self._part(part)
            if self._fail_fast and any(verdict.error for verdict in verdicts):
                return "fail-fast"
            if all(verdict.state in _HOPELESS for verdict in verdicts):
                text = f"After {part.part} {part.repeat} the rest was left out: the runner can't do better than that."
                self._writer.event("note", text=text)
                break
        return "finished"

    def _part(self, part: ExecutionPart) -> list[Verdict]:
        """Run a part and record it; an interruption is recorded with what there is, as the state of its executions."""
        commands = [[self._command(execution) for execution in chain] for chain in part.chains]
        ended: dict[tuple[int, int], Ended] = {}

        def tell(chain: int, place: int, result: Ended) -> None:
            ended[chain, place] = result

        interrupted = False
        try:
            run_chains(commands, tell, timeout_s=self._case.run.timeout_s, fail_fast=self._fail_fast)
        except KeyboardInterrupt:
            interrupted = True
        verdicts = [self._record(part.chains[chain][place], result) for (chain, place), result in sorted(ended.items())]
        self._writer.event("part", part=part.part, repeat=part.repeat)
        if interrupted:
            raise KeyboardInterrupt
        return verdicts

    def _command(self, execution: Execution) -> Command:
        """Make the folder of an execution, and return what is to be executed."""
        folder = self._folder / EXECUTIONS / execution.name
        argv = self._prefix.argv(flags_of(self._case, self._runner, execution, self._profile(execution)))
        with os_errors(execution.name):
            folder.mkdir(parents=True)
        write_whole(folder / "command.txt", shlex.join(argv) + "\n")
        earliest = pause = 0
        if self._runner.process == "dialog" and execution.part == RUN:
            dialog = self._case.dialogs[execution.dialogs[0]]
            period_ms = 0.0 if dialog.period_ms is None else dialog.period_ms
            earliest = int((dialog.start_ms + execution.iteration * period_ms) * 1e6)
            pause = int(dialog.think_ms * 1e6)
        return Command(argv, folder, earliest, pause)

    def _profile(self, execution: Execution) -> str:
        """Return where the program is to write the profile of an execution."""
        name = profile_name(self._case.name, self._run, execution)
        return self._prefix.there(name) or str(self._folder / EXECUTIONS / execution.name / PROFILE)

    def _record(self, execution: Execution, ended: Ended) -> Verdict:
        """Bring an execution's profile here, and write its jobs."""
        folder = self._folder / EXECUTIONS / execution.name
        started = ended.returncode is not None
        pulled = pull(self._prefix, self._profile(execution), folder) if started else ("absent", "")
        verdict = judge(ended, folder, pulled, shells=self._prefix.shells, timeout_s=self._case.run.timeout_s)
        together = self._runner.process == "run" and not execution.part.startswith(SOLO)
        outcome = outcome_of(execution, ended, verdict, one_process=together)
        text = _read(folder / STDOUT)
        spoken = read_spoken(text)
        self._log(execution, outcome.jobs, spoken)
        recorder = self._writer.part(execution.part, execution.repeat, self._names)
        for job in outcome.jobs:
            recorder.job(job)
        complete = sum(job.finish == "complete" for job in outcome.jobs)
        if verdict.profile is not None and spoken.ended != complete:
            # Tags of dialogs that print at once may tear each other, and a model may write one.
            said = f"{spoken.ended} answers were printed and {complete} queries succeeded."
            outcome.notes.append(f"{execution.name}: {said}")
        for note in outcome.notes:
            self._writer.event("note", text=note)
        self._tell(execution, ended, verdict, profile=pulled[0] == "there", printed=text, answers=spoken.ended)
        if together and execution.part == RUN and execution.repeat == 0:
            self._show(folder)
        return verdict

    def _tell(
        self, execution: Execution, ended: Ended, verdict: Verdict, *, profile: bool, printed: str, answers: int
    ) -> None:
        """Record how an execution ended."""
        self._writer.event(
            "execution",
            name=execution.name,
            part=execution.part,
            repeat=execution.repeat,
            dialogs=[self._names[number] for number in execution.dialogs],
            state=verdict.state,
            error=verdict.error,
            returncode=ended.returncode,
            started_ms=round(ended.started_ns / 1e6, 3),
            ended_ms=round(ended.ended_ns / 1e6, 3),
            profile=profile,
            device_profile=self._profile(execution) if self._prefix.remote else None,
            answers=answers,
            printed=[
                {name: value for name, (value, _) in one.kpis.items()}
                for one in printed_queries(printed)[:_MOST_PRINTED]
            ],
        )

    def _log(self, execution: Execution, jobs: Sequence[JobRecord], spoken: Spoken) -> None:
        """Write the answers of a process that ran one dialog into the dialog's log; say how each query ended."""
        name = self._names[execution.dialogs[0]]
        answers = spoken.answers if len(execution.dialogs) == 1 else None
        for number, job in enumerate(jobs):
            if answers is not None and number < len(answers):
                self._logs.writer(name, execution.part, execution.repeat)(job.iteration, answers[number])
            self._logs.ended(self._names[job.task], execution.part, execution.repeat, job)

    def _show(self, folder: Path) -> None:
        """Put the first repeat's files where people look for them."""
        for name in (PROFILE, STDOUT, STDERR):
            if (folder / name).is_file():
                with os_errors(name):
                    shutil.copyfile(folder / name, self._folder / name)


def _refuse_existing(case: Case, runner: RunnerSpec, prefix: Prefix, run_id: str) -> None:
    """Raise OutputError where a profile of this run is on the device already: it would be refused after the loading."""
    executions = (one for part in parts_of(case, runner) for chain in part.chains for one in chain)
    for execution in executions:
        path = prefix.there(profile_name(case.name, run_id, execution))
        if path is None:
            return
        found = probe(prefix, path)
        if found == "failed":
            return  # the device can't be asked, and each question may take minutes: the run says why
        if found == "there":
            raise OutputError(
                f"The device has {path} already: choose another --run-id, or pass --overwrite, which gives the "
                "profiles new names and removes none."
            )


def _plain(runner: RunnerSpec) -> dict[str, Any]:
    """Return the runner that was used as a case file has it."""
    said = {field.name: getattr(runner, field.name) for field in fields(runner)}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in said.items() if v is not None and v != ()}


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
