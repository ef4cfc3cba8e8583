"""Bundles of the golden policies, made of the parts that a build is made of, and the goldens' observations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle.manifest import Manifest, file_entries, read_manifest, write_manifest
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.dialects import LOWERINGS
from edgewright.graph.writer import write_stage
from edgewright.models._policy import PolicyBounds
from edgewright.models._policy_features import build_featured
from edgewright.targets.cpu import compile_stage
from policy_goldens import golden_tensors, policy_checkpoint, policy_scenarios, read

BOUNDS = PolicyBounds(batch=3, views=6, prefix=160, horizon=24)


def write_bundle(case: str, folder: Path, **features: Any) -> Path:
    """Write a bundle of a golden's checkpoint with features, whose names have underscores for hyphens.

    Unlike a build's, it has no time table unless that is asked for, so that it takes any number of steps.
    """
    source = policy_checkpoint(case)
    asked = {"time-table": False, **{name.replace("_", "-"): value for name, value in features.items()}}
    made, applied = build_featured(source, source.spec, asked, bounds=BOUNDS)
    stages = {}
    for name, stage in made.items():
        lowered, place = LOWERINGS["onnxruntime"](stage), f"stages/{name}"
        write_stage(lowered, folder / place)
        stages[name] = compile_stage(folder / place, place, lowered.contract, half_weights=False)
    (folder / "sidecars").mkdir()
    for name, content in source.sidecars().items():
        (folder / "sidecars" / name).write_bytes(content)
    model = {"policy": source.spec.to_json(), "features": applied.features}
    if applied.schedule is not None:
        model["schedule"] = applied.schedule
    write_manifest(folder, Manifest(model, {}, {}, stages, {}, {}, files=file_entries(folder)))
    return folder


def rewrite(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a bundle's manifest: `change` is given its model, which is written back with the right digest."""
    manifest = read_manifest(bundle)
    model = json.loads(json.dumps(manifest.model))
    change(model)
    write_manifest(bundle, dataclasses.replace(manifest, model=model))


def observations(case: str, scenario: str, source: PolicyCheckpoint | None = None) -> list[dict[str, Any]]:
    """Return the observations of a scenario, one for each row of its batch."""
    spec, described = (source or policy_checkpoint(case)).spec, policy_scenarios(case)[scenario]
    if case == "smolvla":
        return [
            {
                **{key: read(case, "input", image) for key, image in images.items()},
                "observation.state": read(case, scenario, "state")[row],
                "task": described["prompt"][row],
            }
            for row, images in enumerate(described["images"])
        ]
    slots = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    names = dict(zip(slots, spec.cameras, strict=True))
    return [
        {
            "images": {names[slot]: read(case, scenario, f"image.{slot}")[row] for slot in described["cameras"]},
            "state": read(case, scenario, "state")[row],
            "prompt": prompt,
        }
        for row, prompt in enumerate(described["prompts"])
    ]


def has(case: str, scenario: str, name: str) -> bool:
    """Tell whether a tensor is stored."""
    return f"{scenario}/{name}" in golden_tensors(case)


def normalized(case: str, scenario: str) -> np.ndarray:
    """Return the model's actions [batch, horizon, 32] of a scenario."""
    return read(case, scenario, "normalized_actions" if case == "smolvla" else "actions_normalized")
