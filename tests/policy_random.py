"""Robot policies with random weights, of any size."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conftest import ArrayTensor
from edgewright.checkpoint.policies.sizes import ExpertSizes, PolicySizes, TextSizes, VisionSizes
from edgewright.models._policy import PolicyBounds
from edgewright.runtime.policy.spec import Schedule


@dataclass(frozen=True)
class Spec:
    """What building, and what the features ask of a spec."""

    image_size: tuple[int, int]
    kind: str
    schedule: Schedule = "float32-sum"
    steps: int = 10


@dataclass(frozen=True)
class Source:
    """A checkpoint in memory."""

    kind: str
    sizes: PolicySizes
    tensors: Mapping[str, Any]
    spec: Spec


def tiny_sizes(kind: str) -> PolicySizes:
    """Return small, odd sizes."""
    smol = kind == "smolvla"
    heads = {"heads": 4, "kv_heads": 2 if smol else 1, "head_dim": 6}
    return PolicySizes(
        vision=VisionSizes(width=15, layers=2, heads=3, inner=21, patch=5, image=20),
        text=TextSizes(width=22, layers=3, inner=33, vocab=50, **heads),
        expert=ExpertSizes(width=14, layers=3, inner=27, **heads),
        action_dim=5,
        state_dim=0 if kind == "pi05" else 7,
        pixel_shuffle=2 if smol else 1,
        self_attention_every=2 if smol else 1,
    )


def random_source(kind: str, seed: int, sizes: PolicySizes | None = None, **spec: Any) -> Source:
    """Return a policy whose every tensor is random: matrices keep magnitudes, vectors are far from ones and zeros."""
    sizes = sizes or tiny_sizes(kind)
    rng = np.random.default_rng(seed)
    empty = Source(kind, sizes, {}, Spec((sizes.vision.image,) * 2, kind, **spec))
    network = importlib.import_module(f"edgewright.models.{kind}").network(empty, PolicyBounds(prefix=700, horizon=60))
    network.assign_names()
    tensors: dict[str, Any] = {}
    for parameter in network.parameters():
        name = getattr(parameter, "stored_name", parameter.name)
        shape = getattr(parameter, "stored_shape", parameter.shape)
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.5)
        tensors[name] = ArrayTensor(name, values)
    return Source(kind, sizes, tensors, empty.spec)


def random_frame(source: Source, rng: np.random.Generator, batch: int, text: int, horizon: int) -> dict[str, Any]:
    """Return what a frame feeds, with one masked image in the second row: images, ids, mask, state and noise."""
    sizes = source.sizes
    tokens = (sizes.vision.image // sizes.vision.patch // sizes.pixel_shuffle) ** 2
    mask = np.ones((batch, 2 * tokens + text + (source.kind == "smolvla")), np.int64)
    mask[1:, tokens : 2 * tokens] = 0
    frame = {
        "images": rng.uniform(-1, 1, (batch * 2, 3, *source.spec.image_size)).astype(np.float32),
        "token_ids": rng.integers(0, sizes.text.vocab, (batch, text)),
        "prefix_mask": mask,
        "noise": rng.standard_normal((batch, horizon, sizes.action_dim), dtype=np.float32),
    }
    if sizes.state_dim:
        frame["state"] = rng.standard_normal((batch, sizes.state_dim), dtype=np.float32)
    return frame
