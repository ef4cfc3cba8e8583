"""Quantized checkpoints as a step of a build: made once, kept by what they were made from, taken over by the build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgewright.build.kept import check_cache, held, is_whole, kept_folder, remove, seal, sweep
from edgewright.build.key import source_record, stage_recipe
from edgewright.build.record import rounded_again
from edgewright.calibration import Samples, load_samples
from edgewright.calibration.model import text_side
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.files import canonical_json, new_folder, refuse_source
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.recipe import Data, Recipe, stored_recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.quantizer import quantize, write_folder
from edgewright.quantizer.preview import refuse_quantized
from edgewright.quantizer.report import REPORT, SHARED, TAKEN, ModuleReport

#: The layout a build takes over without loss.
NATIVE = "edgewright"


@dataclass(frozen=True)
class QuantizedFolder:
    """A finished quantized checkpoint: where it is, the figures of every module, the record of the data, notes."""

    path: Path
    reports: tuple[ModuleReport, ...]
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def quantize_checkpoint(
    source: str | Path,
    output: str | Path,
    *,
    recipe: str | Recipe,
    data: Data | None = None,
    layout: str = NATIVE,
    force: bool = False,
    progress: Progress = SILENT,
    threads: int | None = None,
) -> QuantizedFolder:
    """Make a quantized checkpoint folder; `data` replaces what the recipe calibrates on.

    `layout` is edgewright (lossless, what `deploy` takes over), modelopt or compressed-tensors. Interrupted work is
    taken up when the same is asked for again. With `force` an output that this function wrote is replaced, never the
    source. Raises the package's errors.
    """
    parsed = stage_recipe(load_recipe(recipe) if isinstance(recipe, str) else recipe)
    parsed = parsed if data is None else replace(parsed, data=data)
    checkpoint = open_checkpoint(source)
    refuse_quantized(checkpoint)
    refuse_source(checkpoint.path, Path(output))
    if layout != NATIVE:
        from edgewright.quantizer.layouts import check_layout

        check_layout(layout, checkpoint, parsed)
    check_cache()
    with progress.step("hash source"):
        record = source_record(checkpoint)
    with new_folder(Path(output), replace=force, mark=REPORT, kind="quantized checkpoint") as work:
        reports, samples, notes = _make(checkpoint, record, parsed, work, layout, progress, threads)
    return QuantizedFolder(Path(output), reports, samples, notes)


def _make(
    checkpoint: Checkpoint,
    record: Mapping[str, Any],
    recipe: Recipe,
    folder: Path,
    layout: str,
    progress: Progress,
    threads: int | None,
) -> tuple[tuple[ModuleReport, ...], Mapping[str, Any], tuple[str, ...]]:
    samples = calibration_samples(checkpoint, recipe.data, progress) if recipe.needs_data else None
    done = quantize(checkpoint, record, recipe, samples, progress=progress, threads=threads)
    data = {} if samples is None else samples.record
    with done.work:  # another run may have it again, whatever happens
        with progress.step("write checkpoint"):
            if layout == NATIVE:
                write_folder(folder, checkpoint, record, recipe, done, data)
            else:
                from edgewright.quantizer.layouts import write_layout

                write_layout(folder, layout, checkpoint, record, recipe, done, data)
        notes = rounded_again((r.stored, r.format) for r in done.reports if r.algorithm not in (TAKEN, SHARED))
        if notes:
            report = json.loads((folder / REPORT).read_bytes())
            (folder / REPORT).write_bytes(canonical_json({**report, "notes": notes}))
        done.work.remove()
    return done.reports, data, tuple(notes)


def calibration_samples(checkpoint: Checkpoint, data: Data, progress: Progress = SILENT) -> Samples:
    """Return the rows a recipe calibrates on, as this model's tokens."""
    with progress.step("calibration data"):
        contract = build_llm(checkpoint).contract
        vocab = contract.outputs[0].shape[-1]
        assert isinstance(vocab, int)
        side = text_side(checkpoint)
        return load_samples(
            data.source,
            side.tokenizer,
            template=side.template,
            sequences=data.sequences,
            length=data.length,
            seed=data.seed,
            vocab_size=vocab,
            max_context=contract.bounds["capacity"][1],  # at most what a build takes by default
        )


def quantized_first(
    checkpoint: Checkpoint, record: dict[str, Any], recipe: Recipe, progress: Progress
) -> tuple[Checkpoint, dict[str, Any], Recipe]:
    """Return what a build starts from: where the recipe searches or calibrates, a quantized checkpoint to take over.

    It is kept in the user's cache under the digest of what it was made from, so that an unchanged recipe is not
    calibrated again; one that is damaged is made again. The record then names the original as `origin`.
    """
    if not recipe.needs_quantizer:
        return checkpoint, record, recipe
    refuse_quantized(checkpoint)
    check_cache()
    sweep()
    folder = kept_folder(record, recipe)
    with held(folder, progress):
        if not is_whole(folder):
            remove(folder)
            with new_folder(folder, replace=True, mark=REPORT, kind="quantized checkpoint") as work:
                _make(checkpoint, record, recipe, work, NATIVE, progress, None)
                seal(work)
        made = open_checkpoint(folder)
    with progress.step("hash quantized checkpoint"):
        files = source_record(made)
    return made, {**files, "name": record["name"], "origin": record, "kept": folder.name}, stored_recipe(recipe.name)
