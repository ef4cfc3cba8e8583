"""What a recipe would do to a checkpoint, module by module; only headers are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.gguf_blocks import BLOCK_FORMATS
from edgewright.checkpoint.layouts.native import part_bytes
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.errors import RecipeError
from edgewright.formats import FloatFormat, Format, IntFormat
from edgewright.quant.recipe import Recipe
from edgewright.quantizer.driver import STAGES, float_stage
from edgewright.quantizer.plan import Target, plan_of
from edgewright.quantizer.policy import plan_policy, prefix_format
from edgewright.quantizer.report import NONE, SHARED, TAKEN


@dataclass(frozen=True)
class Preview:
    """One row a module, and sums; a weight that two modules read alike is counted once."""

    rows: list[dict[str, Any]]
    bytes: int
    float_bytes: int
    kv: str | None

    def table(self) -> list[list[str]]:
        """Return the rows as texts."""
        return [
            [
                row["module"],
                row["kind"],
                row["weight"],
                row["activations"] or "-",
                row["algorithm"],
                f"{row['bytes']:,}" if row["bytes"] else "shared",
                f"{row['float_bytes'] - row['bytes']:,}",
                row["where"],
            ]
            for row in self.rows
        ]

    def summary(self) -> str:
        """Return the sums in a sentence."""
        saved = 1 - self.bytes / self.float_bytes if self.float_bytes else 0.0
        cache = f"; cache {self.kv}" if self.kv else ""
        sizes = f"{self.bytes:,} bytes instead of {self.float_bytes:,} in float32"
        return f"{len(self.rows)} modules, {sizes} ({saved:.0%} less){cache}"


def refuse_quantized(checkpoint: Checkpoint | PolicyCheckpoint) -> None:
    """Raise RecipeError for a checkpoint that is quantized already."""
    if checkpoint.quantization is not None:
        raise RecipeError(
            f"The checkpoint is quantized already ({checkpoint.quantization.method}): deploy it with the recipe "
            "'stored', or quantize the original."
        )


def preview(checkpoint: Checkpoint, recipe: Recipe) -> Preview:
    """Resolve a recipe for a checkpoint; raises RecipeError as quantizing would, before any weight is read."""
    refuse_quantized(checkpoint)
    recipe = recipe.for_stage("llm", STAGES)
    targets = plan_of(float_stage(checkpoint, recipe, max_context=1), recipe).targets
    kv = None if recipe.kv is None else recipe.kv.label
    return _previewed(resolved(targets), kv)


def preview_policy(checkpoint: PolicyCheckpoint, recipe: Recipe) -> dict[str, Preview]:
    """Resolve a recipe for a policy, stage by stage; raises RecipeError as quantizing would."""
    refuse_quantized(checkpoint)
    plans, kv = plan_policy(checkpoint, recipe).plans, prefix_format(recipe)
    return {
        name: _previewed(resolved(plan.targets), kv.label if kv is not None and name == "prefix" else None)
        for name, plan in plans.items()
    }


def _previewed(rows: list[dict[str, Any]], kv: str | None) -> Preview:
    return Preview(rows, sum(row["bytes"] for row in rows), sum(row["float_bytes"] for row in rows), kv)


def resolved(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Return a row for every module: what it gets, which bytes that takes, and which line decided."""
    weights: set[str] = set()
    rows: list[dict[str, Any]] = []
    for target in targets:
        fmt, choice, (height, width) = target.choice.weight, target.choice, target.shape
        if not isinstance(fmt, Format):
            raise RecipeError(
                f"{choice.where['weight']}: {target.module} can't be kept as stored while it is calibrated: choose a "
                "format for it."
            )
        activation = choice.inputs.format if target.kind != "embedding" else None
        if activation is not None and isinstance(fmt, IntFormat):
            fmt = replace(fmt, int8_activations=False)  # its kernel is not to round the inputs again
        rows.append(
            {
                "module": target.module,
                "kind": target.kind,
                "shape": [height, width],
                "weight": fmt.label,
                "activations": None if activation is None else activation.label,
                "algorithm": _algorithm(target),
                "bytes": 0 if _shared(target, weights) else part_bytes(fmt, target.shape) + _offset_bytes(target, fmt),
                "float_bytes": 0 if target.weight in weights else 4 * height * width,
                "where": choice.where["weight"],
            }
        )
        weights.add(target.weight)
    return rows


def _shared(target: Target, seen: set[str]) -> bool:
    """Tell whether a module stores nothing of its own: it reads another's codes, or floats that are there already."""
    return target.codes_of is not None or (isinstance(target.choice.weight, FloatFormat) and target.weight in seen)


def _offset_bytes(target: Target, fmt: Format) -> int:
    """Return the bytes of the offsets, one a scale, that codes have in some of a GGUF file's types."""
    if target.taken is None or target.stored is None:
        return 0
    blocks = BLOCK_FORMATS[target.stored]
    empty = np.zeros((1, blocks.block_bytes), np.uint8)
    return 0 if blocks.split(empty).offsets is None else 4 * math.prod(fmt.specs(target.shape)["scales"][1])


def _algorithm(target: Target) -> str:
    """Return what will find the codes, as the report spells it."""
    if isinstance(target.choice.weight, FloatFormat):
        return NONE
    if target.codes_of is not None:
        return SHARED
    return target.choice.algorithm.name if target.taken is None else TAKEN
