"""The steps of a build: read, quantize, lower, write, compile, verify, seal; one place for every kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgewright.build.card import model_card
from edgewright.build.kept import unchanged
from edgewright.build.llm import LlmMaker
from edgewright.build.parts import Maker, Part
from edgewright.build.policy import PolicyMaker
from edgewright.build.record import NOT_CHECKED, versions
from edgewright.build.reduction import VocabularyRequest
from edgewright.build.sources import LlmSource, PolicyRequest, Request, Source, open_source, refuse_memory
from edgewright.bundle import Manifest, StageEntry, check_files, read_manifest, write_manifest
from edgewright.bundle.manifest import file_entries
from edgewright.dialects import LOWERINGS
from edgewright.errors import BundleError, UsageError, VerificationError
from edgewright.files import canonical_json, copy_files, inside, new_folder, refuse_source, require_space
from edgewright.graph.writer import MODEL_FILE, layout_size, plan_layout, write_stage
from edgewright.progress import SILENT, Progress
from edgewright.quant.recipe import Recipe
from edgewright.targets import TARGETS
from edgewright.targets.cpu import settings_for

STAGES_FOLDER = "stages"
VERIFY_REPORT = "reports/verify.json"
CARD = "README.md"


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

    A language model has a reduced `vocabulary` where one is asked for. With `embeddings` "outside" its embedding table
    is a file of its own and the graph takes its rows. `policy` is what is asked for of a policy. The `recipe` is by
    default int4 for a language model and policy-int8 for a policy.

    Weights that are not finite are refused by name, or with `allow_nonfinite`, which rules out `verify`, taken as they
    are. A checkpoint that is quantized already is taken over as it is unless `requantize` allows a second rounding. A
    recipe that calibrates or searches makes a quantized checkpoint first, in the user's cache, and takes that over.
    Nothing is left behind unless everything succeeds, verification included. An existing bundle of the same inputs
    is returned as it is; anything else in its place is an error unless `force`. Raises the package's errors.
    """
    if target not in TARGETS:
        raise UsageError(f"The target {target!r} is unknown; known are {', '.join(TARGETS)}.")
    if allow_nonfinite and verify:
        raise UsageError("Results of weights that are not finite can't be compared: use --no-verify as well.")
    refuse_memory(policy, verify=verify)
    request = Request(recipe, max_context, vocabulary, embeddings, policy, allow_nonfinite, requantize)
    opened = open_source(source, request)
    with progress.step("hash source"):
        record = opened.record()
    key = opened.key(record, target=target, verify=verify)
    final = Path(output)
    if (done := unchanged(final, key, verified=verify, force=force)) is not None:
        return Built(final, done, reused=True)
    refuse_source(opened.checkpoint.path, final)
    maker = _maker(opened, record, progress)
    with new_folder(final, replace=force) as work:
        parts = _write(maker, work, "onnxruntime", progress, allow_nonfinite=allow_nonfinite)
        with progress.step(f"compile for {target}"):
            parts = {name: _compiled(work, name, part, target) for name, part in parts.items()}
        manifest = _seal(work, maker.manifest(parts, target=target, key=key))
        if verify:
            manifest = _verify(work, maker, manifest, progress)
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
    if dialect not in LOWERINGS:
        raise UsageError(f"The dialect {dialect!r} is unknown; known are {', '.join(LOWERINGS)}.")
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
        parts = _write(maker, work, dialect, progress, allow_nonfinite=allow_nonfinite)
        manifest = _seal(work, maker.manifest(parts, target=None, key=key))
    return Built(final, manifest)


def compile_bundle(
    folder: str | Path,
    output: str | Path,
    *,
    target: str = "cpu",
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Compile an exported folder, or a bundle made on another machine, into a bundle for this machine.

    Its verdict is "not checked": run verify with the checkpoint. Raises BundleError when the folder is damaged or its
    dialect isn't the target's.
    """
    if target not in TARGETS:
        raise UsageError(f"The target {target!r} is unknown; known are {', '.join(TARGETS)}.")
    root = Path(folder)
    manifest = read_manifest(root)
    with progress.step("check files"):
        check_files(root, manifest)
    if not manifest.stages:
        raise BundleError("The bundle has no stages, so there is nothing to compile: build it again.")
    for entry in manifest.stages.values():
        if entry.dialect != "onnxruntime":
            raise BundleError(
                f"The graph is in the {entry.dialect} dialect, which {target} can't run: export with --dialect "
                "onnxruntime."
            )
    kept = [name for name in manifest.files if name not in (CARD, VERIFY_REPORT) and "/engine." not in name]
    with new_folder(Path(output), replace=force) as work:
        copy_files(root, work, kept)
        with progress.step(f"compile for {target}"):
            compiled = {name: _compiled_again(work, entry, target) for name, entry in manifest.stages.items()}
        sealed = _seal(
            work,
            replace(
                manifest,
                stages=compiled,
                target=target,
                verdict=NOT_CHECKED,
                key="",
                files={},
                versions=versions(),
            ),
        )
    return Built(Path(output), sealed)


def _maker(opened: Source, record: dict[str, Any], progress: Progress) -> Maker:
    if isinstance(opened, LlmSource):
        return LlmMaker(opened, record, progress)
    return PolicyMaker(opened, record, progress)


def _write(maker: Maker, work: Path, dialect: str, progress: Progress, *, allow_nonfinite: bool) -> dict[str, Part]:
    """Write sidecars and the lowered stages."""
    parts = maker.lower(dialect, progress)
    if allow_nonfinite:
        for part in parts.values():
            stage = part.stage
            stage.notes.append("weights that are not finite were allowed")
            for producer in (*stage.producers.values(), *((stage.outside.producer,) if stage.outside else ())):
                producer.allow_nonfinite()
    sidecars = work / "sidecars"
    sidecars.mkdir()
    maker.write_sidecars(sidecars, parts, progress)
    sizes = {name: layout_size(plan_layout(part.stage)) for name, part in parts.items()}
    # Compiling writes a second copy of a stage for a moment.
    needed = sum(sizes.values()) + (0 if dialect == "portable" else max(sizes.values()))
    require_space(work, needed, "The build")
    with progress.step("write weights", sum(sizes.values())) as advance:
        for name, part in parts.items():
            write_stage(part.stage, work / STAGES_FOLDER / name, progress=advance)
    return {name: replace(part, entry=_entry(name, part, dialect)) for name, part in parts.items()}


def _entry(name: str, part: Part, dialect: str) -> StageEntry:
    settings = settings_for(dialect, half_weights=part.half_weights)
    return StageEntry(f"{STAGES_FOLDER}/{name}/{MODEL_FILE}", dialect, part.stage.contract, settings.to_json())


def _compiled(work: Path, name: str, part: Part, target: str) -> Part:
    place = f"{STAGES_FOLDER}/{name}"
    contract = part.stage.contract
    return replace(part, entry=TARGETS[target](work / place, place, contract, half_weights=part.half_weights))


def _compiled_again(work: Path, entry: StageEntry, target: str) -> StageEntry:
    half = entry.settings["optimization"] != "disabled"
    place = Path(entry.graph).parent.as_posix()
    return TARGETS[target](inside(work, place), place, entry.contract, half_weights=half)


def _seal(work: Path, manifest: Manifest) -> Manifest:
    """Write model card and manifest over everything that stands in `work`; returns the manifest with its digests.

    Digests the manifest has already are kept, but for the card's and the report's.
    """
    known = {name: entry for name, entry in manifest.files.items() if name not in (CARD, VERIFY_REPORT)}
    (work / CARD).write_text(model_card(manifest), encoding="utf-8")
    sealed = replace(manifest, files=file_entries(work, known))
    write_manifest(work, sealed)
    return sealed


def _verify(work: Path, maker: Maker, manifest: Manifest, progress: Progress) -> Manifest:
    """Verify the finished folder and seal it again with its verdict; raises VerificationError on a failure."""
    report = maker.verify(work, progress)
    if not report.passed:
        raise VerificationError(f"The build failed verification and was not kept: {report.reason()}")
    return _write_verdict(work, manifest, report.to_json())


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
