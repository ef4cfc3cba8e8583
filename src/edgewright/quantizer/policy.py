"""From a robot policy to a quantized one: stage by stage, over the complete denoise loop of every observation.

The float policy runs as on the robot, without padding, so that no masked token is in any statistic: vision and prefix
segment by segment, like a language model, and what they give is what the next stage is calibrated on. Of the denoise
stage the loop runs first, from seeded noise to actions; each of its steps is then a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.errors import RecipeError
from edgewright.formats import Array
from edgewright.formats.cache import KVFormat
from edgewright.graph import Stage, Weight
from edgewright.models._policy import PolicyBounds, build_policy
from edgewright.models._policy_bounds import bounds_of_spec
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import quantizable
from edgewright.quant.recipe import Recipe
from edgewright.quantizer.driver import Pass, float_model, run_segment, versions
from edgewright.quantizer.plan import Plan, check_smoothing, plan_of
from edgewright.quantizer.policy_observations import Observations
from edgewright.quantizer.report import ModuleReport, report_from_json
from edgewright.quantizer.stream import FloatModel, Spool
from edgewright.quantizer.work import Work
from edgewright.quiet_ort import ort
from edgewright.runtime.policy.schedule import step_size, time_embedding, times
from edgewright.runtime.policy.stages import STAGES
from edgewright.verify.graphs import run

_FEATURES = "image_features"


@dataclass(frozen=True)
class Stages:
    """A policy's float stages by name, and the plan of each."""

    stages: Mapping[str, Stage]
    plans: Mapping[str, Plan]
    recipes: Mapping[str, Recipe]

    @property
    def weights(self) -> dict[str, Weight]:
        """The parameters of all stages by name."""
        return {name: weight for stage in self.stages.values() for name, weight in stage.weights.items()}


def plan_policy(checkpoint: PolicyCheckpoint, recipe: Recipe) -> Stages:
    """Build the float stages of a policy and resolve a recipe for them; raises RecipeError where it doesn't fit."""
    _check(recipe)
    stages = float_stages(checkpoint, bounds_of_spec(checkpoint.spec, 1))
    choices = recipe.stage_choices(
        {name: [(use.module, use.kind) for use in quantizable(stage)] for name, stage in stages.items()}
    )
    recipes = {name: recipe.for_stage(name, STAGES) for name in STAGES}
    plans = {name: plan_of(stage, recipes[name], choices[name], wanted_of(stage)) for name, stage in stages.items()}
    smoothed = {id(inner): inner for inner in recipes.values()}
    for inner in smoothed.values():
        check_smoothing([plans[name] for name in STAGES if recipes[name] is inner], inner)
    kv = prefix_format(recipe)
    return Stages(stages, plans, {name: replace(inner, kv=kv) for name, inner in recipes.items()})


def prefix_format(recipe: Recipe) -> KVFormat | None:
    """Return the format that a recipe gives the prefix KV; None for float32."""
    return recipe.for_stage("prefix", STAGES).kv


def float_stages(checkpoint: PolicyCheckpoint, bounds: PolicyBounds) -> dict[str, Stage]:
    """Build the float stages with everything in them that any feature may want: the last layer as a whole."""
    return build_policy(checkpoint, kv_only=False, bounds=bounds)


def wanted_of(stage: Stage) -> tuple[str, ...]:
    """Return the outputs of a stage that the next one reads."""
    names = [str(value.name) for value in stage.graph.outputs]
    return tuple(name for name in names if name == _FEATURES or name.startswith(("prefix_key.", "prefix_value.")))


def _check(recipe: Recipe) -> None:
    """Refuse what no policy has a place for."""
    for name in STAGES:
        inner = recipe.for_stage(name, STAGES)
        if inner.transforms.rotation is not None:
            raise RecipeError(
                f"{inner.lines.get('transforms', inner.name)}: rotation {inner.transforms.rotation} is for language "
                "models alone, a policy's expert reads the keys and values as they are: leave rotation out."
            )
        if name != "prefix" and inner.kv != recipe.kv:
            raise RecipeError(
                f"{inner.lines.get('kv', inner.name)}: a policy has one set of keys and values, which the prefix "
                f"makes: move 'kv' out of the stage {name}, to the top or to the stage prefix."
            )
        if inner is not recipe and inner.data != recipe.data:
            raise RecipeError(
                f"{inner.lines.get('calibration', inner.name)}: all stages are calibrated on the same observations, "
                f"in one run of the loop: move 'calibration' out of the stage {name} to the top."
            )


def quantize_policy(
    checkpoint: PolicyCheckpoint,
    source: Mapping[str, Any],
    recipe: Recipe,
    observations: Observations | None,
    *,
    progress: Progress = SILENT,
    threads: int | None = None,
) -> PolicyQuantized:
    """Quantize every module of a policy as a recipe says; results are in the returned work.

    As `driver.quantize` of a language model: resumable, the same bytes every time, peak memory a layer with its
    statistics (or the denoise stage, while the loop runs). `observations` may be None when the recipe needs no data.
    """
    planned = plan_policy(checkpoint, recipe)
    if recipe.needs_data and observations is None:
        raise RecipeError(f"The recipe {recipe.name} looks at activations: give it calibration data.")
    data = {} if observations is None else {"data": observations.record, "samples": observations.digest}
    spec = {**checkpoint.spec.to_json(), "limits": None}
    sizes = asdict(checkpoint.sizes)
    work = Work(
        {"source": source["files"], "policy": spec, "sizes": sizes, "recipe": recipe.to_json(), **data, **versions()}
    )
    weights = planned.weights
    try:
        before = 0
        for name, plan in planned.plans.items():
            if before <= len(work.segments) < before + len(plan.segments):
                _Run(checkpoint, planned, work, observations, progress, threads).stage(name, before)
            before += len(plan.segments)
        reports = [module["report"] for segment in work.segments for module in segment["modules"]]
        return PolicyQuantized(work, tuple(report_from_json(report) for report in reports), weights)
    except BaseException:
        work.close()  # what is finished stays
        raise


@dataclass(frozen=True)
class PolicyQuantized:
    """A finished run: the work that holds its results, the figures of every module, the float parameters by name."""

    work: Work
    reports: tuple[ModuleReport, ...]
    weights: Mapping[str, Weight]

    @property
    def ranges(self) -> dict[str, Any]:
        """The smallest and the largest input of the denoise stage's modules, step by step."""
        found: dict[str, Any] = {}
        for segment in self.work.segments:
            found |= segment.get("ranges", {})
        return found


@dataclass(frozen=True)
class _Run:
    """One stage after the other, each from what the spool has of the one before."""

    checkpoint: PolicyCheckpoint
    planned: Stages
    work: Work
    observations: Observations | None
    progress: Progress
    threads: int | None

    def stage(self, name: str, before: int) -> None:
        """Run the segments of a stage that are left; `before` is how many those of other stages are."""
        plan, left = self.planned.plans[name], len(self.work.segments) - before
        stage = self.planned.stages[name]
        inputs, wanted = [tensor.name for tensor in stage.contract.inputs], wanted_of(stage)
        if self.observations is not None and name == "vision" and not left:
            self._see(self.observations)
        with ExitStack() as stack:
            model = stack.enter_context(float_model(stage, self.work, self.progress, self.threads))
            rows: Sequence[Mapping[str, Array]] = []
            if self.observations is not None:
                rows = self._rows(name, inputs, model, loop=not left)
            read = ("images",) if name == "vision" else (_FEATURES, "token_ids") if name == "prefix" else tuple(inputs)
            steps = self.checkpoint.spec.steps if name == "denoise" and rows else 0
            made = Pass(model, plan, self.planned.recipes[name], rows, self.work, wanted, read, steps, name)
            for segment in plan.segments[left:]:
                run_segment(made, segment, self.progress)

    def _see(self, observations: Observations) -> None:
        """Put what the observations give the stages into the spool."""
        spool, sizes = self.work.spool, self.checkpoint.sizes
        state_tokens = int(self.checkpoint.kind == "smolvla")
        with self.progress.step("observations", observations.count) as advance:
            for sample, one in enumerate(observations):
                slots = len(one.images) * self.checkpoint.spec.image_tokens
                spool.write("images", sample, one.images)
                spool.write("token_ids", sample, one.token_ids[None].astype(np.int64))
                length = slots + len(one.token_ids) + state_tokens
                spool.write("prefix_mask", sample, np.ones((1, length), np.int64))
                if sizes.state_dim:
                    spool.write("state", sample, one.state[None].astype(np.float32))
                advance(1)

    def _rows(
        self, name: str, inputs: Sequence[str], model: FloatModel, *, loop: bool
    ) -> Sequence[Mapping[str, Array]]:
        """Return the samples of a stage; with `loop` the denoise loop runs first."""
        spool, observations, spec = self.work.spool, self.observations, self.checkpoint.spec
        assert observations is not None
        count = observations.count
        if name != "denoise":
            made = {key: _reader(spool, key) for key in inputs}
            if _FEATURES in made:
                made[_FEATURES] = lambda row: _as_slots(spool.read(_FEATURES, row))
            return Rows(count, made)
        given = {key: _reader(spool, key, spec.steps) for key in inputs if key not in ("x_t", "time_embedding")}
        embedded = time_embedding(times(spec.schedule, spec.steps), self.checkpoint.sizes.expert.width)
        given["time_embedding"] = lambda row: embedded[row % spec.steps][None, None]
        given["x_t"] = _reader(spool, "x_t")
        rows = Rows(count * spec.steps, given)
        if loop:
            self._loop(model.whole(), rows, observations)
        return rows

    def _loop(self, session: ort.InferenceSession, rows: Rows, observations: Observations) -> None:
        """Run the denoise loop of every observation; the spool gets the actions before each step."""
        spool, spec, steps = self.work.spool, self.checkpoint.spec, self.checkpoint.spec.steps
        with self.progress.step("denoise loop", len(rows)) as advance:
            for sample in range(observations.count):
                x_t = noise(observations.seed, sample, (1, spec.horizon, spec.model_action_dim))
                for step in range(steps):
                    row = sample * steps + step
                    spool.write("x_t", row, x_t)
                    x_t = x_t + step_size(steps) * run(session, rows[row])["velocity"]
                    advance(1)


def noise(seed: int, sample: int, shape: tuple[int, ...]) -> Array:
    """Return the noise that the loop of one calibration sample begins with, float32."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, sample]))
    values: Array = generator.standard_normal(shape, dtype=np.float32)
    return values


def _as_slots(features: Array) -> Array:
    """Return the features of all views of one observation as they stand in its prefix."""
    return features.reshape(1, -1, features.shape[-1])


def _reader(spool: Spool, name: str, steps: int = 1) -> Callable[[int], Array]:
    return lambda row: spool.read(name, row // steps)


class Rows(Sequence[Mapping[str, Array]]):
    """Samples of a stage, whose inputs are read when somebody asks for them."""

    def __init__(self, count: int, readers: Mapping[str, Callable[[int], Array]]) -> None:
        self._count, self._readers = count, readers

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Mapping[str, Array]:  # type: ignore[override]
        if not 0 <= row < self._count:
            raise IndexError(row)
        return _Feeds(self._readers, row)


class _Feeds(Mapping[str, Array]):
    def __init__(self, readers: Mapping[str, Callable[[int], Array]], row: int) -> None:
        self._readers, self._row = readers, row

    def __getitem__(self, name: str) -> Array:
        return self._readers[name](self._row)

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)
