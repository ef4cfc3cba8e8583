"""Goldens of robot policies: what the original implementation computed, and a bundle's actions against it.

A folder with `golden.json` (`scenarios`, each with its prompts, cameras and `steps`) and `golden.safetensors` (tensors
`SCENARIO/NAME`), as `tools/goldens` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle import check_files, read_manifest
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import read_json_object
from edgewright.errors import CheckpointError, EdgewrightError, GoldenError
from edgewright.progress import SILENT, Progress
from edgewright.runtime.policy.loop import Features
from edgewright.runtime.policy.policy import Policy
from edgewright.runtime.policy.spec import PolicySpec
from edgewright.verify.policy import bound_of
from edgewright.verify.policy_manifest import checked
from edgewright.verify.policy_report import Array, Gap, GapsReport, gap
from edgewright.verify.running import load_policy

DESCRIPTION, TENSORS = "golden.json", "golden.safetensors"
#: openpi's names of image slots, by which its goldens call cameras whatever the policy calls them.
_SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
#: What makes a scenario one of another model than the checkpoint beside it.
_OTHER_MODEL = ("overrides", "dtype")


@dataclass(frozen=True)
class PolicyScenario:
    """One run of the original: observations, the noise of each, steps, and the actions it gave.

    `noise` float32 `[batch, horizon, model_action_dim]`, `normalized` `[batch, horizon, n]`, `actions`
    `[batch, horizon, action_dim]` in the robot's units.
    """

    name: str
    observations: tuple[dict[str, Any], ...]
    steps: int
    noise: Array
    normalized: Array
    actions: Array


def is_policy_golden(path: Path) -> bool:
    """Tell whether a folder is a golden of a policy."""
    return (path / DESCRIPTION).is_file() and (path / TENSORS).is_file()


def policy_scenarios(path: Path, spec: PolicySpec) -> Iterator[PolicyScenario]:
    """Yield the scenarios of the model itself; those with committed actions or other settings are left out.

    Raises GoldenError when the golden can't be read, or its scenarios are not of this policy.
    """
    try:
        described = read_json_object(path / DESCRIPTION)["scenarios"]
        stored = read_safetensors(path / TENSORS)
        listed = described if isinstance(described, dict) else {one["name"]: one for one in described}
        for name, scenario in listed.items():
            if scenario.get("committed") or any(scenario.get(key) for key in _OTHER_MODEL):
                continue
            yield _scenario(name, scenario, stored, spec)
    except (CheckpointError, KeyError, TypeError, ValueError, IndexError) as error:
        raise GoldenError(f"{path.name} can't be read as a golden of this policy ({error}): make it again.") from None


def _scenario(
    name: str, scenario: Mapping[str, Any], stored: Mapping[str, StoredTensor], spec: PolicySpec
) -> PolicyScenario:
    def tensor(key: str) -> Array:
        return np.asarray(stored[f"{name}/{key}"].read())

    by_slot = "cameras" in scenario
    seen = _by_slot(scenario, tensor, spec) if by_slot else _by_name(scenario, tensor, stored)
    return PolicyScenario(
        name,
        tuple(seen),
        int(scenario["steps"]),
        tensor("noise").astype(np.float32),
        tensor("actions_normalized" if by_slot else "normalized_actions"),
        tensor("actions"),
    )


def _by_slot(scenario: Mapping[str, Any], tensor: Any, spec: PolicySpec) -> list[dict[str, Any]]:
    """Return observations whose images are named by openpi's slots."""
    names = dict(zip(_SLOTS, spec.cameras, strict=False))
    return [
        {
            "images": {names[slot]: tensor(f"image.{slot}")[row] for slot in scenario["cameras"] if slot in names},
            "state": tensor("state")[row],
            "prompt": prompt,
        }
        for row, prompt in enumerate(scenario["prompts"])
    ]


def _by_name(scenario: Mapping[str, Any], tensor: Any, stored: Mapping[str, StoredTensor]) -> list[dict[str, Any]]:
    """Return observations whose images are shared tensors, `input/NAME`."""
    return [
        {
            **{key: np.asarray(stored[f"input/{image}"].read()) for key, image in images.items()},
            "observation.state": tensor("state")[row],
            "task": scenario["prompt"][row],
        }
        for row, images in enumerate(scenario["images"])
    ]


def compare_policy_golden(
    root: Path, golden: Path, *, threads: int | None = None, progress: Progress = SILENT
) -> GapsReport:
    """Compare a bundle's actions with a golden's, as far as the bundle takes the golden's number of steps."""
    manifest = checked(read_manifest(root))
    with progress.step("check files"):
        check_files(root, manifest)
    policy, _ = load_policy(root, threads)
    features = Features.from_json(manifest.model.get("features", {}))
    fixed = policy.spec.steps if features.table or features.whole else None
    gaps: dict[str, Gap] = {}
    left: list[str] = []
    with progress.step("compare with the golden"):
        for scenario in policy_scenarios(golden, policy.spec):
            if fixed not in (None, scenario.steps):
                left.append(scenario.name)
                continue
            gaps |= _compared(policy, scenario)
    if not gaps:
        raise GoldenError(
            f"No scenario of {golden.name} has the {fixed} steps that the bundle was built for: deploy with another "
            "--steps, or with --feature time-table=off."
        )
    more = {"left_out": left} if left else {}
    return GapsReport(bound_of(manifest), gaps, more=more)


def _compared(policy: Policy, scenario: PolicyScenario) -> dict[str, Gap]:
    try:
        chunks = policy.infer_batch(scenario.observations, scenario.noise, scenario.steps)
    except EdgewrightError as error:
        return {f"{scenario.name}: {error}": Gap(float("inf"), 0.0, float("inf"))}
    width = scenario.normalized.shape[-1]
    mine = _stacked([chunk.normalized[:, :width] for chunk in chunks])
    real = _stacked([chunk.actions for chunk in chunks])
    scale = np.maximum(np.abs(scenario.actions).max(axis=(0, 1)), 1e-30)
    fits = real.shape == scenario.actions.shape
    return {
        f"{scenario.name}, normalized": gap(mine, scenario.normalized),
        f"{scenario.name}, real units": gap(real / scale if fits else real, scenario.actions / scale),
    }


def _stacked(arrays: Sequence[Array]) -> Array:
    return np.stack(arrays)
