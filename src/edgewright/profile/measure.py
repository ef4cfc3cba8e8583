"""Profiles a bundle here: once without the timing of layers, which costs time itself, and once with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgewright.bundle import Manifest, StageEntry, check_files, read_manifest
from edgewright.errors import ModelError, ProfileError
from edgewright.profile.assemble import Recorded, phase_of_runs
from edgewright.profile.planned import Graphs
from edgewright.profile.profile import Peaks, Phase, Profile
from edgewright.profile.record import Called, Recorder, Watched, open_plain, open_recorder
from edgewright.profile.schedule import Mark, Ran, Request, asked_phases, run_llm, run_stage
from edgewright.progress import SILENT, Progress
from edgewright.runtime.engine import Engine
from edgewright.runtime.llm import llm_stage
from edgewright.runtime.paired import PREFILL, PairedEngine, prefill_stage
from edgewright.runtime.policy.spec import PolicySpec

Open = Callable[[str, StageEntry, bool], Engine]


def profile_bundle(
    bundle: str | Path,
    request: Request | None = None,
    *,
    threads: int | None = None,
    peaks: Callable[[], Peaks] | None = None,
    memory: bool = True,
    checkpoint: str | Path | None = None,
    progress: Progress = SILENT,
) -> Profile:
    """Profile a bundle's stages on this machine.

    `peaks` gives what the machine can do; without it no shares of it are known. `memory` runs each phase once in a
    process of its own, whose peak of memory is recorded. `checkpoint` is the bundle's source, for work that can't be
    counted on its graphs. Raises BundleError when the bundle can't be loaded, UsageError
    for a request that it has no room for, ProfileError where its engine can't be timed here.
    """
    folder, request = Path(bundle), request or Request()
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    with progress.step("whole runs"):
        plain = run_plain(folder, manifest, request, threads)
    with progress.step("layers"):
        phases, notes = _layers(folder, manifest, request, threads, plain, checkpoint)
    measured: tuple[int | None, int | None] = (None, None)
    if memory:
        with progress.step("memory"):
            measured = _fresh_memory(folder, request, threads)
    with progress.step("peaks"):
        known = Peaks("") if peaks is None else peaks()
    return Profile(
        bundle=folder.resolve().name,
        kind=str(manifest.model["model_type"]),
        engines=_engines(manifest, {layer.stage for phase in phases for layer in phase.layers}),
        threads=threads,
        peaks=known,
        phases=tuple(phases),
        peak_rss_bytes=measured[0],
        peak_anonymous_bytes=measured[1],
        notes=tuple(notes),
    )


def run_plain(folder: Path, manifest: Manifest, request: Request, threads: int | None) -> list[Ran]:
    """Run every phase as a user's program does, without the timing of layers."""
    calls: list[Called] = []

    def opened(stage: str, entry: StageEntry, share: bool) -> Engine:
        return open_plain(folder, stage, entry, calls, threads, share_cores=share)

    return _run(folder, manifest, request, calls, phases_of(manifest, request), opened, lambda: None)


def phases_of(manifest: Manifest, request: Request) -> tuple[str, ...]:
    """Return the phases that a request asks for; raises UsageError."""
    return asked_phases(request, list(manifest.stages), policy=manifest.model.get("policy") is not None)


def _run(
    folder: Path,
    manifest: Manifest,
    request: Request,
    calls: Sequence[Called],
    phases: Sequence[str],
    opened: Open,
    mark: Mark,
) -> list[Ran]:
    """Run phases on engines that are opened once for all of them."""
    policy = manifest.model.get("policy")
    if policy is not None:
        spec = PolicySpec.from_json(policy)
        return [
            run_stage(spec, name, opened(name, manifest.stages[name], False), calls, request, mark) for name in phases
        ]
    entry, beside = llm_stage(manifest), prefill_stage(manifest)
    if beside is None:
        engine = opened("llm", entry, False)
    else:
        engine = PairedEngine(opened("llm", entry, True), opened(PREFILL, beside[0], True), beside[1])
    return [run_llm(folder, manifest, engine, calls, request, phase, mark) for phase in phases]


def _layers(
    folder: Path,
    manifest: Manifest,
    request: Request,
    threads: int | None,
    plain: Sequence[Ran],
    checkpoint: str | Path | None,
) -> tuple[list[Phase], list[str]]:
    """Return the phases with their layers, and notes. Each is run on engines of its own."""
    graphs, notes = Graphs(folder, manifest, checkpoint), list[str]()
    phases = [_phase(folder, manifest, request, threads, graphs, one, notes) for one in plain]
    return phases, notes


def _phase(
    folder: Path,
    manifest: Manifest,
    request: Request,
    threads: int | None,
    graphs: Graphs,
    plain: Ran,
    notes: list[str],
) -> Phase:
    """Run a phase with its layers timed."""
    calls: list[Called] = []
    recorders: dict[str, Recorder] = {}

    def opened(stage: str, entry: StageEntry, share: bool) -> Engine:
        recorders[stage] = open_recorder(folder, entry, threads, share_cores=share)
        return Watched(stage, recorders[stage].engine, calls)

    def mark() -> None:
        for recorder in recorders.values():
            recorder.mark()

    try:
        (ran,) = _run(folder, manifest, request, calls, (plain.name,), opened, mark)
        return _assembled(ran, plain, calls, recorders, graphs, notes)
    finally:
        for recorder in recorders.values():
            recorder.close()


def _assembled(
    ran: Ran,
    plain: Ran,
    calls: Sequence[Called],
    recorders: Mapping[str, Recorder],
    graphs: Graphs,
    notes: list[str],
) -> Phase:
    """Return a phase of what recorders have of its calls."""
    called = {call.stage for call in calls}
    runs = {stage: iter(recorder.finish() if stage in called else ()) for stage, recorder in recorders.items()}
    try:
        recorded = [(call.stage, next(runs[call.stage])) for call in calls]
    except StopIteration:
        raise ProfileError("The engine recorded fewer runs than were made: profile with fewer --repeats.") from None
    averages = {stage: found for stage in called if (found := recorders[stage].averages(len(ran.ms)))}
    owners = {stage: graphs.owners(stage, recorders[stage].nodes()) for stage in called}
    work = None
    try:
        work = graphs.work(calls[index] for index in ran.calls[len(ran.calls) // 2])
    except ModelError as error:
        notes.append(f"{ran.name}: the plan can't count its work. {error}")
    return phase_of_runs(
        ran.name,
        ran.sizes,
        [Recorded([recorded[index] for index in places]) for places in ran.calls],
        owners,
        averages=averages,
        work=work,
        latencies_ms=plain.ms,
    )


def _engines(manifest: Manifest, ran: set[str]) -> dict[str, str]:
    """Return the engines of the stages that ran."""
    return {
        name: f"{entry.runtime} {entry.machine.version}" if entry.machine else entry.runtime
        for name, entry in manifest.stages.items()
        if name in ran
    }


def _fresh_memory(folder: Path, request: Request, threads: int | None) -> tuple[int | None, int | None]:
    """Return the peaks of memory of a process that runs each phase once."""
    asked = {**vars(replace(request, repeats=1)), "threads": threads}
    command = [sys.executable, "-P", "-m", "edgewright.profile.fresh", str(folder), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: Mapping[str, int | None] = json.loads(done.stdout)
        return found["peak_rss_bytes"], found["peak_anonymous_bytes"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ProfileError(f"The process whose memory is measured failed: {last[:300]} Try --no-memory.") from None
