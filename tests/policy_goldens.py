"""The goldens of robot policies, read: checkpoints, and the tensors of their scenarios under one set of names."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions, open_policy
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.runtime.policy.images import BLACK, resize

POLICY_GOLDENS = Path(__file__).parent / "goldens" / "policies"
TOKENIZER = POLICY_GOLDENS / "tokenizer" / "paligemma_tokenizer.model"
POLICY_CASES = ("pi05", "pi05_libero", "pi0", "pi0_lerobot", "smolvla")

#: What the folders don't tell.
OPTIONS: dict[str, dict[str, Any]] = {
    "pi05": {},
    "pi05_libero": {"discrete_state": False, "max_tokens": 40, "action_dim": 7, "state_dim": 8, "tokenizer": TOKENIZER},
    "pi0": {"max_tokens": 32, "action_dim": 14, "state_dim": 14, "tokenizer": TOKENIZER},
    "pi0_lerobot": {"tokenizer": TOKENIZER},
    "smolvla": {"sizes": {"text.head_dim": 14, "text.epsilon": 1e-5, "vision.heads": 3}},
}


def policy_checkpoint(case: str) -> PolicyCheckpoint:
    """Open the checkpoint of a golden."""
    return open_policy(POLICY_GOLDENS / case / "checkpoint", PolicyOptions(**OPTIONS[case]))


@functools.cache
def golden_tensors(case: str) -> dict[str, Any]:
    """Return the stored tensors of a golden, `SCENARIO/TENSOR`, not to be changed."""
    return dict(read_safetensors(POLICY_GOLDENS / case / "golden.safetensors"))


@functools.cache
def policy_scenarios(case: str) -> dict[str, dict[str, Any]]:
    """Return the scenarios of a golden by name."""
    found = json.loads((POLICY_GOLDENS / case / "golden.json").read_text(encoding="utf-8"))["scenarios"]
    return found if isinstance(found, dict) else {scenario["name"]: scenario for scenario in found}


@dataclass(frozen=True)
class Frame:
    """One scenario: `x_t` and `time_embedding` of every step before it, `velocity` and `prefix_*` as they must be.

    `features` `[batch, slots, width]`, or None where they aren't stored and `pixels` `[batch, views, 3, height, width]`
    are what they are made of; `ids` `[batch, text]`, `mask` `[batch, prefix]`, `state` `[batch, state_dim]` or
    None, `x_t`, `velocity` `[steps, batch, horizon, action_dim]`, `time` `[steps, times, expert_width]`. `keys`, where
    stored, are `[kv_heads, valid, head_dim]` of each layer, those of valid positions, and `values` alike.
    """

    features: np.ndarray | None
    pixels: np.ndarray | None
    ids: np.ndarray
    mask: np.ndarray
    state: np.ndarray | None
    x_t: np.ndarray
    time: np.ndarray
    velocity: np.ndarray
    keys: list[np.ndarray]
    values: list[np.ndarray]


def frame(case: str, scenario: str) -> Frame:
    """Read a scenario whose steps are stored."""
    return _smolvla(scenario) if case == "smolvla" else _pi(case, scenario)


def read(case: str, scenario: str, name: str) -> np.ndarray:
    """Return one tensor of a scenario."""
    return np.asarray(golden_tensors(case)[f"{scenario}/{name}"].read())


def stepwise(case: str) -> list[str]:
    """Return the scenarios of a case whose steps are stored, in the sizes and the float32 of the checkpoint."""
    # Other image sizes have a test of their own; the tokens around images are refused, and bfloat16 is another model.
    left_out = {"small_images", "bfloat16", "image_tokens"}
    return [n for n, s in policy_scenarios(case).items() if {"x_t", "v_t"} <= set(s["tensors"]) and n not in left_out]


def pixels(case: str, scenario: str, checkpoint: PolicyCheckpoint) -> np.ndarray:
    """Return a scenario's raw images of pi0 or pi0.5, resized; the cameras there are take the valid slots in order."""
    masks = read(case, scenario, "image_mask")
    cameras = policy_scenarios(case)[scenario]["cameras"]
    result = np.full((*masks.shape, 3, *checkpoint.spec.image_size), BLACK, np.float32)
    for row, mask in enumerate(masks):
        for camera, view in zip(cameras, np.flatnonzero(mask), strict=True):
            result[row, view] = resize(read(case, scenario, f"image.{camera}")[row], checkpoint.spec)
    return result


def _pi(case: str, scenario: str) -> Frame:
    stored = golden_tensors(case)
    checkpoint = policy_checkpoint(case)
    ids, words, views = (read(case, scenario, name) for name in ("tokens", "token_mask", "image_mask"))
    mask = np.concatenate([np.repeat(views, checkpoint.spec.image_tokens, axis=1), words], axis=1)
    slots = mask.shape[1] - ids.shape[1]
    embedded = f"{scenario}/prefix_embeddings" in stored
    noise, after, time = (read(case, scenario, name) for name in ("noise", "x_t", "time_embedding"))
    if count := policy_scenarios(case)[scenario]["committed"]:
        # The first actions are fixed from the start, the dimensions that the robot hasn't at zero.
        fixed = read(case, scenario, "committed_actions")
        noise = noise.copy()
        noise[:, :count] = np.pad(fixed, ((0, 0), (0, 0), (0, noise.shape[2] - fixed.shape[2])))
    before = np.concatenate([noise[None], after[:-1]])
    state = None
    if case.startswith("pi0_") or case == "pi0":
        raw = read(case, scenario, "state_normalized").astype(np.float32)
        state = np.pad(raw, ((0, 0), (0, checkpoint.sizes.state_dim - raw.shape[1])))
    cached = f"{scenario}/keys" in stored
    return Frame(
        features=read(case, scenario, "prefix_embeddings")[:, :slots] if embedded else None,
        pixels=None if embedded else pixels(case, scenario, checkpoint),
        ids=ids,
        mask=mask.astype(np.int64),
        state=state,
        x_t=before,
        time=time[:, None] if time.ndim == 2 else time,
        velocity=read(case, scenario, "v_t"),
        keys=list(read(case, scenario, "keys")[:, None]) if cached else [],
        values=list(read(case, scenario, "values")[:, None]) if cached else [],
    )


def _smolvla(scenario: str) -> Frame:
    stored = golden_tensors("smolvla")
    ids, mask, embedded = (read("smolvla", scenario, n) for n in ("token_ids", "prefix_mask", "prefix_embeddings"))
    slots = read("smolvla", scenario, "image_features").shape[0] * read("smolvla", scenario, "image_features").shape[2]
    # What lerobot appends behind the state's token is left out: the state stands last.
    length = slots + ids.shape[1] + 1
    layers = [i for i in range(99) if f"{scenario}/key.{i}" in stored]
    valid = mask[0, :length].astype(bool)
    return Frame(
        features=embedded[:, :slots],
        pixels=None,
        ids=ids,
        mask=mask[:, :length].astype(np.int64),
        state=read("smolvla", scenario, "model_state"),
        x_t=read("smolvla", scenario, "x_t"),
        time=read("smolvla", scenario, "time_embeddings")[:, None],
        velocity=read("smolvla", scenario, "v_t"),
        keys=[read("smolvla", scenario, f"key.{i}")[0][:, valid] for i in layers],
        values=[read("smolvla", scenario, f"value.{i}")[0][:, valid] for i in layers],
    )
