"""Seeded observations that respect a policy's spec: random pictures, states inside of the statistics, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgewright.contract import StageContract
from edgewright.runtime.policy.schedule import time_embedding, times
from edgewright.runtime.policy.spec import PolicySpec, Statistics
from edgewright.verify.policy_report import Array

SEED = 2026
#: Prompts from short to longer than any policy takes.
PROMPTS = (
    "pick up the red cup",
    "open the top drawer, then put the black bowl into it and close the drawer again",
    "push",
    "put the sponge on the table " * 40,
)
_SIDE = 8


def synthetic(spec: PolicySpec, statistics: Statistics, count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """Return `count` observations, the same for the same seed; cameras that may be missing are in every second one."""
    return [
        _observation(spec, statistics, index, np.random.default_rng(child))
        for index, child in enumerate(np.random.SeedSequence(seed).spawn(count))
    ]


def noise_of(spec: PolicySpec, count: int, seed: int = SEED) -> np.ndarray:
    """Return the noise of `count` observations, float32 `[count, horizon, model_action_dim]`."""
    child = np.random.SeedSequence(seed, spawn_key=(1,))
    return np.random.default_rng(child).standard_normal((count, spec.horizon, spec.model_action_dim), np.float32)


def seeded_steps(contract: StageContract, spec: PolicySpec, seed: int = SEED) -> list[dict[str, Array]]:
    """Return what a denoise step with `time_embedding` takes at each time of the schedule, over a random prefix."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    sizes = {"batch": 1, "horizon": spec.horizon, "times": 1, "prefix": contract.bounds["prefix"][1]}
    shapes = {t.name: tuple(sizes[d] if isinstance(d, str) else d for d in t.shape) for t in contract.inputs}
    first: dict[str, Array] = {
        name: np.ones(shape, np.int64) if name == "prefix_mask" else random.standard_normal(shape, np.float32)
        for name, shape in shapes.items()
    }
    width = shapes["time_embedding"][-1]
    return [
        {**first, "time_embedding": time_embedding(time.reshape(1, 1), width)}
        for time in times(spec.schedule, spec.steps)
    ]


def _observation(spec: PolicySpec, statistics: Statistics, index: int, random: np.random.Generator) -> dict[str, Any]:
    cameras = list(spec.cameras)
    if index % 2 and len(spec.required_cameras) < len(cameras):
        cameras = list(spec.required_cameras) or cameras[:1]
    seen: dict[str, Any] = {
        "images": {camera: _picture(spec, random) for camera in cameras},
        "prompt": PROMPTS[index % len(PROMPTS)],
    }
    if spec.state_dim:
        seen["state"] = _state(statistics.state, spec.state_dim, random)
    return seen


def _picture(spec: PolicySpec, random: np.random.Generator) -> np.ndarray:
    """Return uint8 pixels of a size of its own: large areas, and noise over them."""
    high, wide = (side + int(random.integers(-side // 4, side // 2)) for side in spec.image_size)
    coarse = random.integers(0, 256, (-(-high // _SIDE), -(-wide // _SIDE), 3))
    areas = np.repeat(np.repeat(coarse, _SIDE, axis=0), _SIDE, axis=1)[:high, :wide]
    return np.clip(areas + random.normal(0, 20, areas.shape), 0, 255).astype(np.uint8)


def _state(group: Mapping[str, np.ndarray], size: int, random: np.random.Generator) -> np.ndarray:
    """Return numbers between the quantiles, the extremes, or a deviation from the mean; else around 0."""
    low, high = -np.ones(size), np.ones(size)
    if "q01" in group:
        low, high = group["q01"], group["q99"]
    elif "min" in group:
        low, high = group["min"], group["max"]
    elif "mean" in group:
        low, high = group["mean"] - group["std"], group["mean"] + group["std"]
    share = random.uniform(0.05, 0.95, size)
    values: np.ndarray = (low[:size] + share * (high[:size] - low[:size])).astype(np.float32)
    return values
