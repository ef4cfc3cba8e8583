"""From a checkpoint to a quantized checkpoint: stream the data through the float model, layer by layer, and round."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edgewright._version import __version__
from edgewright.calibration import Samples
from edgewright.checkpoint import Checkpoint
from edgewright.errors import CalibrationDataError, RecipeError
from edgewright.files import os_errors, require_space
from edgewright.formats import Array, BlockFormat
from edgewright.formats.cache import KVFormat
from edgewright.graph import Stage
from edgewright.graph.writer import layout_size, plan_layout
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Recipe
from edgewright.quantizer.layer import Outcome, quantize_segment
from edgewright.quantizer.plan import Group, KVTap, Plan, plan_of
from edgewright.quantizer.report import ModuleReport, report_from_json
from edgewright.quantizer.segments import Segment
from edgewright.quantizer.stream import FloatModel, Row, run_all
from edgewright.quantizer.work import FLOATS, Work

#: Inputs whose statistics are taken at once.
_THREADS = 2
#: Stages that a text model has.
STAGES = ("llm",)


@dataclass(frozen=True)
class Quantized:
    """A finished run: the work that holds its results, the plan, and the figures of every module."""

    work: Work
    plan: Plan
    reports: tuple[ModuleReport, ...]


def quantize(
    checkpoint: Checkpoint,
    source: Mapping[str, Any],
    recipe: Recipe,
    samples: Samples | None,
    *,
    progress: Progress = SILENT,
    threads: int | None = None,
) -> Quantized:
    """Quantize every module of a checkpoint as a recipe says; results are in the returned work.

    `source` is the record of the checkpoint's files. `samples` may be None when the recipe needs no data. What an
    interrupted run of the same inputs finished is taken up. Peak memory is a layer with its statistics, whatever the
    number of samples. Only one run at a time may make the same. Raises the package's errors; those about a weight or an
    input name the module.
    """
    recipe = recipe.for_stage("llm", STAGES)
    if recipe.needs_data and samples is None:
        raise RecipeError(f"The recipe {recipe.name} looks at activations: give it calibration data.")
    if samples is not None and not samples.rows:
        raise CalibrationDataError("The calibration set is empty: give at least one sequence of tokens.")
    longest = None if samples is None else max(len(row) for row in samples.rows)
    stage = float_stage(checkpoint, recipe, max_context=longest)
    plan = plan_of(stage, recipe)
    work = Work({"source": source["files"], "recipe": recipe.to_json(), **_data(samples), **versions()})
    try:
        if len(work.segments) < len(plan.segments):
            _run(stage, plan, recipe, samples, work, progress, threads)
        reports = [module["report"] for segment in work.segments for module in segment["modules"]]
        return Quantized(work, plan, tuple(report_from_json(report) for report in reports))
    except BaseException:
        work.close()  # what is finished stays
        raise


def _data(samples: Samples | None) -> dict[str, Any]:
    """Return what identifies the data: their record, and a digest of the very tokens."""
    if samples is None:
        return {}
    digest = hashlib.sha256()
    for row in samples.rows:
        digest.update(np.int64(len(row)).tobytes() + row.astype(np.int64).tobytes())
    return {"data": samples.record, "tokens": digest.hexdigest()}


def versions() -> dict[str, str]:
    """Return the versions of what computes the numbers: another one may round a sum otherwise."""
    return {"version": __version__, "numpy": np.__version__, "onnxruntime": version("onnxruntime")}


def float_stage(checkpoint: Checkpoint, recipe: Recipe, *, max_context: int | None) -> Stage:
    """Build the float stage, with everything turned that the recipe wants turned."""
    stage = build_llm(checkpoint, max_context=max_context)
    if recipe.transforms.rotation is not None:
        from edgewright.quantizer.rotation import rotate

        rotate(stage, recipe.transforms.rotation)
    return stage


def _run(
    stage: Stage,
    plan: Plan,
    recipe: Recipe,
    samples: Samples | None,
    work: Work,
    progress: Progress,
    threads: int | None,
) -> None:
    with ExitStack() as stack:
        model = stack.enter_context(float_model(stage, work, progress, threads))
        rows = [] if samples is None else samples.rows
        for segment in plan.segments[len(work.segments) :]:
            run_segment(Pass(model, plan, recipe, rows, work), segment, progress)


@contextmanager
def float_model(stage: Stage, work: Work, progress: Progress, threads: int | None) -> Iterator[FloatModel]:
    """Write a float stage into the work's folder for the block; the stage must not be used afterwards."""
    with ExitStack() as stack:
        stack.enter_context(os_errors("the calibration's work"))
        size = layout_size(plan_layout(stage))
        require_space(work.folder, size, "The model's float32 form")
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=FLOATS, dir=work.folder))
        with progress.step("float weights", size) as advance:
            model = FloatModel(stage, Path(folder), advance, threads)
        yield model


@dataclass(frozen=True)
class Pass:
    """What the segments of a stage are run with.

    `wanted` are outputs of the stage that stay in the work's spool behind its last segment, `read` values there that
    nobody wants any more then. `steps`: that many rows, one after the other, are the steps of one denoise loop, and
    ranges are kept of each step. `name` goes in front of titles.
    """

    model: FloatModel
    plan: Plan
    recipe: Recipe
    rows: Sequence[Row]
    work: Work
    wanted: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    steps: int = 0
    name: str = ""


def run_segment(run: Pass, segment: Segment, progress: Progress) -> None:
    """Look at one segment's inputs over all samples, quantize it, and keep what later segments read."""
    model, plan, recipe, rows, work = run.model, run.plan, run.recipe, run.rows, run.work
    groups, caches = plan.groups[segment.index], plan.caches[segment.index]
    last = segment.index == len(plan.segments) - 1
    read_later = {value for later in plan.segments[segment.index + 1 :] for value in later.fed} | {*run.wanted}
    gives = tuple(value for value in segment.gives if value in read_later)
    again = recipe.transforms.sequential and bool(groups) and bool(gives)
    seen = _Seen(groups, caches if recipe.kv is not None else (), recipe, run.steps)
    first = () if again else gives  # what is given on, where that doesn't wait for the rounded weights
    with progress.step(f"{run.name} {segment.title}".strip(), (1 + again) * len(rows)) as advance:
        if rows and (seen.values or first):
            for sample, values in run_all(model, segment, work.spool, rows, [*seen.values, *first]):
                seen.add(values, sample)
                _keep(work, first, sample, values)
                advance(1)
        outcome = quantize_segment(groups, seen.moments, model.weight, recipe.transforms, work.parts)
        if again and rows:
            with _in_use(model, outcome):
                for sample, values in run_all(model, segment, work.spool, rows, gives):
                    _keep(work, gives, sample, values)
                    advance(1)
    done_with = [value for value in segment.fed if value not in read_later]
    work.finish(
        outcome,
        seen.cache_scales(recipe.kv, outcome.rows),
        [*done_with, *(run.read if last else ())],
        seen.ranges() if run.steps else None,
    )


def _keep(work: Work, names: Sequence[str], sample: int, values: Mapping[str, Array]) -> None:
    for name in names:
        work.spool.write(name, sample, values[name])


class _Seen:
    """The statistics of one segment while the samples pass."""

    def __init__(self, groups: Sequence[Group], caches: Sequence[KVTap], recipe: Recipe, steps: int = 0) -> None:
        self.moments: dict[str, Moments] = {}
        self._groups, self._steps = groups, steps
        #: The smallest and the largest number of every step, float64 `[steps, 2]`, by value.
        self._ranges: dict[str, Array] = {}
        for group in groups:
            target = group.targets[0]
            if target.op == "Embedding" or target.inner:
                continue
            if recipe.needs_data:
                # Ranges that need a histogram may be wanted of inputs that are scaled first.
                ranges = [t.choice.inputs for t in group.targets if t.choice.inputs.format is not None]
                counted = any(r.format is not None and r.format.static and r.range.name != "minmax" for r in ranges)
                self.moments[group.value] = Moments(
                    _title(group), target.shape[1], keep_columns=counted, keep_histogram=counted
                )
        #: The largest magnitudes of keys and values by column, float32 `[kv_heads, size]` once there are any.
        self._caches: dict[KVTap, dict[str, Array]] = {tap: {} for tap in caches}

    @property
    def values(self) -> list[str]:
        """The values to be looked at."""
        return [*self.moments, *(name for tap in self._caches for name in (tap.key, tap.value))]

    def add(self, values: Mapping[str, Array], sample: int) -> None:
        """Look at one sample."""
        for name in self.moments if self._steps else ():
            ranges = self._ranges.setdefault(name, np.tile([np.inf, -np.inf], (self._steps, 1)))
            low, high = ranges[sample % self._steps]
            ranges[sample % self._steps] = min(low, values[name].min()), max(high, values[name].max())
        # NumPy leaves the interpreter while it computes, and each input has statistics of its own.
        with ThreadPoolExecutor(_THREADS) as pool:
            waiting = [
                pool.submit(moments.add, values[name].reshape(-1, moments.width))
                for name, moments in self.moments.items()
            ]
            for future in waiting:
                future.result()
        for tap, largest in self._caches.items():
            for side, name in (("keys", tap.key), ("values", tap.value)):
                columns = np.abs(values[name].reshape(-1, tap.kv_heads, values[name].shape[-1] // tap.kv_heads))
                found = columns.max(axis=0)
                largest[side] = np.maximum(largest[side], found) if side in largest else found

    def ranges(self) -> dict[str, list[list[float]]]:
        """Return the smallest and the largest input of every step, by module."""
        return {
            target.module: [[float(np.float32(end)) for end in step] for step in self._ranges[group.value]]
            for group in self._groups
            if group.value in self._ranges
            for target in group.targets
        }

    def cache_scales(self, fmt: KVFormat | None, folded: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
        """Return the scales of keys and values by attention module.

        `folded` are factors by the weight whose rows took them: the values come multiplied by them from now on.
        """
        if fmt is None:
            return {}
        top = np.float32(127 if fmt.dtype == "int8" else 448)
        result = {}
        for tap, largest in self._caches.items():
            nothing = np.zeros((tap.kv_heads, 1), np.float32)
            keys, columns = largest.get("keys", nothing), largest.get("values", nothing)
            if tap.rows is not None and tap.rows in folded:
                columns = columns * folded[tap.rows].reshape(columns.shape)
            heads = [side.max(axis=1) for side in (keys, columns)]
            kept = [side if fmt.per == "head" else side.max(keepdims=True) for side in heads]
            for side, name in zip(kept, ("keys", "values"), strict=True):
                if not (np.isfinite(side).all() and (side > 0).all()):
                    raise CalibrationDataError(
                        f"The {name} of {tap.module} were zero or not finite on the calibration data, so their cache "
                        "has no scale: calibrate on other data, or keep the cache in float32."
                    )
            result[tap.module] = (kept[0] / top, kept[1] / top)
        return result


def _title(group: Group) -> str:
    return group.targets[0].module if len(group.targets) == 1 else ", ".join(t.module for t in group.targets)


@contextmanager
def _in_use(model: FloatModel, outcome: Outcome) -> Iterator[None]:
    """Let the float model compute with what was rounded; a weight that another segment reads as well comes back.

    Inputs stay floats in it, and a linear without a bias doesn't get the one that a correction made: what later layers
    are calibrated on has these two errors not taken in.
    """
    changes = {name: values for name, values in outcome.changed.items() if model.holds(name)}
    tied: list[str] = []
    for done in outcome.modules:
        if isinstance(done.format, BlockFormat) and done.parts:
            values = done.format.decode(done.parts, done.target.shape[1])
            if done.input is not None and done.input.multiply is not None:
                values = values * done.input.multiply
            changes[done.target.weight] = values
            tied += [done.target.weight] if done.target.tied else []
    before = {name: model.weight(name) for name in tied}
    for name, values in changes.items():
        model.set_weight(name, values)
    yield
    for name, values in before.items():
        model.set_weight(name, values)


__all__ = ["STAGES", "Pass", "Quantized", "float_model", "quantize", "run_segment", "versions"]
