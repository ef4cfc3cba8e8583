"""The steps of a build: read, quantize, lower, write, compile, verify, seal; one place for every kind of model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgewright.build.card import model_card
from edgewright.build.choice import REPORT, Choice, choose
from edgewright.build.engines import ENGINES, EngineRequest, Engines, Optimize
from edgewright.build.kept import unchanged
from edgewright.build.llm import LlmMaker
from edgewright.build.outside import write_outside
from edgewright.build.parts import Maker, Part
from edgewright.build.policy import PolicyMaker
from edgewright.build.record import NOT_CHECKED, versions
from edgewright.build.reduction import VocabularyRequest
from edgewright.build.sources import LlmSource, PolicyRequest, PolicySource, Request, Source, open_source, refuse_memory
from edgewright.build.steps import Steps
from edgewright.bundle import Manifest, StageEntry, check_files, read_manifest, write_manifest
from edgewright.bundle.manifest import file_entries
from edgewright.contract import StageContract
from edgewright.dialects import find_lowering
from edgewright.errors import BundleError, UsageError, VerificationError
from edgewright.files import canonical_json, copy_files, inside, new_folder, refuse_source, require_space
from edgewright.graph.writer import MODEL_FILE, layout_size, plan_layout, write_stage
from edgewright.progress import SILENT, Progress
from edgewright.quant.recipe import Recipe
from edgewright.targets import find_target, goal_key
from edgewright.targets.backend import Backend, StageWork
from edgewright.targets.cpu import settings_for
from edgewright.targets.platform import Platform

STAGES_FOLDER = "stages"
VERIFY_REPORT = "reports/verify.json"
CARD = "README.md"
#: The target whose stages may run on several engines.
CPU = "cpu"
#: What back ends make; it is not taken over when a bundle is compiled again.
_ENGINE = re.compile(r"/engine[./]")


@dataclass(frozen=True)
class Built:
    """A finished folder: where it is, its manifest, and whether it was there already."""

    path: Path
    manifest: Manifest
    reused: bool = False


def deploy(
    source: str | Path,
    output: str | Path,
    *,
    recipe: str | Recipe | None = None,
    target: str = "cpu",
    platform: Platform | None = None,
    options: Mapping[str, str] | None = None,
    engines: EngineRequest | None = None,
    max_context: int | None = None,
    vocabulary: VocabularyRequest | None = None,
    embeddings: str = "inside",
    policy: PolicyRequest | None = None,
    verify: bool = True,
    allow_nonfinite: bool = False,
    requantize: bool = False,
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Make a verified bundle from the checkpoint of a language model or a robot policy.

    `platform` and `options` are what the target's back end is told, see `StageWork`. `engines` are those of the stages
    on the target cpu, see `EngineRequest`; measured ones stand in the bundle's report of engines.
    A language model has a reduced `vocabulary` where one is asked for. With `embeddings` "outside" its embedding table
    is a file of its own and the graph takes its rows. `policy` is what is asked for of a policy. The `recipe` is by
    default int4 for a language model and policy-int8 for a policy.

    Weights that are not finite are refused by name, or with `allow_nonfinite`, which rules out `verify`, taken as they
    are. A checkpoint that is quantized already is taken over as it is unless `requantize` allows a second rounding. A
    recipe that calibrates or searches makes a quantized checkpoint first, in the user's cache, and takes that over.
    Nothing is left behind unless everything succeeds, verification included. An existing bundle of the same inputs
    is returned as it is; anything else in its place is an error unless `force`. Raises the package's errors.
    """
    goal = _goal(target, platform, options, engines)
    if allow_nonfinite and verify:
        raise UsageError("Results of weights that are not finite can't be compared: use --no-verify as well.")
    refuse_memory(policy, verify=verify)
    request = Request(recipe, max_context, vocabulary, embeddings, policy, allow_nonfinite, requantize)
    opened = open_source(source, request)
    with progress.step("hash source"):
        record = opened.record()
    asked = engines or EngineRequest({})
    chosen, choice = asked.of(policy=isinstance(opened, PolicySource)), None
    told = asked.key(policy=isinstance(opened, PolicySource))
    key = opened.key(record, verify=verify, **goal_key(target, platform, goal.options), **told)
    final = Path(output)
    if (done := unchanged(final, key, verified=verify, force=force)) is not None:
        return Built(final, done, reused=True)
    refuse_source(opened.checkpoint.path, final)
    maker = _maker(opened, record, progress)
    if asked.optimize is not None:
        choice = _choice(maker, final, asked.optimize, progress, allow_nonfinite=allow_nonfinite)
        chosen = choice.engines
    with new_folder(final, replace=force) as work:
        steps = Steps(work, progress, maker.record["name"])
        parts = _compiled(maker, steps, goal.on(chosen), progress, allow_nonfinite=allow_nonfinite)
        manifest = maker.manifest(parts, target=target, key=key)
        if choice is not None:
            choice.write(work)
            manifest = replace(manifest, notes=(*manifest.notes, choice.note))
        manifest = _seal(work, replace(manifest, files=steps.files))
        if verify:
            manifest = _verify(steps, maker, manifest, policy.memory_bytes if policy else None, progress)
    return Built(final, manifest)


def export(
    source: str | Path,
    output: str | Path,
    *,
    recipe: str | Recipe = "float32",
    dialect: str = "portable",
    max_context: int | None = None,
    vocabulary: VocabularyRequest | None = None,
    embeddings: str = "inside",
    policy: PolicyRequest | None = None,
    allow_nonfinite: bool = False,
    requantize: bool = False,
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Write a checkpoint's graphs and sidecars without compiling: a folder with a manifest, not yet a bundle."""
    find_lowering(dialect)
    request = Request(recipe, max_context, vocabulary, embeddings, policy, allow_nonfinite, requantize)
    opened = open_source(source, request)
    with progress.step("hash source"):
        record = opened.record()
    key = opened.key(record, dialect=dialect)
    final = Path(output)
    if (done := unchanged(final, key, force=force)) is not None:
        return Built(final, done, reused=True)
    refuse_source(opened.checkpoint.path, final)
    maker = _maker(opened, record, progress)
    with new_folder(final, replace=force) as work:
        spelled = dict.fromkeys(maker.stages, dialect)
        steps = Steps(work, progress, maker.record["name"])
        parts = _write(maker, steps, spelled, progress, allow_nonfinite=allow_nonfinite)
        manifest = _seal(work, replace(maker.manifest(parts, target=None, key=key), files=steps.files))
    return Built(final, manifest)


def compile_bundle(
    folder: str | Path,
    output: str | Path,
    *,
    target: str = "cpu",
    platform: Platform | None = None,
    options: Mapping[str, str] | None = None,
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Compile an exported folder, or a bundle made on another machine, into a bundle for this machine.

    Its verdict is "not checked": run verify with the checkpoint. Raises BundleError when the folder is damaged or its
    dialect isn't the target's.
    """
    goal = _goal(target, platform, options, None)
    root = Path(folder)
    manifest = read_manifest(root)
    with progress.step("check files"):
        check_files(root, manifest)
    if not manifest.stages:
        raise BundleError("The bundle has no stages, so there is nothing to compile: build it again.")
    goal = goal.spelled({name: entry.dialect for name, entry in manifest.stages.items()})
    kept = [name for name in manifest.files if name not in (CARD, VERIFY_REPORT, REPORT) and not _ENGINE.search(name)]
    with new_folder(Path(output), replace=force) as work:
        copy_files(root, work, kept)
        steps = Steps(work, progress, str(manifest.source["name"]), {name: manifest.files[name] for name in kept})
        with progress.step(f"compile for {target}"):
            compiled = {name: goal.compiled_again(steps, name, entry) for name, entry in manifest.stages.items()}
        sealed = _seal(
            work,
            replace(
                manifest,
                stages=compiled,
                target=target,
                verdict=NOT_CHECKED,
                key="",
                files=steps.files,
                versions=versions(),
            ),
        )
    return Built(Path(output), sealed)


def _maker(opened: Source, record: dict[str, Any], progress: Progress) -> Maker:
    if isinstance(opened, LlmSource):
        return LlmMaker(opened, record, progress)
    return PolicyMaker(opened, record, progress)


def _compiled(maker: Maker, steps: Steps, goal: _Goal, progress: Progress, *, allow_nonfinite: bool) -> dict[str, Part]:
    """Write sidecars and the lowered stages, and compile these."""
    dialects = {name: goal.of(name).dialect for name in goal.stages or maker.stages}
    parts = _write(maker, steps, dialects, progress, allow_nonfinite=allow_nonfinite)
    with progress.step(f"compile for {goal.backend.name}"):
        return {name: replace(part, entry=goal.compiled(steps, name, part)) for name, part in parts.items()}


def _choice(maker: Maker, output: Path, optimize: Optimize, progress: Progress, *, allow_nonfinite: bool) -> Choice:
    """Build every stage for every engine of the target cpu, in scratch beside the output, and measure them."""

    def build(work: Path, engines: Engines) -> Manifest:
        goal = _goal(CPU, None, None, None).on(engines)
        steps = Steps(work, progress, maker.record["name"])
        parts = _compiled(maker, steps, goal, progress, allow_nonfinite=allow_nonfinite)
        return _seal(work, replace(maker.manifest(parts, target=CPU, key=""), files=steps.files))

    return choose(build, output, maker.stages, optimize, progress)


def _write(
    maker: Maker, steps: Steps, dialects: Mapping[str, str], progress: Progress, *, allow_nonfinite: bool
) -> dict[str, Part]:
    """Write sidecars and the lowered stages."""
    work = steps.root
    parts = maker.lower(dialects, progress)
    if allow_nonfinite:
        for part in parts.values():
            stage = part.stage
            stage.notes.append("weights that are not finite were allowed")
            for producer in (*stage.producers.values(), *((stage.outside.producer,) if stage.outside else ())):
                producer.allow_nonfinite()
    sidecars = work / "sidecars"
    sidecars.mkdir()
    maker.write_sidecars(sidecars, parts, progress)
    beside = next((part.stage for part in parts.values() if part.stage.outside is not None), None)
    if beside is not None:
        steps.write("embedding table", maker.key(), lambda: write_outside(beside, sidecars, progress))
    sizes = {name: layout_size(plan_layout(part.stage)) for name, part in parts.items()}
    # Compiling writes a second copy of a stage for a moment.
    needed = sum(sizes.values()) + (0 if set(dialects.values()) == {"portable"} else max(sizes.values()))
    require_space(work, needed, "The build")
    with progress.step("write weights", sum(sizes.values())) as advance:
        for name, part in parts.items():
            make = partial(write_stage, part.stage, work / STAGES_FOLDER / name, progress=advance)
            if steps.write(f"stage {name}", maker.key(dialect=dialects[name]), make):
                advance(sizes[name])
    return {name: replace(part, entry=_entry(name, part, dialects[name])) for name, part in parts.items()}


def _entry(name: str, part: Part, dialect: str) -> StageEntry:
    settings = settings_for(dialect, half_weights=part.half_weights)
    return StageEntry(f"{STAGES_FOLDER}/{name}/{MODEL_FILE}", dialect, part.stage.contract, settings.to_json())


@dataclass(frozen=True)
class _Goal:
    """A target with what its back end is told; `stages` are those that have back ends of their own."""

    backend: Backend
    platform: Platform | None
    options: Mapping[str, str]
    stages: Mapping[str, Backend] = field(default_factory=dict)

    def of(self, name: str) -> Backend:
        """Return what compiles a stage."""
        return self.stages.get(name, self.backend)

    def on(self, engines: Engines) -> _Goal:
        """Return the goal with the engines of stages, where the target is the one that has a choice."""
        if self.backend.name != CPU:
            return self
        return replace(self, stages={name: find_target(ENGINES[engine]) for name, engine in engines.items()})

    def spelled(self, dialects: Mapping[str, str]) -> _Goal:
        """Return the goal with the engines that take graphs as they are; raises BundleError where none does."""
        every = [find_target(name) for name in ENGINES.values()] if self.backend.name == CPU else [self.backend]
        known = {backend.dialect: backend for backend in every}
        for dialect in dialects.values():
            if dialect not in known:
                raise BundleError(
                    f"The graph is in the {dialect} dialect, which {self.backend.name} can't run: export with "
                    f"--dialect {self.backend.dialect}."
                )
        found = {name: known[dialect] for name, dialect in dialects.items()}
        for backend in {backend.name: backend for backend in found.values()}.values():
            backend.require(self.platform, self.options if backend is self.backend else {})
        return replace(self, stages=found)

    def compiled(self, steps: Steps, name: str, part: Part) -> StageEntry:
        """Compile a stage that was just written."""
        place, contract = f"{STAGES_FOLDER}/{name}", part.stage.contract
        return steps.compile(self.of(name), self._work(name, steps.root, place, contract, half=part.half_weights))

    def compiled_again(self, steps: Steps, name: str, entry: StageEntry) -> StageEntry:
        """Compile a stage of an exported folder, or of another bundle."""
        half = entry.settings.get("optimization", "disabled") != "disabled"
        place = Path(entry.graph).parent.as_posix()
        inside(steps.root, place)
        return steps.compile(self.of(name), self._work(name, steps.root, place, entry.contract, half=half))

    def _work(self, name: str, work: Path, place: str, contract: StageContract, *, half: bool) -> StageWork:
        return StageWork(name, work, place, contract, half, self.platform, self.options)


def _goal(
    target: str, platform: Platform | None, options: Mapping[str, str] | None, engines: EngineRequest | None
) -> _Goal:
    """Return a target, asked whether it and the engines can compile here.

    Raises UsageError on options that it doesn't take, or on engines where it isn't the one that has a choice.
    """
    backend, given = find_target(target), dict(options or {})
    if odd := sorted(given.keys() - backend.options.keys()):
        known = ", ".join(backend.options) or "none"
        raise UsageError(f"The target {target} takes no option {', '.join(odd)}; it takes {known}.")
    backend.require(platform, given)
    if engines is not None and target != CPU and engines != EngineRequest({}):
        raise UsageError(f"--engine chooses among the engines of --target {CPU}, and {target} has one: leave it out.")
    for engine in engines.used if engines is not None else ():
        find_target(ENGINES[engine]).require(platform, {})
    return _Goal(backend, platform, given)


def _seal(work: Path, manifest: Manifest) -> Manifest:
    """Write model card and manifest over everything that stands in `work`; returns the manifest with its digests.

    Digests the manifest has already are kept, but for the card's and the report's.
    """
    known = {name: entry for name, entry in manifest.files.items() if name not in (CARD, VERIFY_REPORT)}
    (work / CARD).write_text(model_card(manifest), encoding="utf-8")
    sealed = replace(manifest, files=file_entries(work, known))
    write_manifest(work, sealed)
    return sealed


def _verify(steps: Steps, maker: Maker, manifest: Manifest, memory_bytes: int | None, progress: Progress) -> Manifest:
    """Verify the finished folder and seal it again with its verdict; raises VerificationError on a failure."""

    def report() -> Mapping[str, Any]:
        found = maker.verify(steps.root, progress)
        if not found.passed:
            raise VerificationError(f"The build failed verification and was not kept: {found.reason()}")
        return found.to_json()

    return _write_verdict(steps.root, manifest, steps.verify(memory_bytes, report))


def record_verdict(folder: Path, manifest: Manifest, report: Mapping[str, Any]) -> Manifest:
    """Put a verification report and its verdict into a bundle; the bundle is replaced in one step."""
    with new_folder(folder, replace=True) as work:
        copy_files(folder, work, [name for name in manifest.files if name not in (CARD, VERIFY_REPORT)])
        return _write_verdict(work, manifest, report)


def _write_verdict(work: Path, manifest: Manifest, report: Mapping[str, Any]) -> Manifest:
    path = work / VERIFY_REPORT
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(canonical_json(report))
    return _seal(work, replace(manifest, verdict={k: report[k] for k in ("status", "levels")}))
