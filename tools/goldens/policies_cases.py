"""The scenarios of the policy goldens: observations, prompts and statistics, all from fixed seeds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

BASE, LEFT, RIGHT = "base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"
CAMERAS = (BASE, LEFT, RIGHT)
IMAGE_SIZES = {BASE: (37, 53), LEFT: (61, 29), RIGHT: (28, 28)}
SHORT, OTHER = "pick up the red cup", "open the top drawer, then wipe the table"
LONG = "put the black bowl in the drawer and the sponge on the table"
TOO_LONG = " and ".join([LONG, "hand the cable to the person who asks for it", "stack every block on the crate", OTHER])
UNCLEAN = "  put_the  red\ncup on_the caf\u00e9 table \n"
IMAGES, VISION, PREFIX, CACHE, STEPS = "images", "vision", "prefix", "cache", "steps"
ALL = (IMAGES, VISION, PREFIX, CACHE, STEPS)


@dataclass(frozen=True)
class Case:
    """One scenario: which cameras are there, what is asked, how many steps, and which groups of tensors are stored."""

    name: str
    seed: int
    steps: int
    cameras: tuple[str, ...] = CAMERAS
    prompts: tuple[str, ...] = (SHORT,)
    keep: tuple[str, ...] = ()
    edges: bool = False
    committed: int = 0
    note: str = ""
    sizes: dict[str, tuple[int, int]] = field(default_factory=lambda: dict(IMAGE_SIZES))


def common_cases() -> list[Case]:
    """Return the scenarios that every policy has."""
    return [
        Case("three_cameras", 11, 10, keep=ALL, note="all cameras, ten steps, every tensor"),
        Case("one_camera", 12, 3, cameras=(BASE,), keep=(VISION, PREFIX, CACHE, STEPS), note="two cameras missing"),
        Case("two_cameras", 13, 3, cameras=(BASE, LEFT), keep=(STEPS,), note="the last camera missing"),
        Case("middle_camera_missing", 14, 3, cameras=(BASE, RIGHT), keep=(VISION, PREFIX, STEPS)),
        Case("one_step", 15, 1, prompts=(OTHER,), keep=(STEPS,)),
        Case("long_prompt", 16, 1, prompts=(LONG,)),
        Case("truncated_prompt", 17, 3, prompts=(TOO_LONG,), keep=(PREFIX,), note="over the limit: cut at the end"),
        Case("unclean_prompt", 18, 1, prompts=(UNCLEAN,), note="underscores, newlines, spaces, a byte-coded character"),
        Case("state_edges", 19, 1, edges=True, note="the state at bin edges, out of range and on a constant dimension"),
        Case("batch_of_two", 20, 3, prompts=(SHORT, OTHER), keep=(PREFIX, STEPS), note="prompts of different lengths"),
    ]


def committed_case() -> Case:
    """Return the scenario with three actions of the last chunk that are already being executed."""
    return Case("committed_actions", 21, 3, committed=3, keep=(STEPS,), note="real-time chunking with a hard prefix")


def images(case: Case, batch: int) -> dict[str, Any]:
    """Return uint8 [batch, height, width, 3] per camera: smooth shapes, an edge and noise, so that a resize matters."""
    rng = np.random.default_rng(1000 + case.seed)
    result = {}
    for camera in CAMERAS:
        height, width = case.sizes[camera]
        y, x = np.mgrid[0:height, 0:width]
        frames = []
        for _ in range(batch):
            waves = [
                np.sin(x / rng.uniform(3, 9) + rng.uniform(0, 6)) * np.cos(y / rng.uniform(3, 9)) for _ in range(3)
            ]
            frame = 128 + 70 * np.stack(waves, axis=-1) + rng.normal(0, 25, (height, width, 3))
            frame[(x + y) > rng.uniform(0.7, 1.3) * width] *= rng.uniform(0.3, 0.7)
            frames.append(np.clip(np.round(frame), 0, 255).astype(np.uint8))
        if camera in case.cameras:
            result[camera] = np.stack(frames)
    return result


def statistics(seed: int, size: int, constant: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return float64 statistics of `size` dimensions; q01 == q99 and std == 0 in the `constant` ones."""
    rng = np.random.default_rng(seed)
    centre, spread = rng.normal(0, 0.6, size), rng.uniform(0.2, 1.5, size)
    spread[list(constant)] = 0.0
    skew = rng.uniform(0.7, 1.3, size)
    stats = {"mean": centre, "std": spread / 2, "q01": centre - spread * skew, "q99": centre + spread}
    more = {"min": centre - 1.4 * spread, "max": centre + 1.5 * spread}
    more |= {"q10": centre - 0.7 * spread, "q50": centre + 0.05 * spread, "q90": centre + 0.7 * spread}
    return stats | more


def states(case: Case, stats: dict[str, Any], size: int, batch: int) -> Any:
    """Return the raw states, float32 [batch, size].

    Where `case.edges` is set, the first dimensions are q01, q99, the edge of bin 128, one bin below -1 and 0.4 above 1.
    """
    rng = np.random.default_rng(2000 + case.seed)
    q01, q99 = stats["q01"][:size], stats["q99"][:size]
    unit = rng.uniform(-0.9, 0.9, (batch, size))
    if case.edges:
        unit[:, :5] = [-1.0, 1.0, 0.0, -1.0 - 1 / 128, 1.4]
    raw = (unit + 1) / 2 * (q99 - q01) + q01
    constant = q99 == q01
    raw[:, constant] = q01[constant] + (0.01 if case.edges else 0.0)
    return raw.astype(np.float32)


def noise(case: Case, horizon: int, width: int) -> Any:
    """Return float32 [batch, horizon, width] from N(0, 1)."""
    rng = np.random.default_rng(3000 + case.seed)
    return rng.normal(size=(len(case.prompts), horizon, width)).astype(np.float32)


def committed_actions(case: Case, count: int, size: int) -> Any:
    """Return float32 [1, count, size]: what is left of the last chunk, as the model sees actions (normalised)."""
    rng = np.random.default_rng(4000 + case.seed)
    return rng.uniform(-1, 1, (1, count, size)).astype(np.float32)
