"""The steps of a build: read, quantize, lower, write, compile, verify, seal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from edgewright._version import __version__
from edgewright.build.card import model_card
from edgewright.build.key import build_key, source_record, up_to_date
from edgewright.build.vocabulary import vocabulary_notes
from edgewright.bundle import Manifest, StageEntry, check_files, read_manifest, write_manifest
from edgewright.bundle.manifest import file_entries
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import BundleError, OutputError, UsageError, VerificationError
from edgewright.files import canonical_json, copy_files, inside, new_folder, require_space
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, layout_size, parameter_count, plan_layout, write_stage
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.formats import FloatFormat, IntFormat
from edgewright.quant.recipe import Recipe, load_recipe
from edgewright.runtime.llm import llm_stage
from edgewright.targets import TARGETS
from edgewright.targets.cpu import settings_for

STAGE_FOLDER = "stages/llm"
VERIFY_REPORT = "reports/verify.json"
CARD = "README.md"
NOT_CHECKED: dict[str, Any] = {"status": "not checked"}


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
    verify: bool = True,
    allow_nonfinite: bool = False,
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Make a verified bundle from a checkpoint.

    Weights that are not finite are refused by name, or with `allow_nonfinite`, which rules out `verify`, taken as they
    are. Nothing is left behind unless everything succeeds, verification included. An existing bundle of the same inputs
    is returned as it is; anything else in its place is an error unless `force`. Raises the package's errors.
    """
    if target not in TARGETS:
        raise UsageError(f"The target {target!r} is unknown; known are {', '.join(TARGETS)}.")
    if allow_nonfinite and verify:
        raise UsageError("Results of weights that are not finite can't be compared: use --no-verify as well.")
    parsed, checkpoint, record = _inputs(recipe, source, progress)
    key = build_key(
        record, parsed, target=target, max_context=max_context, verify=verify, allow_nonfinite=allow_nonfinite
    )
    final = Path(output)
    if (done := up_to_date(final, key, verified=verify)) is not None:
        return Built(final, done, reused=True)
    _check_place(checkpoint, final)
    with new_folder(final, replace=force) as work:
        entry, stage, applied = _write(
            checkpoint, work, parsed, "onnxruntime", max_context, progress, allow_nonfinite=allow_nonfinite
        )
        with progress.step(f"compile for {target}"):
            half = _half_weights(applied)
            entry = TARGETS[target](work / STAGE_FOLDER, STAGE_FOLDER, entry.contract, half_weights=half)
        manifest = _manifest(checkpoint, record, parsed, stage, applied, entry, target=target, key=key)
        manifest = _seal(work, manifest)
        if verify:
            manifest = _verify(work, checkpoint, manifest, progress)
    return Built(final, manifest)


def export(
    source: str | Path,
    output: str | Path,
    *,
    recipe: str | Recipe = "float32",
    dialect: str = "portable",
    max_context: int | None = None,
    allow_nonfinite: bool = False,
    force: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Write a checkpoint's graph and sidecars without compiling: a folder with a manifest, not yet a bundle."""
    if dialect not in LOWERINGS:
        raise UsageError(f"The dialect {dialect!r} is unknown; known are {', '.join(LOWERINGS)}.")
    parsed, checkpoint, record = _inputs(recipe, source, progress)
    key = build_key(record, parsed, dialect=dialect, max_context=max_context, allow_nonfinite=allow_nonfinite)
    final = Path(output)
    if (done := up_to_date(final, key)) is not None:
        return Built(final, done, reused=True)
    _check_place(checkpoint, final)
    with new_folder(final, replace=force) as work:
        entry, stage, applied = _write(
            checkpoint, work, parsed, dialect, max_context, progress, allow_nonfinite=allow_nonfinite
        )
        manifest = _seal(work, _manifest(checkpoint, record, parsed, stage, applied, entry, target=None, key=key))
    return Built(final, manifest)


def _inputs(recipe: str | Recipe, source: str | Path, progress: Progress) -> tuple[Recipe, Checkpoint, dict[str, Any]]:
    """Return the parsed recipe, the open checkpoint and the record of its files."""
    parsed = load_recipe(recipe) if isinstance(recipe, str) else recipe
    checkpoint = open_checkpoint(source)
    with progress.step("hash source"):
        return parsed, checkpoint, source_record(checkpoint)


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
                versions=_versions(),
            ),
        )
    return Built(Path(output), sealed)


def _write(
    checkpoint: Checkpoint,
    work: Path,
    recipe: Recipe,
    dialect: str,
    max_context: int | None,
    progress: Progress,
    *,
    allow_nonfinite: bool,
) -> tuple[StageEntry, Stage, list[Applied]]:
    """Write sidecars and the lowered stage."""
    with progress.step("build graph"):
        stage = build_llm(checkpoint, max_context=max_context)
        applied = quantize_stage(stage, recipe)
        stage = LOWERINGS[dialect](stage)
        if allow_nonfinite:
            stage.notes.append("weights that are not finite were allowed")
            for producer in stage.producers.values():
                producer.allow_nonfinite()
    with progress.step("write tokenizer"):
        sidecars = work / "sidecars"
        sidecars.mkdir()
        for name, data in checkpoint.sidecars().items():
            (sidecars / name).write_bytes(data)
            if name == "tokenizer.json":
                vocab = stage.contract.outputs[0].shape[-1]
                assert isinstance(vocab, int)
                stage.notes += vocabulary_notes(data, vocab)
    size = layout_size(plan_layout(stage))
    # Compiling writes a second copy for a moment.
    require_space(work, size if dialect == "portable" else 2 * size, "The build")
    with progress.step("write weights", size) as advance:
        write_stage(stage, work / STAGE_FOLDER, progress=advance)
    settings = settings_for(dialect, half_weights=_half_weights(applied))
    entry = StageEntry(f"{STAGE_FOLDER}/{MODEL_FILE}", dialect, stage.contract, settings.to_json())
    return entry, stage, applied


def _eos(config: Mapping[str, Any]) -> Any:
    """Return the config's end-of-sequence ids; a wrapper may keep them in its text config."""
    inner = config.get("text_config")
    ids = config.get("eos_token_id")
    return ids if ids is not None or not isinstance(inner, Mapping) else inner.get("eos_token_id")


def _check_place(checkpoint: Checkpoint, final: Path) -> None:
    """Refuse an output that would replace the checkpoint itself."""
    if checkpoint.path.resolve().is_relative_to(final.resolve()):
        raise OutputError(f"{final.name} holds the checkpoint, so it is not replaced: choose another output.")


def _half_weights(applied: Sequence[Applied]) -> bool:
    return any(isinstance(a.format, FloatFormat) and a.format.dtype != "float32" for a in applied)


def _manifest(
    checkpoint: Checkpoint,
    record: Mapping[str, Any],
    recipe: Recipe,
    stage: Stage,
    applied: Sequence[Applied],
    entry: StageEntry,
    *,
    target: str | None,
    key: str,
) -> Manifest:
    config = checkpoint.config
    vocab = stage.contract.outputs[0].shape[-1]
    return Manifest(
        model={
            "model_type": config["model_type"],
            "parameters": parameter_count(stage),
            "layers": stage.layers,
            "vocab_size": vocab,
            "max_context": stage.contract.bounds["capacity"][1],
            "eos_token_id": _eos(config),
        },
        source=record,
        recipe={"name": recipe.name, "summary": _summary(applied), "modules": [_module(a) for a in applied]},
        stages={"llm": entry},
        versions=_versions(),
        verdict=NOT_CHECKED,
        notes=tuple(stage.notes),
        target=target,
        key=key,
    )


def _module(applied: Applied) -> dict[str, Any]:
    fmt = applied.format
    detail: dict[str, Any] = {"dtype": fmt.dtype} if isinstance(fmt, FloatFormat) else {}
    if isinstance(fmt, IntFormat):
        detail = {
            "bits": fmt.bits,
            "group": fmt.group,
            "zero_point": fmt.zero_point,
            "int8_activations": fmt.int8_activations,
        }
    return {
        "module": applied.module,
        "kind": applied.kind,
        **detail,
        "stored_as": applied.stored,
        "bit_exact": applied.exact,
    }


def _summary(applied: Sequence[Applied]) -> dict[str, Any]:
    """Count modules by format, and those whose stored codes were taken over without a second rounding."""
    formats = Counter(a.format.label for a in applied)
    return {"formats": dict(formats), "bit_exact": sum(a.exact for a in applied), "modules": len(applied)}


def _versions() -> dict[str, str]:
    names = ("onnx", "onnx-ir", "onnxruntime", "numpy", "tokenizers")
    return {"edgewright": __version__, **{name: metadata.version(name) for name in names}}


def _seal(work: Path, manifest: Manifest) -> Manifest:
    """Write model card and manifest over everything that stands in `work`; returns the manifest with its digests.

    Digests the manifest has already are kept, but for the card's and the report's.
    """
    known = {name: entry for name, entry in manifest.files.items() if name not in (CARD, VERIFY_REPORT)}
    (work / CARD).write_text(model_card(manifest), encoding="utf-8")
    sealed = replace(manifest, files=file_entries(work, known))
    write_manifest(work, sealed)
    return sealed


def _verify(work: Path, checkpoint: Checkpoint, manifest: Manifest, progress: Progress) -> Manifest:
    """Verify the finished folder and seal it again with its verdict; raises VerificationError on a failure."""
    from edgewright.verify import verify_bundle

    report = verify_bundle(work, checkpoint, progress=progress)
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
