"""Quantized checkpoints as a step of a build: made once, kept by what they were made from, taken over by the build."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from edgewright.build.kept import check_cache, held, is_whole, kept_folder, remove, seal, sweep
from edgewright.build.key import policy_recipe, policy_record, source_record, stage_recipe
from edgewright.build.record import rounded_again
from edgewright.build.sources import check_tokenizer
from edgewright.calibration import Samples, load_samples
from edgewright.calibration.model import text_side
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions, is_policy, open_policy
from edgewright.errors import UsageError
from edgewright.files import canonical_json, new_folder, refuse_source
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.recipe import Data, Recipe, stored_recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.quantizer import quantize, write_folder
from edgewright.quantizer.policy import quantize_policy
from edgewright.quantizer.policy_folder import write_policy_folder
from edgewright.quantizer.policy_observations import load_policy_observations
from edgewright.quantizer.preview import refuse_quantized
from edgewright.quantizer.report import REPORT, SHARED, TAKEN, ModuleReport

#: A language model, or a policy.
Given = TypeVar("Given", Checkpoint, PolicyCheckpoint)
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
    policy: PolicyOptions | None = None,
    force: bool = False,
    progress: Progress = SILENT,
    threads: int | None = None,
) -> QuantizedFolder:
    """Make a quantized checkpoint folder of a language model or a robot policy; `data` replaces what the recipe
    calibrates on, `policy` says what a policy's checkpoint doesn't.

    `layout` is edgewright (lossless, what `deploy` takes over), modelopt or compressed-tensors. Interrupted work is
    taken up when the same is asked for again. With `force` an output that this function wrote is replaced, never the
    source. Raises the package's errors.
    """
    loaded = load_recipe(recipe) if isinstance(recipe, str) else recipe
    parsed, checkpoint = _opened(source, loaded if data is None else with_data(loaded, data), policy)
    refuse_quantized(checkpoint)
    refuse_source(checkpoint.path, Path(output))
    if layout != NATIVE:
        _check_layout(layout, checkpoint, parsed)
    check_cache()
    with progress.step("hash source"):
        record = _record(checkpoint)
    with new_folder(Path(output), replace=force, mark=REPORT, kind="quantized checkpoint") as work:
        reports, samples, notes = _make(checkpoint, record, parsed, work, layout, progress, threads)
    return QuantizedFolder(Path(output), reports, samples, notes)


def with_data(recipe: Recipe, data: Data) -> Recipe:
    """Return a recipe that calibrates on other data, in all stages."""
    stages = {name: replace(inner, data=data) for name, inner in recipe.stages.items()}
    return replace(recipe, data=data, stages=stages)


def _opened(
    source: str | Path, recipe: Recipe, options: PolicyOptions | None
) -> tuple[Recipe, Checkpoint | PolicyCheckpoint]:
    """Return what a recipe says of a source's stages, and the source."""
    if is_policy(source):
        found = open_policy(source, options)
        check_tokenizer(found)
        return policy_recipe(recipe), found
    if options is not None:
        raise UsageError(f"{Path(source).name} is not a robot policy, so options of policies have no meaning for it.")
    return stage_recipe(recipe), open_checkpoint(source)


def _record(checkpoint: Checkpoint | PolicyCheckpoint) -> dict[str, Any]:
    return policy_record(checkpoint) if isinstance(checkpoint, PolicyCheckpoint) else source_record(checkpoint)


def _check_layout(layout: str, checkpoint: Checkpoint | PolicyCheckpoint, recipe: Recipe) -> None:
    if isinstance(checkpoint, PolicyCheckpoint):
        raise UsageError(
            f"No tool reads a quantized robot policy in the layout {layout}: leave --layout out, deploy takes ours."
        )
    from edgewright.quantizer.layouts import check_layout

    check_layout(layout, checkpoint, recipe)


def _make(
    checkpoint: Checkpoint | PolicyCheckpoint,
    record: Mapping[str, Any],
    recipe: Recipe,
    folder: Path,
    layout: str,
    progress: Progress,
    threads: int | None,
) -> tuple[tuple[ModuleReport, ...], Mapping[str, Any], tuple[str, ...]]:
    """Calibrate, round and write; returns the figures, the record of the data, and notes."""
    if isinstance(checkpoint, PolicyCheckpoint):
        return _make_policy(checkpoint, record, recipe, folder, progress, threads)
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


def _make_policy(
    checkpoint: PolicyCheckpoint,
    record: Mapping[str, Any],
    recipe: Recipe,
    folder: Path,
    progress: Progress,
    threads: int | None,
) -> tuple[tuple[ModuleReport, ...], Mapping[str, Any], tuple[str, ...]]:
    observations = None
    if recipe.needs_data:
        with progress.step("calibration data"):
            observations = load_policy_observations(checkpoint, recipe.data)
    done = quantize_policy(checkpoint, record, recipe, observations, progress=progress, threads=threads)
    data = {} if observations is None else observations.record
    with done.work:  # another run may have it again, whatever happens
        with progress.step("write checkpoint"):
            write_policy_folder(folder, checkpoint, record, recipe, done, data)
        done.work.remove()
    return done.reports, data, ()


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
    folder = kept_folder(record, recipe)
    made = _kept(checkpoint, record, recipe, folder, open_checkpoint, progress)
    return made, _kept_record(made, record, folder, progress), stored_recipe(recipe.name)


def quantized_policy(
    checkpoint: PolicyCheckpoint, record: dict[str, Any], recipe: Recipe, progress: Progress
) -> tuple[PolicyCheckpoint, dict[str, Any], Recipe]:
    """Return the same of a policy, whose recipe is that of its stages; limits are those of the policy given."""
    if not recipe.needs_quantizer:
        return checkpoint, record, recipe
    told = {**checkpoint.spec.to_json(), "limits": None}
    folder = kept_folder(record, recipe, policy=told, sizes=repr(checkpoint.sizes))
    made = replace(_kept(checkpoint, record, recipe, folder, open_policy, progress), spec=checkpoint.spec)
    return made, _kept_record(made, record, folder, progress), stored_recipe(recipe.name)


def _kept(
    checkpoint: Checkpoint | PolicyCheckpoint,
    record: Mapping[str, Any],
    recipe: Recipe,
    folder: Path,
    opened: Callable[[Path], Given],
    progress: Progress,
) -> Given:
    """Return the quantized checkpoint of a folder in the user's cache; it is made unless it is there and whole."""
    refuse_quantized(checkpoint)
    check_cache()
    sweep()
    with held(folder, progress):
        if not is_whole(folder):
            remove(folder)
            with new_folder(folder, replace=True, mark=REPORT, kind="quantized checkpoint") as work:
                _make(checkpoint, record, recipe, work, NATIVE, progress, None)
                seal(work)
        return opened(folder)


def _kept_record(
    made: Checkpoint | PolicyCheckpoint, record: Mapping[str, Any], folder: Path, progress: Progress
) -> dict[str, Any]:
    with progress.step("hash quantized checkpoint"):
        files = _record(made)
    return {**files, "name": record["name"], "origin": record, "kept": folder.name}
