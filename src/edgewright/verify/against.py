"""What a bundle is compared with, from what a path holds: another bundle, a golden, or a checkpoint."""

from __future__ import annotations

from pathlib import Path

from edgewright.bundle import MANIFEST, check_files, read_manifest
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import CheckpointError, GoldenError, ModelError, UsageError
from edgewright.progress import SILENT, Progress
from edgewright.runtime.llm import llm_stage
from edgewright.verify.bundles import compare_bundles
from edgewright.verify.golden import Golden, is_golden, read_golden
from edgewright.verify.live import verify_live
from edgewright.verify.metrics import compare, pool
from edgewright.verify.report import LogitsReport, Report
from edgewright.verify.running import load_llm
from edgewright.verify.thresholds import CACHE_QUALITY, GOLDEN, with_cache
from edgewright.verify.verifier import coarsest_of, run_script, verify_bundle

#: What a path may be.
KINDS = ("bundle", "golden", "checkpoint")


def kind_of(path: Path) -> str:
    """Return which of KINDS a path is."""
    if (path / MANIFEST).is_file():
        return "bundle"
    return "golden" if is_golden(path) else "checkpoint"


def verify(
    folder: str | Path,
    against: str | Path,
    *,
    live: str | Path | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Report:
    """Verify a bundle against a checkpoint, a golden or another bundle.

    With `live`, the Python of an environment with torch and transformers, the checkpoint's float32 graph is besides
    compared with transformers. Raises the package's errors when the two don't belong together.
    """
    root, path = Path(folder), Path(against)
    kind = kind_of(path)
    if live is not None and kind == "bundle":
        raise UsageError("A live comparison needs a checkpoint, not another bundle: give --against one.")
    checkpoint: Checkpoint | None = None
    if kind == "bundle":
        report = compare_bundles(root, path, threads=threads, progress=progress)
    elif kind == "checkpoint":
        checkpoint = open_checkpoint(path)
        report = verify_bundle(root, checkpoint, threads=threads, progress=progress)
    else:
        golden = read_golden(path)
        checkpoint = _checkpoint_of(golden, root)
        level = compare_golden(root, golden, threads=threads, progress=progress)
        report = Report({}, None, {})
        if checkpoint is not None:
            report = verify_bundle(root, checkpoint, threads=threads, progress=progress)
        report = Report({**report.levels, "golden": level}, report.localisation, remarks=report.remarks)
    if live is not None:
        if checkpoint is None:
            raise UsageError(f"{path} holds no checkpoint, so there is nothing to load with transformers.")
        report = verify_live(report, checkpoint, root, live, threads=threads, progress=progress)
    return Report(report.levels, report.localisation, {"kind": kind, "name": path.name}, report.remarks)


def _checkpoint_of(golden: Golden, root: Path) -> Checkpoint | None:
    """Return the checkpoint in a golden's folder when the bundle was made of it, else None."""
    try:
        checkpoint = open_checkpoint(golden.path)
    except (CheckpointError, ModelError):
        return None
    sizes = {entry["bytes"] for entry in read_manifest(root).source["files"].values()}
    return checkpoint if all(file.stat().st_size in sizes for file in checkpoint.files) else None


def compare_golden(
    root: Path, golden: Golden, *, threads: int | None = None, progress: Progress = SILENT
) -> LogitsReport:
    """Compare a bundle's logits with a golden's; raises GoldenError when they can't be compared."""
    manifest = read_manifest(root)
    with progress.step("check files"):
        check_files(root, manifest)
    entry = llm_stage(manifest)
    llm, _ = load_llm(root, threads)
    vocab, context = int(manifest.model["vocab_size"]), llm.max_context
    if vocab != golden.vocab:
        raise GoldenError(f"The golden has a vocabulary of {golden.vocab} tokens and the bundle of {vocab}.")
    kept = slice(None) if llm.vocabulary is None else llm.vocabulary.ids
    if llm.vocabulary is not None and (lost := set(golden.arrays["ids"].ravel().tolist()) - set(llm.vocabulary.ids)):
        raise GoldenError(f"The golden has the token {min(lost)}, which the bundle's reduced vocabulary dropped.")
    length = golden.arrays["ids"].shape[1]
    if length > context:
        raise GoldenError(f"The golden has {length} tokens and the bundle's context holds {context}.")
    largest = entry.contract.bounds["batch"][1]
    parts = {}
    failures: list[str] = []
    with progress.step("compare with the golden"):
        for script, wanted in golden.scripts():
            if len(script.sequences) <= largest:
                parts[script.name] = compare(run_script(llm, script, failures), wanted[:, kept])
    summaries = {name: part.summary() for name, part in parts.items()}
    bound = with_cache(GOLDEN[coarsest_of(manifest)], CACHE_QUALITY, entry.contract.kv_dtype)
    return LogitsReport(bound, summaries, pool(list(parts.values())).summary())
