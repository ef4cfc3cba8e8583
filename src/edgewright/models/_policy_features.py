"""Applies the named features of a policy to its stages: the rewrites that change weights, before quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edgewright.errors import UsageError
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.features import Value, resolve_features, spelled
from edgewright.graph.flow import input_named, reached_from
from edgewright.graph.norm_folding import fold_norms
from edgewright.graph.step_loop import StepLoop
from edgewright.graph.time_table import TIME_EMBEDDING, tabulate_time
from edgewright.models._policy import PolicyBounds, PolicyWeights, build_policy
from edgewright.runtime.policy.schedule import FixedSchedule, check_steps, time_embedding
from edgewright.runtime.policy.spec import Schedule

#: Beyond this a loop is better counted than written out.
MAX_UNROLLED = 50


class FlowSpec(Protocol):
    """What the features need of a policy's spec."""

    @property
    def kind(self) -> str: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def steps(self) -> int: ...


@dataclass(frozen=True)
class Featured:
    """What was done: the value of every feature, the schedule that the denoise stage has inside, or None, and notes.

    `features` and `schedule` are what the manifest has under these names. `tabled` are the modules whose linears became
    a table: a recipe can't give their weights a format.
    """

    features: dict[str, Value]
    schedule: dict[str, Any] | None
    notes: list[str]
    tabled: tuple[str, ...]


def build_options(features: Mapping[str, Value], kind: str) -> dict[str, bool]:
    """Return what `build_policy` must be told for the features; raises UsageError as `resolve_features` does."""
    found = resolve_features(features, kind)
    return {option: bool(found[option.replace("_", "-")]) for option in ("kv_only", "kv_transposed", "cross_once")}


def build_featured(
    source: PolicyWeights, spec: FlowSpec, features: Mapping[str, Value], *, bounds: PolicyBounds | None = None
) -> tuple[dict[str, Stage], Featured]:
    """Build the stages of a checkpoint with features; raises what `build_policy` and `apply_features` raise."""
    stages = build_policy(source, **build_options(features, spec.kind), bounds=bounds)
    return stages, apply_features(stages, spec, features)


def apply_features(stages: Mapping[str, Stage], spec: FlowSpec, features: Mapping[str, Value]) -> Featured:
    """Apply features to stages that `build_policy` made with `build_options`, in place; before quantization.

    Fused projections and the loop are asked for here and done by the lowering, which sees the formats of the weights.
    Raises UsageError for features that don't go together or don't fit the policy, or that the stages were not built
    with.
    """
    found = resolve_features(features, spec.kind)
    _check_built(stages, found)
    notes: list[str] = []
    for name, stage in stages.items():
        stage.fuse_linears = bool(found["fused-projections"])
        if found["norm-folding"]:
            folded, left = fold_norms(stage)
            notes.append(f"norm-folding: {name} has {folded} norms folded, and {left} left as they are")
    schedule: dict[str, Any] | None = None
    tabled: tuple[str, ...] = ()
    if found["time-table"]:
        schedule, tabled = _tabulate(stages["denoise"], spec, notes, loop=found["loop"] != "step")
    if found["loop"] != "step":
        _loop(stages["denoise"], spec, unrolled=found["loop"] == "unrolled")
    return Featured(found, schedule, notes, tabled)


def _tabulate(stage: Stage, spec: FlowSpec, notes: list[str], *, loop: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Give the denoise stage its table; the whole loop keeps no committed actions, which time 0 is for."""
    schedule = FixedSchedule.of(spec.schedule, check_steps(spec.steps), zero_row=not loop)
    times = [*schedule.times] + ([0.0] if schedule.zero_row is not None else [])
    shape = input_named(stage.graph, TIME_EMBEDDING).shape
    assert shape is not None
    done = tabulate_time(stage, time_embedding(np.array(times, np.float32), int(shape[-1])))  # type: ignore[arg-type]
    notes.append(
        f"time-table: {len(done.modules)} linears that read the time alone, {done.weight_bytes:,} bytes of weights as "
        f"float32, became {done.table_bytes:,} bytes for {schedule.steps} steps by {schedule.convention}, computed "
        "from the float weights; a recipe doesn't touch them"
    )
    return schedule.to_json(), done.modules


def _loop(stage: Stage, spec: FlowSpec, *, unrolled: bool) -> None:
    if unrolled and spec.steps > MAX_UNROLLED:
        raise UsageError(
            f"{spelled('loop', 'unrolled')} would write {spec.steps} steps into the graph, more than {MAX_UNROLLED}: "
            f"use {spelled('loop', 'graph')}, or fewer steps."
        )
    stage.loop = StepLoop(spec.steps, unrolled=unrolled)


def _check_built(stages: Mapping[str, Stage], features: Mapping[str, Value]) -> None:
    """Refuse stages that were built with other features than those which are to be recorded."""
    prefix, denoise = stages["prefix"], stages["denoise"]
    key = next(tensor for tensor in prefix.contract.outputs if tensor.name == "prefix_key.0")
    built = {
        "kv-only": all(tensor.name != "prefix_hidden" for tensor in prefix.contract.outputs),
        "kv-transposed": key.shape[-1] == "prefix",
    }
    once = any(".lm_expert." in name for name in prefix.weights)
    if once or _reads_prefix_across(denoise):
        built["cross-once"] = once
    for name, value in built.items():
        if features[name] != value:
            raise UsageError(
                f"The stages were built with {spelled(name, value)} and can't be given "
                f"{spelled(name, features[name])} afterwards: build them with build_options."
            )


def _reads_prefix_across(denoise: Stage) -> bool:
    """Tell whether the denoise stage has linears that read nothing but the prefix."""
    given = [value for value in denoise.graph.inputs if str(value.name).startswith(("prefix_key.", "prefix_value."))]
    other = [value for value in denoise.graph.inputs if value not in given]
    read, rest = reached_from(denoise.graph, given), reached_from(denoise.graph, other)
    linears = [node.inputs[0] for node in denoise.graph if node.domain == EW and node.op_type == "Linear"]
    return any(x in read and x not in rest for x in linears)
