"""Verifies bundles of robot policies, level by level.

`spec`: what stands around the graphs against the checkpoint. `weights`: every shipped tensor. `graph`, shown only when
it differs: the shipped graphs against the ones that checkpoint and recipe give anew. `stages`: each engine on the
inputs of the float32 reference, the portable graphs over the checkpoint's weights. `features`: each exact rewrite that
is on, in float32, against the graphs without any. `actions`: the bundle as a robot would use it against the reference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgewright._version import __version__
from edgewright.bundle import check_files, read_manifest
from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.dialects import find_lowering
from edgewright.errors import BundleError
from edgewright.files import inside, scratch_folder
from edgewright.formats import FloatFormat, format_from_json
from edgewright.graph import Stage
from edgewright.graph.outside import take_table_outside
from edgewright.graph.writer import layout_size, plan_layout
from edgewright.models._policy_bounds import bounds_of_contracts
from edgewright.models._policy_features import build_featured
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Recipe
from edgewright.verify.memory import Memory
from edgewright.verify.policy_actions import PolicyLevels
from edgewright.verify.policy_cache import PrefixCodes, hand_over
from edgewright.verify.policy_manifest import checked
from edgewright.verify.policy_report import BOUNDS, Bound
from edgewright.verify.policy_spec import check_spec, foreign_files
from edgewright.verify.report import Level, Report
from edgewright.verify.shipped import TABLE, ShippedTensors
from edgewright.verify.structure import check_graph
from edgewright.verify.thresholds import coarsest
from edgewright.verify.verifier import recipe_of, writer_versions
from edgewright.verify.weights import WeightsReport, check_weights

#: Features that say how stages are put together, which the reference has to be for its stages to fit the bundle's.
CONTRACT_FEATURES = ("kv-only", "kv-transposed", "cross-once")


def verify_policy(
    folder: str | Path,
    checkpoint: PolicyCheckpoint,
    *,
    original: PolicyCheckpoint | None = None,
    observations: Sequence[Mapping[str, Any]] | None = None,
    memory_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Report:
    """Verify a bundle or an exported folder of a policy against its checkpoint.

    Where the checkpoint is a quantized form of an `original`, that one is the reference of stages and actions.
    `observations` are used instead of seeded ones. `memory_bytes` is what a float32 stage may take, see
    `verify.memory`; what takes more is said not to be checked, and the verdict is then "partly checked". Raises
    BundleError when files are damaged or the checkpoint is not the one it was built from.
    """
    root = Path(folder)
    manifest = checked(read_manifest(root))
    with progress.step("check files"):
        check_files(root, manifest)
        _require_source(manifest, checkpoint)
    return _PolicyVerification(root, manifest, checkpoint, original or checkpoint, progress).run(
        observations, Memory(memory_bytes), threads
    )


def _require_source(manifest: Manifest, checkpoint: PolicyCheckpoint) -> None:
    odd = foreign_files(manifest.source["files"], checkpoint)
    if odd:
        raise BundleError(
            f"The bundle was not built from this checkpoint ({', '.join(odd)} differ): give the one it was built from."
        )


class _PolicyVerification:
    """One run of all levels."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        checkpoint: PolicyCheckpoint,
        original: PolicyCheckpoint,
        progress: Progress,
    ) -> None:
        self._root, self._manifest, self._progress = root, manifest, progress
        self._checkpoint, self._original = checkpoint, original
        self._features = dict(manifest.model["features"])
        try:
            self._bounds = bounds_of_contracts({name: entry.contract for name, entry in manifest.stages.items()})
        except KeyError as error:
            raise BundleError(f"The bundle's stages lack {error}, so it is not a policy's: build it again.") from None

    def run(self, observations: Sequence[Mapping[str, Any]] | None, memory: Memory, threads: int | None) -> Report:
        """Run the levels."""
        levels: dict[str, Level] = {}
        lowered, schedule, codes = self._lowered()
        levels["spec"] = check_spec(
            self._root, self._manifest, self._checkpoint, schedule, None if codes is None else codes.record
        )
        levels |= self._files(lowered)
        with _scratch_beside(self._root) as scratch:
            runs = PolicyLevels(
                self._root,
                self._manifest,
                self._original,
                self._float,
                bound_of(self._manifest),
                codes,
                scratch,
                memory,
                threads,
                self._progress,
            )
            levels |= runs.levels(observations, {n: self._features[n] for n in CONTRACT_FEATURES})
        return Report(levels)

    def _lowered(self) -> tuple[dict[str, Stage], Mapping[str, Any] | None, PrefixCodes | None]:
        """Build the stages anew, in the formats and with the features the bundle has."""
        given = self._checkpoint
        stages, made = build_featured(given, given.spec, self._features, bounds=self._bounds)
        codes = hand_over(stages, given)
        lowered = {}
        for name, stage in stages.items():
            quantize_stage(stage, _recipe_of(self._manifest, name), requantize=True)
            if name == "prefix" and "embedding" in self._manifest.model:
                take_table_outside(stage)
            lowered[name] = find_lowering(self._manifest.stages[name].dialect)(stage)
        return lowered, made.schedule, codes

    def _float(self, features: Mapping[str, Any]) -> dict[str, Stage]:
        """Build the float stages with some features; of a quantized checkpoint, what its codes stand for."""
        given = self._original
        stages, _ = build_featured(given, given.spec, features, bounds=self._bounds)
        if any(getattr(tensor, "encoding", None) is not None for tensor in given.tensors.values()):
            keep = FloatFormat("float32")
            for stage in stages.values():
                quantize_stage(stage, Recipe("float32", keep, keep, keep))
        return stages

    def _files(self, lowered: Mapping[str, Stage]) -> dict[str, Level]:
        """Compare weights and graphs of all stages."""
        same_version = self._manifest.versions["edgewright"] == __version__
        same_writer = all(self._manifest.versions.get(n) == v for n, v in writer_versions().items())
        table = inside(self._root, TABLE) if "embedding" in self._manifest.model else None
        found: list[WeightsReport] = []
        levels: dict[str, Level] = {}
        total = sum(layout_size(plan_layout(stage)) for stage in lowered.values())
        with self._progress.step("compare weights", total) as advance:
            for name, stage in lowered.items():
                graph = inside(self._root, self._manifest.stages[name].graph)
                tensors = ShippedTensors(graph, table if name == "prefix" else None)
                found.append(check_weights(stage, tensors, advance, same_version=same_version))
                report = check_graph(stage, graph) if same_writer else None
                if report is not None:
                    levels.setdefault("graph", report)
        return {"weights": _joined(found), **levels}


@contextmanager
def _scratch_beside(root: Path) -> Iterator[Path]:
    """Give a folder on the disk that the bundle is on, which has space for one, or else where temporary files are."""
    beside = root.resolve().parent
    place = beside if os.access(beside, os.W_OK) else None
    with scratch_folder(place) as folder:
        yield folder


def _recipe_of(manifest: Manifest, stage: str) -> Recipe:
    """Rebuild what was applied to a stage, module by module."""
    modules = [module for module in manifest.recipe["modules"] if module.get("stage") == stage]
    return recipe_of(replace(manifest, recipe={**manifest.recipe, "modules": modules}))


def _joined(reports: Sequence[WeightsReport]) -> WeightsReport:
    worst = max(reports, key=lambda report: report.worst_rms)
    return WeightsReport(
        sum(report.tensors for report in reports),
        sum(report.exact for report in reports),
        tuple(fault for report in reports for fault in report.faults),
        worst.worst,
        worst.worst_rms,
    )


def bound_of(manifest: Manifest) -> Bound:
    """Return what the actions of a bundle must reach, by the coarsest format that its manifest records."""
    modules = manifest.recipe["modules"]
    names = [coarsest(format_from_json(module) for module in modules)]
    inputs = {module["activation"]["name"] for module in modules if module.get("activation")}
    names += ["int4"] if inputs & {"int4", "nvfp4", "mxfp4"} else ["fp8"] if inputs else []
    if (cache := manifest.recipe.get("kv")) is not None:
        names.append("int8" if cache["dtype"] == "int8" else "fp8")
    return BOUNDS[max(names, key=list(BOUNDS).index)]
