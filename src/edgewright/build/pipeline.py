"""The steps of a build: read, quantize, lower, write, compile, verify, seal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgewright.build.card import model_card
from edgewright.build.kept import unchanged
from edgewright.build.key import build_key, checked_recipe, source_record
from edgewright.build.outside import check_place, table_size, write_table
from edgewright.build.quantized import quantized_first
from edgewright.build.record import NOT_CHECKED, manifest_of, versions
from edgewright.build.reduced import Reduction
from edgewright.build.reduction import VocabularyRequest
from edgewright.build.vocabulary import vocabulary_notes
from edgewright.bundle import Manifest, StageEntry, check_files, read_manifest, write_manifest
from edgewright.bundle.manifest import file_entries
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.checkpoint.layouts import Quantization
from edgewright.dialects import LOWERINGS
from edgewright.errors import BundleError, UsageError, VerificationError
from edgewright.files import canonical_json, copy_files, inside, new_folder, refuse_source, require_space
from edgewright.formats import FloatFormat, Format, IntFormat
from edgewright.graph import Stage
from edgewright.graph.outside import take_table_outside
from edgewright.graph.writer import MODEL_FILE, layout_size, plan_layout, write_stage
from edgewright.models import build_llm, module_name
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.kv import KVFormat, KVScales, cache_record, quantize_cache
from edgewright.quant.recipe import Recipe
from edgewright.runtime.llm import llm_stage
from edgewright.targets import TARGETS
from edgewright.targets.cpu import settings_for

STAGE_FOLDER = "stages/llm"
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
    recipe: str | Recipe = "int4",
    target: str = "cpu",
    max_context: int | None = None,
    vocabulary: VocabularyRequest | None = None,
    embeddings: str = "inside",
    verify: bool = True,
    allow_nonfinite: bool = False,
    requantize: bool = False,
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Make a verified bundle from a checkpoint, with a reduced `vocabulary` where one is asked for.

    With `embeddings` "outside" the embedding table is a file of its own and the graph takes its rows.

    Weights that are not finite are refused by name, or with `allow_nonfinite`, which rules out `verify`, taken as they
    are. A checkpoint that is quantized already is taken over as it is unless `requantize` allows a second rounding. A
    recipe that calibrates or searches makes a quantized checkpoint first, in the user's cache, and takes that over.
    Nothing is left behind unless everything succeeds, verification included. An existing bundle of the same inputs
    is returned as it is; anything else in its place is an error unless `force`. Raises the package's errors.
    """
    if target not in TARGETS:
        raise UsageError(f"The target {target!r} is unknown; known are {', '.join(TARGETS)}.")
    check_place(embeddings)
    if allow_nonfinite and verify:
        raise UsageError("Results of weights that are not finite can't be compared: use --no-verify as well.")
    parsed = checked_recipe(recipe, allow_nonfinite=allow_nonfinite, requantize=requantize)
    checkpoint = open_checkpoint(source)
    with progress.step("hash source"):
        record = source_record(checkpoint)
    key = build_key(
        record,
        parsed,
        target=target,
        max_context=max_context,
        vocabulary=vocabulary and vocabulary.key(),
        embeddings=embeddings,
        requantize=requantize,
        verify=verify,
        allow_nonfinite=allow_nonfinite,
    )
    final = Path(output)
    if (done := unchanged(final, key, verified=verify, force=force)) is not None:
        return Built(final, done, reused=True)
    refuse_source(checkpoint.path, final)
    original = checkpoint
    checkpoint, record, parsed = quantized_first(checkpoint, record, parsed, progress)
    with new_folder(final, replace=force) as work:
        entry, stage, applied = _write(
            checkpoint,
            work,
            parsed,
            "onnxruntime",
            max_context,
            vocabulary,
            progress,
            embeddings=embeddings,
            allow_nonfinite=allow_nonfinite,
            requantize=requantize,
        )
        with progress.step(f"compile for {target}"):
            half = _half_weights(applied, stage)
            entry = TARGETS[target](work / STAGE_FOLDER, STAGE_FOLDER, entry.contract, half_weights=half)
        manifest = manifest_of(checkpoint, original, record, parsed, stage, applied, entry, target=target, key=key)
        manifest = _seal(work, manifest)
        if verify:
            manifest = _verify(work, checkpoint, manifest, progress, None if original is checkpoint else original)
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
    allow_nonfinite: bool = False,
    requantize: bool = False,
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Write a checkpoint's graph and sidecars without compiling: a folder with a manifest, not yet a bundle."""
    if dialect not in LOWERINGS:
        raise UsageError(f"The dialect {dialect!r} is unknown; known are {', '.join(LOWERINGS)}.")
    check_place(embeddings)
    parsed = checked_recipe(recipe, allow_nonfinite=allow_nonfinite, requantize=requantize)
    checkpoint = open_checkpoint(source)
    with progress.step("hash source"):
        record = source_record(checkpoint)
    key = build_key(
        record,
        parsed,
        dialect=dialect,
        max_context=max_context,
        vocabulary=vocabulary and vocabulary.key(),
        embeddings=embeddings,
        requantize=requantize,
        allow_nonfinite=allow_nonfinite,
    )
    final = Path(output)
    if (done := unchanged(final, key, force=force)) is not None:
        return Built(final, done, reused=True)
    refuse_source(checkpoint.path, final)
    original = checkpoint
    checkpoint, record, parsed = quantized_first(checkpoint, record, parsed, progress)
    with new_folder(final, replace=force) as work:
        entry, stage, applied = _write(
            checkpoint,
            work,
            parsed,
            dialect,
            max_context,
            vocabulary,
            progress,
            embeddings=embeddings,
            allow_nonfinite=allow_nonfinite,
            requantize=requantize,
        )
        manifest = manifest_of(checkpoint, original, record, parsed, stage, applied, entry, target=None, key=key)
        manifest = _seal(work, manifest)
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
    entry = llm_stage(manifest)
    if entry.dialect != "onnxruntime":
        raise BundleError(
            f"The graph is in the {entry.dialect} dialect, which {target} can't run: export with --dialect onnxruntime."
        )
    half = entry.settings["optimization"] != "disabled"
    kept = [name for name in manifest.files if name not in (CARD, VERIFY_REPORT) and "/engine." not in name]
    with new_folder(Path(output), replace=force) as work:
        copy_files(root, work, kept)
        with progress.step(f"compile for {target}"):
            stage_folder = inside(work, str(Path(entry.graph).parent))
            compiled = TARGETS[target](stage_folder, STAGE_FOLDER, entry.contract, half_weights=half)
        sealed = _seal(
            work,
            replace(
                manifest,
                stages={"llm": compiled},
                target=target,
                verdict=NOT_CHECKED,
                key="",
                files={},
                versions=versions(),
            ),
        )
    return Built(Path(output), sealed)


def _write(
    checkpoint: Checkpoint,
    work: Path,
    recipe: Recipe,
    dialect: str,
    max_context: int | None,
    vocabulary: VocabularyRequest | None,
    progress: Progress,
    *,
    embeddings: str,
    allow_nonfinite: bool,
    requantize: bool,
) -> tuple[StageEntry, Stage, list[Applied]]:
    """Write sidecars and the lowered stage."""
    with progress.step("build graph"):
        stage = build_llm(checkpoint, max_context=max_context)
        full = stage.contract.outputs[0].shape[-1]
        reduction = Reduction(stage, checkpoint, vocabulary) if vocabulary else None
        applied = quantize_stage(stage, recipe, requantize=requantize)
        if checkpoint.quantization is not None:
            stage.cache = give_cache(stage, checkpoint, checkpoint.quantization)
        if reduction:
            reduction.finish(stage)
        if embeddings == "outside":
            take_table_outside(stage)
        stage = LOWERINGS[dialect](stage)
        if allow_nonfinite:
            stage.notes.append("weights that are not finite were allowed")
            for producer in (*stage.producers.values(), *((stage.outside.producer,) if stage.outside else ())):
                producer.allow_nonfinite()
    with progress.step("write tokenizer"):
        sidecars = work / "sidecars"
        sidecars.mkdir()
        for name, data in checkpoint.sidecars().items():
            (sidecars / name).write_bytes(data)
            if name == "tokenizer.json":
                assert isinstance(full, int)
                stage.notes += vocabulary_notes(data, full)
        if reduction:
            reduction.write(sidecars)
    if stage.outside is not None:
        require_space(work, table_size(stage.outside), "The build")
        with progress.step("write embedding table", table_size(stage.outside)) as advance:
            write_table(stage.outside, sidecars, advance)
    size = layout_size(plan_layout(stage))
    # Compiling writes a second copy for a moment.
    require_space(work, size if dialect == "portable" else 2 * size, "The build")
    with progress.step("write weights", size) as advance:
        write_stage(stage, work / STAGE_FOLDER, progress=advance)
    settings = settings_for(dialect, half_weights=_half_weights(applied, stage))
    entry = StageEntry(f"{STAGE_FOLDER}/{MODEL_FILE}", dialect, stage.contract, settings.to_json())
    return entry, stage, applied


def give_cache(stage: Stage, checkpoint: Checkpoint, found: Quantization) -> dict[str, Any] | None:
    """Give the stage the cache that the checkpoint was calibrated for; returns its record, or None for float32."""
    if found.kv_dtype is None:
        return None
    scales = {
        module if found.canonical else module_name(checkpoint.config, module): KVScales(key, value)
        for module, (key, value) in found.kv_scales.items()
    }
    per_head = any(len(pair.key) > 1 for pair in scales.values())
    dtype: Any = found.kv_dtype
    return cache_record(quantize_cache(stage, KVFormat(dtype, "head" if per_head else "tensor"), scales))


def _widened(fmt: Format) -> bool:
    if isinstance(fmt, IntFormat):
        return fmt.scales != "float32"
    return not (isinstance(fmt, FloatFormat) and fmt.dtype == "float32")


def _half_weights(applied: Sequence[Applied], stage: Stage) -> bool:
    """Tell whether stored weights of the graph are widened at load."""
    beside = stage.outside.module if stage.outside else None
    return any(_widened(module.format) for module in applied if module.module != beside)


def _seal(work: Path, manifest: Manifest) -> Manifest:
    """Write model card and manifest over everything that stands in `work`; returns the manifest with its digests.

    Digests the manifest has already are kept, but for the card's and the report's.
    """
    known = {name: entry for name, entry in manifest.files.items() if name not in (CARD, VERIFY_REPORT)}
    (work / CARD).write_text(model_card(manifest), encoding="utf-8")
    sealed = replace(manifest, files=file_entries(work, known))
    write_manifest(work, sealed)
    return sealed


def _verify(
    work: Path, checkpoint: Checkpoint, manifest: Manifest, progress: Progress, original: Checkpoint | None
) -> Manifest:
    """Verify the finished folder and seal it again with its verdict; raises VerificationError on a failure.

    `original` is the float checkpoint where `checkpoint` is a quantized form of it.
    """
    from edgewright.verify import verify_bundle

    report = verify_bundle(work, checkpoint, original=original, progress=progress)
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
