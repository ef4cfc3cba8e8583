"""Writes a quantized policy as a folder in our own layout, which needs nothing of the original's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.checkpoint.policies.native import KEY, policy_config
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.quant.recipe import Recipe
from edgewright.quantizer.folder import Writer
from edgewright.quantizer.policy import PolicyQuantized, prefix_format


def write_policy_folder(
    folder: Path,
    checkpoint: PolicyCheckpoint,
    source: Mapping[str, Any],
    recipe: Recipe,
    done: PolicyQuantized,
    record: Any,
) -> None:
    """Write the folder; `source` is the record of the original's files, `record` that of the observations.

    The report has the range of every input in each step of the denoise loop besides, as `ranges`.
    """
    left_out = tuple(f"left out: {name} ({rule})" for name, rule in checkpoint.ignored)
    config = {KEY: policy_config(checkpoint.spec, checkpoint.sizes, (*checkpoint.notes, *left_out))}
    report = {"recipe": recipe.name, "modules": [r.to_json() for r in done.reports], "ranges": done.ranges}
    writer = Writer(done.weights, done.work)
    writer.write(folder, config, checkpoint.sidecars(), source, recipe, record, report, prefix_format(recipe))
