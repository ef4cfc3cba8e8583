"""A build of a robot policy: its three stages, its sidecars, its manifest, its verification."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewright.build.key import POLICY_STAGES
from edgewright.build.outside import table_record
from edgewright.build.parts import Part, Passed
from edgewright.build.quantized import quantized_policy
from edgewright.build.record import NOT_CHECKED, modules_of, summary_of, versions
from edgewright.build.sources import POLICY_BATCH, PolicyRequest, PolicySource
from edgewright.bundle import Manifest
from edgewright.checkpoint.layouts import Quantization
from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions
from edgewright.dialects import find_lowering
from edgewright.graph import Stage
from edgewright.graph.outside import take_table_outside
from edgewright.models._policy_bounds import bounds_of_spec
from edgewright.models._policy_features import Featured, build_featured
from edgewright.progress import Progress
from edgewright.quant.apply import quantizable, quantize_stage
from edgewright.quant.kv import cache_record, calibrated_cache
from edgewright.quant.prefix_kv import quantize_prefix


class PolicyMaker:
    """Makes a bundle's parts from a policy."""

    stages = POLICY_STAGES

    def __init__(self, source: PolicySource, record: dict[str, Any], progress: Progress) -> None:
        self._source, self.path, self._original = source, source.checkpoint.path, source.checkpoint
        self._features, self._request = source.features, source.request
        made = quantized_policy(source.checkpoint, record, source.recipe, progress)
        self._checkpoint, self.record, self._recipe = made
        self._made: Featured | None = None
        self._cache: dict[str, Any] | None = None

    def key(self, **options: Any) -> str:
        """Return the digest of a build from the policy that is built from."""
        return self._source.key(self.record, **options)

    def lower(self, dialects: Mapping[str, str], progress: Progress) -> dict[str, Part]:
        """Build, rewrite, quantize and lower the stages."""
        spec = self._checkpoint.spec
        with progress.step("build graph"):
            stages, made = build_featured(
                self._checkpoint, spec, self._features, bounds=bounds_of_spec(spec, POLICY_BATCH)
            )
            choices = self._recipe.stage_choices(modules_by_stage(stages, made))
            cache = give_prefix_cache(stages, self._checkpoint.quantization)
            parts = {}
            for name in POLICY_STAGES:
                stage = stages[name]
                applied = quantize_stage(stage, choices[name], requantize=self._request.requantize)
                if name == "prefix" and self._request.embeddings == "outside":
                    take_table_outside(stage)
                parts[name] = Part(find_lowering(dialects[name])(stage), applied)
        self._made, self._cache = made, cache
        return parts

    def write_sidecars(self, sidecars: Path, parts: Mapping[str, Part], progress: Progress) -> None:
        """Write tokenizer and statistics."""
        with progress.step("write tokenizer"):
            for name, data in self._checkpoint.sidecars().items():
                (sidecars / name).write_bytes(data)

    def manifest(self, parts: Mapping[str, Part], *, target: str | None, key: str) -> Manifest:
        """Return the manifest."""
        assert self._made is not None
        given = self._checkpoint
        modules = [
            {"stage": name, **module} for name, part in parts.items() for module in modules_of(part.stage, part.applied)
        ]
        applied = [a for part in parts.values() for a in part.applied]
        schedule, outside = self._made.schedule, parts["prefix"].stage.outside
        return Manifest(
            model={
                "model_type": given.kind,
                "parameters": sum(math.prod(tensor.shape) for tensor in given.tensors.values()),
                "layers": {name: part.stage.layers for name, part in parts.items()},
                "policy": given.spec.to_json(),
                "options": options_record(self._request.policy),
                "features": dict(self._made.features),
                **({} if schedule is None else {"schedule": dict(schedule)}),
                **({} if outside is None else {"embedding": table_record(outside)}),
            },
            source=self.record,
            recipe={
                "name": self._recipe.name,
                "summary": summary_of(applied, modules),
                "stages": {name: _summary(modules, name, part) for name, part in parts.items()},
                "modules": modules,
                **({} if self._cache is None else {"kv": self._cache}),
            },
            stages={name: part.entry for name, part in parts.items() if part.entry is not None},
            versions=versions(),
            verdict=NOT_CHECKED,
            notes=tuple(dict.fromkeys([*given.notes, *ignored_notes(given), *self._made.notes, *_stage_notes(parts)])),
            target=target,
            key=key,
        )

    def verify(self, folder: Path, progress: Progress) -> Passed:
        """Verify a finished folder; where the checkpoint is a quantized form of the original, that one judges it."""
        from edgewright.verify.policy import verify_policy

        memory = self._request.policy.memory_bytes if self._request.policy else None
        return verify_policy(folder, self._checkpoint, original=self._original, memory_bytes=memory, progress=progress)


def modules_by_stage(stages: Mapping[str, Stage], made: Featured) -> dict[str, list[tuple[str, str]]]:
    """Return name and kind of what a recipe may speak of.

    A linear that became part of the time table is still a module that a rule may name, though it has no weight left.
    """
    found = {name: [(use.module, use.kind) for use in quantizable(stage)] for name, stage in stages.items()}
    found["denoise"] += [(module, "projection") for module in made.tabled]
    return found


def give_prefix_cache(stages: Mapping[str, Stage], found: Quantization | None) -> dict[str, Any] | None:
    """Give the stages the prefix KV that a quantized policy was calibrated for, in place.

    Returns its record, or None where keys and values stay float32.
    """
    if found is None or found.kv_dtype is None:
        return None
    cache = calibrated_cache(found.kv_dtype, found.kv_scales)
    return cache_record(quantize_prefix(stages["prefix"], stages["denoise"], *cache))


def options_record(request: PolicyRequest | None) -> dict[str, Any]:
    """Return the options that a build was given, so that the checkpoint can be opened again; paths are left out."""
    if request is None:
        return {}
    default, given = vars(PolicyOptions()), vars(request.options)
    said = {name: value for name, value in given.items() if value != default[name] and name != "tokenizer"}
    if isinstance(said.get("statistics"), Path) or Path(str(said.get("statistics", ""))).is_file():
        del said["statistics"]
    if "limits" in said:
        said["limits"] = said["limits"].to_json()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}


def _summary(modules: Sequence[Mapping[str, Any]], stage: str, part: Part) -> dict[str, Any]:
    return summary_of(part.applied, [module for module in modules if module["stage"] == stage])


def ignored_notes(checkpoint: PolicyCheckpoint) -> list[str]:
    """Say which tensors of a checkpoint are not in the bundle because no action depends on them, and why."""
    return [f"left out: {name} ({rule})" for name, rule in checkpoint.ignored]


def _stage_notes(parts: Mapping[str, Part]) -> list[str]:
    """Return the notes of all stages; one that isn't the same in all says where it holds."""
    count = Counter(note for part in parts.values() for note in dict.fromkeys(part.stage.notes))
    return [
        note if count[note] == len(parts) else f"{name}: {note}"
        for name, part in parts.items()
        for note in part.stage.notes
    ]
