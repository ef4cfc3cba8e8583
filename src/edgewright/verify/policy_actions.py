"""Levels `stages`, `features` and `actions`: what a policy's engines compute against float32 stages."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.errors import EdgewrightError, GenerationError, TokenizerError
from edgewright.files import inside
from edgewright.graph import Stage
from edgewright.graph.features import FEATURES
from edgewright.progress import Progress
from edgewright.runtime.embedding import embedding_of
from edgewright.runtime.engine import Engine
from edgewright.runtime.policy.loop import Features, Loop
from edgewright.runtime.policy.numbers import robot_actions
from edgewright.runtime.policy.observation import Prepared, prepare
from edgewright.runtime.policy.prompt import load_tokenizer
from edgewright.runtime.policy.schedule import FixedSchedule
from edgewright.runtime.policy.stages import STAGES
from edgewright.runtime.policy.table import TableStage
from edgewright.verify.memory import Memory
from edgewright.verify.policy_cache import SATURATED, CodedStage, PrefixCodes
from edgewright.verify.policy_inputs import noise_of, seeded_steps, synthetic
from edgewright.verify.policy_reference import Call, FloatStage, SharedStage, Slot, run_once
from edgewright.verify.policy_report import EXACT, Array, Bound, Gap, GapsReport, gap
from edgewright.verify.report import Level
from edgewright.verify.running import load_policy, open_stage

#: Which stages a feature changes; those that aren't named leave the graphs alone.
_CHANGED: Mapping[str, tuple[str, ...]] = {
    "time-table": ("denoise",),
    "kv-only": ("prefix",),
    "kv-transposed": ("prefix", "denoise"),
    "cross-once": ("prefix", "denoise"),
    "fused-projections": STAGES,
    "norm-folding": STAGES,
    "loop": ("denoise",),
}
#: Of how many seeded observations; a model whose float stages take more than the bytes below is given one.
_COUNT, _LARGE = 4, 2_000_000_000
#: What is computed with besides the weights: the kernels' copies of some, activations.
_OVERHEAD = 1.25
_GB = 1e9


def changed_by(features: Iterable[str]) -> set[str]:
    """Return the stages that any of the features changes."""
    return {stage for name in features for stage in _CHANGED.get(name, ())}


MakeStages = Callable[[Mapping[str, Any]], dict[str, Stage]]


class PolicyLevels:
    """Runs the reference once and everything that is compared with it."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        checkpoint: PolicyCheckpoint,
        make: MakeStages,
        bound: Bound,
        codes: PrefixCodes | None,
        scratch: Path,
        memory: Memory,
        threads: int | None,
        progress: Progress,
    ) -> None:
        self._root, self._manifest, self._checkpoint = root, manifest, checkpoint
        self._make, self._bound, self._codes, self._scratch = make, bound, codes, scratch
        self._memory, self._threads, self._progress = memory, threads, progress
        self._spec, self._statistics = checkpoint.spec, checkpoint.statistics

    def levels(self, observations: Sequence[Mapping[str, Any]] | None, contract: Mapping[str, Any]) -> dict[str, Level]:
        """Return the levels; the reference has the features `contract`, so that its stages fit the bundle's."""
        plain = {name: feature.values[1] for name, feature in FEATURES.items() if feature.values == (True, False)}
        off = {**plain, "loop": "step"}
        stages = self._floats({**off, **contract}, "reference")
        needed = {name: stage.nbytes * _OVERHEAD for name, stage in stages.items()}
        too_large = {name: size for name, size in needed.items() if not self._memory.holds(size)}
        count = _COUNT if sum(needed.values()) < _LARGE else 1
        seen = list(observations) if observations else synthetic(self._spec, self._statistics, count)
        if too_large:
            return self._some(stages, too_large, seen)
        with self._progress.step("float32 reference", sum(s.nbytes for s in stages.values())) as advance:
            slot = Slot(self._threads, advance, calls={})
            prepared = self._prepared(seen)
            noise = noise_of(self._spec, len(prepared))
            wanted = self._flow(stages, slot, prepared, noise)
            calls = slot.calls or {}
            slot.close()
        with self._progress.step("compare stages"):
            found: dict[str, Level] = {"stages": self._stages(calls, wanted)}
        with self._progress.step("compare features"):
            found["features"] = self._features(off, contract, stages, prepared, noise)
        with self._progress.step("compare actions"):
            found["actions"] = self._actions(seen, prepared, noise, wanted)
        return found

    def _some(
        self, stages: Mapping[str, FloatStage], too_large: Mapping[str, float], seen: Sequence[Mapping[str, Any]]
    ) -> dict[str, Level]:
        """Compare the stages that fit into memory, denoise on a seeded prefix; say what is not checked."""
        most = max(too_large.values())
        words: tuple[str, ...] = (
            f"not checked here: needs {most / _GB:.3g} GB of memory for the float32 {' and '.join(too_large)}",
        )
        with self._progress.step("run the bundle"):
            ran = self._ran(seen[0])
        unseen = {"features": GapsReport(self._bound, {}, words), "actions": GapsReport(self._bound, ran, words)}
        gaps: dict[str, Gap] = {}
        with self._progress.step("compare stages") as advance:
            for name in ("vision", "denoise"):
                if name == "denoise" and self._manifest.model["features"].get("loop", "step") != "step":
                    words = (*words, "denoise is not checked here: its whole loop needs the prefix")
                elif name not in too_large:
                    slot = Slot(self._threads, advance)
                    calls = self._alone(name, stages[name], slot, seen)
                    slot.close()
                    engine = self._engine(name)
                    gaps |= _one(engine, calls) if name == "vision" else self._denoise(engine, calls, None)
                    del engine, calls  # before the next ones are made
                    self._remove("reference")
        return {"stages": GapsReport(self._bound, gaps, words), **unseen}

    def _ran(self, seen: Mapping[str, Any]) -> dict[str, Gap]:
        """Run the bundle as a robot would, once; returns an infinite gap where it doesn't, or gives no actions."""
        broken = Gap(float("inf"), 0.0, float("inf"))
        try:
            actions = load_policy(self._root, self._threads)[0].infer(seen).actions
        except EdgewrightError as error:
            return {f"the bundle does not run: {error}": broken}
        if actions.shape != (self._spec.horizon, self._spec.action_dim) or not np.isfinite(actions).all():
            return {"the bundle's actions are not finite, or of another shape": broken}
        return {}

    def _remove(self, name: str) -> None:
        """Delete what was written of stages that are not needed any more."""
        shutil.rmtree(self._scratch / name, ignore_errors=True)

    def _alone(self, name: str, stage: FloatStage, slot: Slot, seen: Sequence[Mapping[str, Any]]) -> list[Call]:
        """Run a float stage by itself, on the images of the observations or on a seeded prefix."""
        if name == "vision":
            images = np.concatenate([one.images for one in self._prepared(seen)])
            inputs = [{"images": images}]
            shape: tuple[int, ...] = (len(images), self._spec.image_tokens, self._width(stage))
        else:
            inputs = seeded_steps(stage.stage.contract, self._spec)
            if self._codes is not None:
                inputs = [self._codes.within(one) for one in inputs]
            shape = inputs[0]["x_t"].shape
        run = SharedStage(name, stage, slot)
        (output,) = stage.stage.contract.outputs
        return [Call(given, run_once(run, given, {output.name: shape})) for given in inputs]

    def _width(self, stage: FloatStage) -> int:
        width = stage.stage.contract.outputs[0].shape[-1]
        assert isinstance(width, int)
        return width

    def _floats(self, features: Mapping[str, Any], name: str, dialect: str = "portable") -> dict[str, FloatStage]:
        return {
            stage: FloatStage(graph, self._scratch / name / stage, dialect)
            for stage, graph in self._make(features).items()
        }

    def _prepared(self, seen: Sequence[Mapping[str, Any]]) -> list[Prepared]:
        try:
            data = self._checkpoint.sidecars()[self._spec.tokenizer]
            path = self._scratch / self._spec.tokenizer
            path.write_bytes(data)
        except TokenizerError:  # level `spec` says so
            path = inside(self._root, f"sidecars/{self._spec.tokenizer}")
        tokenizer = load_tokenizer(self._spec, path)
        return [prepare(self._spec, self._statistics, tokenizer, one) for one in seen]

    def _flow(
        self,
        stages: Mapping[str, FloatStage],
        slot: Slot,
        prepared: Sequence[Prepared],
        noise: Array,
        features: Features | None = None,
    ) -> Array:
        """Run the flow from noise to actions as the checkpoint's spec says it."""
        runs: dict[str, Engine] = {name: SharedStage(name, stages[name], slot) for name in STAGES}
        fed = features or Features(compact=False)
        schedule = None
        if fed.table or fed.whole:
            schedule = FixedSchedule.of(self._spec.schedule, self._spec.steps, zero_row=not fed.whole)
        return Loop(self._spec, runs, fed, schedule).run(prepared, noise).actions

    def _engine(self, name: str) -> Engine:
        stage, _ = open_stage(self._root, self._manifest, name, self._threads)
        table = embedding_of(self._root, self._manifest, "prefix") if name == "prefix" else None
        stage = stage if table is None else TableStage(stage, table)
        return stage if self._codes is None or name == "vision" else CodedStage(stage, self._codes)

    def _stages(self, calls: Mapping[str, Sequence[Call]], wanted: Array) -> GapsReport:
        """Compare each engine on the reference's own inputs."""
        gaps: dict[str, Gap] = {}
        engine: Engine | None = None
        for name in STAGES:
            try:
                engine = self._engine(name)
                gaps |= self._denoise(engine, calls[name], wanted) if name == "denoise" else _one(engine, calls[name])
            except (GenerationError, EdgewrightError) as error:
                gaps[f"{name}: {error}"] = Gap(float("inf"), 0.0, float("inf"))
            engine = None  # one at a time
        return self._handed_over(calls["prefix"], gaps)

    def _handed_over(self, calls: Sequence[Call], gaps: dict[str, Gap]) -> GapsReport:
        """Return the level; of codes whole tensors count, and how many numbers are beyond the largest code."""
        if self._codes is None:
            return GapsReport(self._bound, gaps)
        given = {name: values for call in calls for name, values in call.outputs.items() if name in self._codes.scales}
        shares = {name: self._codes.saturated(name, values) for name, values in given.items()}
        for name, share in shares.items():
            if share > SATURATED:
                words = f"{name}: {share:.1%} of its numbers are beyond the largest code, more than {SATURATED:.0%}"
                gaps[words] = Gap(float("inf"), 0.0, float("inf"))
        apart = dict.fromkeys(given, dataclasses.replace(self._bound, max_error=None))
        figures = {name: float(f"{share:.4g}") for name, share in shares.items()}
        return GapsReport(self._bound, gaps, more={"saturated": figures}, apart=apart)

    def _denoise(self, engine: Engine, calls: Sequence[Call], wanted: Array | None) -> dict[str, Gap]:
        """Compare the velocity at the first, a middle and the last time, or the whole loop's actions."""
        taken = {tensor.name for tensor in engine.contract.inputs}
        if "noise" in taken and wanted is not None:
            given = {**calls[0].inputs, "noise": calls[0].inputs["x_t"]}
            made = run_once(engine, {n: given[n] for n in taken}, {"actions": wanted.shape})
            return {"actions of the loop": gap(made["actions"], wanted)}
        gaps = {}
        for step in sorted({0, len(calls) // 2, len(calls) - 1}):
            given = dict(calls[step].inputs)
            if "time_index" in taken:
                given["time_index"] = np.full(given["time_embedding"].shape[:2], step, np.int64)
            velocity = calls[step].outputs["velocity"]
            made = run_once(engine, {n: given[n] for n in taken}, {"velocity": velocity.shape})
            gaps[f"velocity of step {step}"] = gap(made["velocity"], velocity)
        return gaps

    def _features(
        self,
        off: Mapping[str, Any],
        contract: Mapping[str, Any],
        reference: Mapping[str, FloatStage],
        prepared: Sequence[Prepared],
        noise: Array,
    ) -> GapsReport:
        """Compare the actions with one rewrite at a time against those of the graphs without any.

        Stages of the reference that the features `contract` don't change are taken as they are.
        """
        slot = Slot(self._threads, lambda _: None)  # one for all, so that one engine is loaded at a time
        other = changed_by(name for name, value in contract.items() if value != off[name])
        made = self._floats(off, "plain")
        plain = {name: made[name] if name in other else stage for name, stage in reference.items()}
        wanted = self._flow(plain, slot, prepared, noise)
        gaps: dict[str, Gap] = {}
        for name, value in self._manifest.model["features"].items():
            feature = FEATURES[name]
            if value == off[name]:
                continue
            needed = feature.requires.get(value, {})
            on = {**off, **needed, name: value}
            stages = dict(plain)
            if changed := changed_by((name, *needed)):
                dialect = "onnxruntime" if name == "fused-projections" else "portable"
                made = self._floats(on, name, dialect)
                stages |= {stage: made[stage] for stage in changed}
            fed = Features(
                compact=on["prefix-compaction"] is True,
                batched=on["view-batching"] is True,
                table=on["time-table"] is True,
                whole=on["loop"] != "step",
            )
            gaps[name] = gap(self._flow(stages, slot, prepared, noise, fed), wanted)
            slot.close()  # which has the files below open
            self._remove(name)
        self._remove("plain")
        self._remove("reference")
        return GapsReport(EXACT, gaps)

    def _actions(
        self, seen: Sequence[Mapping[str, Any]], prepared: Sequence[Prepared], noise: Array, wanted: Array
    ) -> GapsReport:
        """Compare the actions of the bundle, one observation at a time, normalized and in the robot's units."""
        size = self._spec.action_dim
        theirs = wanted[..., :size]
        real = np.stack(
            [robot_actions(self._spec, self._statistics, w, p.raw_state) for w, p in zip(wanted, prepared, strict=True)]
        )
        try:
            policy, unchecked = load_policy(self._root, self._threads)
            chunks = [policy.infer(one, start) for one, start in zip(seen, noise, strict=True)]
        except EdgewrightError as error:
            broken = Gap(float("inf"), 0.0, float("inf"))
            return GapsReport(self._bound, {f"the bundle does not run: {error}": broken})
        mine = np.stack([chunk.normalized[:, :size] for chunk in chunks])
        given = np.stack([chunk.actions for chunk in chunks])
        gaps = {"normalized": gap(mine, theirs), "real units": _per_range(given, real)}
        return GapsReport(self._bound, gaps, unchecked, more={"dimensions": _dimensions(mine, theirs, given, real)})


def _one(engine: Engine, calls: Sequence[Call]) -> dict[str, Gap]:
    """Compare all outputs of a stage's only call."""
    (call,) = calls
    taken = [tensor.name for tensor in engine.contract.inputs]
    made = run_once(engine, {n: call.inputs[n] for n in taken}, {n: a.shape for n, a in call.outputs.items()})
    return {name: gap(made[name], wanted) for name, wanted in call.outputs.items()}


def _per_range(given: Array, wanted: Array) -> Gap:
    """Compare actions in the robot's units, each dimension in units of its largest magnitude."""
    scale = np.maximum(np.abs(wanted).max(axis=(0, 1)), 1e-30)
    return gap(given / scale, wanted / scale)


def _dimensions(mine: Array, theirs: Array, given: Array, real: Array) -> list[dict[str, Any]]:
    """Return cosine, largest absolute and root mean square error of each action dimension, normalized and real."""
    return [
        {
            "dimension": dim,
            "normalized": _figures(mine[..., dim], theirs[..., dim]),
            "real": _figures(given[..., dim], real[..., dim]),
        }
        for dim in range(mine.shape[-1])
    ]


def _figures(given: Array, wanted: Array) -> dict[str, float | None]:
    found = gap(given, wanted)
    difference = given.astype(np.float64) - wanted.astype(np.float64)
    figures = {
        "cosine": found.cosine,
        "max_abs": np.abs(difference).max(),
        "rmse": np.sqrt(np.square(difference).mean()),
    }
    return {name: float(f"{v:.4g}") if np.isfinite(v) else None for name, v in figures.items()}
