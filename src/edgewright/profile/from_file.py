"""Profiles made of files that engines wrote elsewhere, on a board or a phone, with or without the bundle they ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewright.bundle import Manifest, read_manifest
from edgewright.errors import ModelError, UsageError
from edgewright.plan.work import Work
from edgewright.profile.assemble import Recorded, phase_of_averages, phase_of_runs
from edgewright.profile.layers import EngineProfile, EngineRun
from edgewright.profile.ort_file import read_onnxruntime
from edgewright.profile.owners import EngineNode, Owners, engine_nodes
from edgewright.profile.planned import Graphs
from edgewright.profile.profile import Peaks, Phase, Profile
from edgewright.profile.qnn import read_qnn
from edgewright.profile.record import Called
from edgewright.profile.schedule import DECODE_AFTER, policy_sizes
from edgewright.profile.trtexec import read_trtexec
from edgewright.runtime.policy.spec import PolicySpec

KINDS = ("ort", "trtexec", "qnn")


@dataclass(frozen=True)
class File:
    """A file of a kind of KINDS; trtexec may have written what its layers are made of, and the times of whole runs."""

    path: Path
    kind: str
    layer_info: Path | None = None
    times: Path | None = None

    def read(self) -> EngineProfile:
        """Return what is in it; raises ProfileError, and UsageError for a file beside it that has no meaning."""
        if self.kind != "trtexec" and (self.layer_info is not None or self.times is not None):
            raise UsageError(
                f"--layer-info and --times are files of trtexec, which a file of {self.kind} has not: leave them out."
            )
        if self.kind == "trtexec":
            return read_trtexec(self.path, self.layer_info, self.times)
        return read_onnxruntime(self.path) if self.kind == "ort" else read_qnn(self.path)


@dataclass(frozen=True)
class Ran:
    """What is known of the runs in a file besides: the stage, tokens fed at once, and tokens held before, or None."""

    stage: str | None = None
    tokens: int | None = None
    past: int | None = None
    after: int | None = None


def profile_file(
    file: File, bundle: Path | None, ran: Ran, peaks: Peaks, checkpoint: str | Path | None = None
) -> Profile:
    """Return the profile of a file; with the bundle its layers are named by modules and joined with the plan.

    `checkpoint` is the bundle's source, for work that can't be counted on its graph.

    Raises ProfileError for the file, BundleError for the bundle, UsageError for a stage that it doesn't have.
    """
    read = file.read()
    notes = list(read.notes)
    if bundle is None:
        phases = _phases(read, ran.stage or "run", _Namer(None), {}, None, notes)
        return Profile("", "", {ran.stage or "run": read.engine}, None, peaks, tuple(phases), notes=tuple(notes))
    manifest = read_manifest(bundle)
    stage = _stage(manifest, ran.stage)
    graphs = Graphs(bundle, manifest, checkpoint)
    entry = manifest.stages[stage]
    compiled: tuple[EngineNode, ...] = ()
    if file.kind == "ort" and entry.runtime == "onnxruntime" and entry.engine is not None:
        compiled = tuple(engine_nodes(graphs.engine(stage)))
    owners = {stage: graphs.owners(stage, compiled)}
    counted = _Counted(graphs, manifest, stage, ran, notes)
    phases = _phases(read, stage, _Namer(manifest), owners, counted, notes)
    return Profile(
        bundle.resolve().name, str(manifest.model["model_type"]), {stage: read.engine}, None, peaks, tuple(phases),
        notes=tuple(notes),
    )  # fmt: skip


def _stage(manifest: Manifest, asked: str | None) -> str:
    names = list(manifest.stages)
    if asked is None and len(names) > 1:
        raise UsageError(
            f"The bundle has several stages: say with --stage which one the file is of: {', '.join(names)}."
        )
    if asked is not None and asked not in names:
        raise UsageError(f"The bundle has no stage {asked}: its stages are {', '.join(names)}.")
    return asked or names[0]


class _Namer:
    """Names phases: of a language model by how many tokens were fed at once."""

    def __init__(self, manifest: Manifest | None) -> None:
        self._llm = manifest is not None and "policy" not in manifest.model

    def names(self, stage: str, rows: Sequence[int | None]) -> list[str]:
        """Return names for groups of runs, each once."""
        several = sum(count != 1 for count in rows) > 1
        found: list[str] = []
        for index, count in enumerate(rows, 1):
            if self._llm and count is not None:
                name = "decode" if count == 1 else f"prefill {count}" if several else "prefill"
            else:
                name = stage if len(rows) == 1 else f"{stage} {index}"
            found.append(name if name not in found else f"{name} ({index})")
        return found


class _Counted:
    """The plan's work of the runs in a file, as far as it is known what they were."""

    def __init__(self, graphs: Graphs, manifest: Manifest, stage: str, ran: Ran, notes: list[str]) -> None:
        self._graphs, self._manifest, self._stage, self._ran, self._notes = graphs, manifest, stage, ran, notes

    def work(self, rows: int | None) -> tuple[dict[str, int], Mapping[str, Sequence[Work]] | None]:
        """Return sizes and work of a run; no work where it can't be counted, which a note says."""
        sizes, past = self._sizes(rows)
        if not sizes:
            return {}, None
        shown = {"tokens": sizes["seq"], "past": past} if "seq" in sizes else sizes
        try:
            return shown, self._graphs.work([Called(self._stage, sizes, past, 0.0)])
        except ModelError as error:
            self._note(f"{self._stage}: the plan can't count its work. {error}")
            return shown, None

    def _sizes(self, rows: int | None) -> tuple[dict[str, int], int]:
        contract = self._manifest.stages[self._stage].contract
        policy = self._manifest.model.get("policy")
        if policy is not None:
            return policy_sizes(PolicySpec.from_json(policy), contract), 0
        tokens = self._ran.tokens or rows
        if tokens is None:
            self._note("the file doesn't say how many tokens were fed: with --tokens the plan's work is joined")
            return {}, 0
        past = self._ran.after if tokens == 1 and self._ran.after is not None else self._ran.past
        if past is None:
            past = DECODE_AFTER if tokens == 1 else 0
            which = "--decode-after" if tokens == 1 else "--past"
            self._note(f"the file doesn't say how many tokens were held before: {which} {past} is assumed")
        capacity = contract.bounds.get("capacity", (1, past + tokens))[1]
        return {"batch": 1, "seq": tokens, "positions": 1, "capacity": capacity}, past

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def _phases(
    read: EngineProfile,
    stage: str,
    namer: _Namer,
    owners: Mapping[str, Owners],
    counted: _Counted | None,
    notes: list[str],
) -> list[Phase]:
    if read.averages:
        sizes, work = counted.work(None) if counted is not None else ({}, None)
        (name,) = namer.names(stage, [sizes.get("tokens")])
        return [
            phase_of_averages(name, sizes, {stage: read.averages}, owners, work=work, latencies_ms=read.latencies_ms)
        ]
    groups: dict[tuple[str, ...], list[EngineRun]] = {}
    for run in read.runs:
        groups.setdefault(run.shape, []).append(run)
    if len(groups) > 1:
        notes.append(f"the file holds runs of {len(groups)} sizes, which are phases of their own")
    found = []
    counts = [runs[0].rows for runs in groups.values()]
    joined = [counted.work(count) if counted is not None else ({}, None) for count in counts]
    names = namer.names(stage, [sizes.get("tokens", count) for (sizes, _), count in zip(joined, counts, strict=True)])
    for name, runs, (sizes, work) in zip(names, groups.values(), joined, strict=True):
        recorded = [Recorded([(stage, run)]) for run in runs]
        found.append(phase_of_runs(name, sizes, recorded, owners, work=work))
    return found
