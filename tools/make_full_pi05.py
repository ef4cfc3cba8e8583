"""Write a pi0.5 of random weights as openpi's PyTorch conversion writes one, by default in full size (7.2 GB).

    .venv/bin/python tools/make_full_pi05.py FOLDER               # 3.35 billion parameters in bfloat16
    .venv/bin/python tools/make_full_pi05.py FOLDER --size race   # 0.22 billion in float32, for policy_race.py

Blocks of 16 million numbers are drawn, rounded and written one after the other, so memory stays below 0.5 GB. The same
size, seed and dtype give the same bytes. As in the original file there are two language heads: the expert's, which
nothing reads, and PaliGemma's, which stands for the embedding table. The tokenizer isn't part of such a folder; the
goldens' (tests/goldens/policies/tokenizer/) has ids that every size here knows.

Values are of a size that lets each of them matter: matrices N(0, 1 / fan-in), queries and keys 1.5 times that, biases
N(0, 0.04), weights of LayerNorm 1 + N(0, 0.09), of RMSNorm (where 1 is added) N(0, 0.09), rows of the embedding of
length 1.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from edgewright.checkpoint.safetensors_writer import TensorSpec, write_safetensors

BLOCK = 1 << 24
HEADS, PATCH, ACTION_DIM = 8, 14, 32
ROBOT_STATE, ROBOT_ACTION = 8, 7
ASSET = "random/robot"
DTYPES = {"bfloat16": ("BF16", np.dtype(ml_dtypes.bfloat16)), "float32": ("F32", np.dtype(np.float32))}


@dataclass(frozen=True)
class Size:
    """What differs between sizes; a vision tower has 16 heads, both Gemmas 8 query heads over one of keys."""

    image: int
    vision_width: int
    vision_layers: int
    vision_inner: int
    width: int
    inner: int
    expert_width: int
    expert_inner: int
    layers: int
    head_dim: int
    vocab: int
    horizon: int
    dtype: str


SIZES = {
    "full": Size(224, 1152, 27, 4304, 2048, 16384, 1024, 4096, 18, 256, 257152, 50, "bfloat16"),
    "race": Size(224, 640, 10, 2560, 1024, 4096, 512, 2048, 8, 128, 2048, 50, "float32"),
    "tiny": Size(28, 32, 2, 36, 24, 44, 20, 36, 3, 8, 420, 12, "float32"),
}


def shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """Return every tensor of the file by name."""
    joint = "paligemma_with_expert."
    vision = f"{joint}paligemma.model.vision_tower.vision_model."
    text, expert = f"{joint}paligemma.model.language_model.", f"{joint}gemma_expert.model."
    width, narrow = size.vision_width, size.expert_width
    found = {
        f"{vision}embeddings.patch_embedding.weight": (width, 3, PATCH, PATCH),
        f"{vision}embeddings.patch_embedding.bias": (width,),
        f"{vision}embeddings.position_embedding.weight": ((size.image // PATCH) ** 2, width),
        **linear(f"{joint}paligemma.model.multi_modal_projector.linear", size.width, width),
        f"{joint}paligemma.lm_head.weight": (size.vocab, size.width),
        f"{text}norm.weight": (size.width,),
        f"{joint}gemma_expert.lm_head.weight": (size.vocab, narrow),
        **linear(f"{expert}norm.dense", 3 * narrow, narrow),
        **linear("action_in_proj", narrow, ACTION_DIM),
        **linear("action_out_proj", ACTION_DIM, narrow),
        **linear("time_mlp_in", narrow, narrow),
        **linear("time_mlp_out", narrow, narrow),
    }
    for norm in (
        "post_layernorm",
        *(f"encoder.layers.{i}.layer_norm{n}" for i in range(size.vision_layers) for n in (1, 2)),
    ):
        found |= {f"{vision}{norm}.weight": (width,), f"{vision}{norm}.bias": (width,)}
    for i in range(size.vision_layers):
        layer = f"{vision}encoder.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= linear(f"{layer}self_attn.{name}", width, width)
        found |= linear(f"{layer}mlp.fc1", size.vision_inner, width) | linear(
            f"{layer}mlp.fc2", width, size.vision_inner
        )
    for i in range(size.layers):
        found |= gemma(f"{text}layers.{i}.", size.width, size.inner, size.head_dim)
        found |= gemma(f"{expert}layers.{i}.", narrow, size.expert_inner, size.head_dim)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{text}layers.{i}.{norm}.weight"] = (size.width,)
            found |= linear(f"{expert}layers.{i}.{norm}.dense", 3 * narrow, narrow)
    return found


def linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    """Return weight and bias of a linear layer."""
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def gemma(layer: str, width: int, inner: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    """Return the matrices of one Gemma layer."""
    return {
        f"{layer}self_attn.q_proj.weight": (HEADS * head_dim, width),
        f"{layer}self_attn.k_proj.weight": (head_dim, width),
        f"{layer}self_attn.v_proj.weight": (head_dim, width),
        f"{layer}self_attn.o_proj.weight": (width, HEADS * head_dim),
        f"{layer}mlp.gate_proj.weight": (inner, width),
        f"{layer}mlp.up_proj.weight": (inner, width),
        f"{layer}mlp.down_proj.weight": (width, inner),
    }


def scale_and_mean(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return deviation and mean of a tensor's values."""
    if "norm" in name and name.endswith(".weight") and "dense" not in name:
        return 0.3, 1.0 if "vision_model" in name else 0.0
    if name.endswith(".bias"):
        return 0.2, 0.0
    if "position_embedding" in name:
        return 0.5, 0.0
    gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
    return gain / math.sqrt(math.prod(shape[1:])), 0.0


def blocks(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Iterator[np.ndarray]:
    """Yield a tensor's values in portions; they depend on its name and the seed alone."""
    random = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
    scale, mean = scale_and_mean(name, shape)
    left = math.prod(shape)
    while left:
        values = random.standard_normal(min(left, BLOCK), np.float32)
        values *= np.float32(scale)
        values += np.float32(mean)
        left -= len(values)
        yield values.astype(dtype)


def statistics(seed: int) -> dict[str, Any]:
    """Return openpi's norm_stats.json of a made-up robot."""
    random = np.random.default_rng(np.random.SeedSequence([seed, 1]))

    def one(dims: int) -> dict[str, list[float]]:
        mean, std = random.normal(0, 0.5, dims), random.uniform(0.2, 1.0, dims)
        values = {"mean": mean, "std": std, "q01": mean - 2.3 * std, "q99": mean + 2.3 * std}
        return {key: value.tolist() for key, value in values.items()}

    return {"norm_stats": {"state": one(ROBOT_STATE), "actions": one(ROBOT_ACTION)}}


def write(folder: Path, size: Size, *, seed: int = 0, dtype: str | None = None) -> int:
    """Write the folder; returns the number of parameters that an action depends on."""
    folder.mkdir(parents=True)
    stored, kind = DTYPES[dtype or size.dtype]
    tensors = shapes(size)
    write_safetensors(
        folder / "model.safetensors",
        {name: TensorSpec(stored, shape, blocks(name, shape, kind, seed)) for name, shape in tensors.items()},
        {"format": "pt"},
    )
    config = {
        "action_dim": ACTION_DIM,
        "action_horizon": size.horizon,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "precision": dtype or size.dtype,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    assets = folder / "assets" / ASSET
    assets.mkdir(parents=True)
    (assets / "norm_stats.json").write_text(json.dumps(statistics(seed), indent=2))
    return sum(math.prod(shape) for name, shape in tensors.items() if "gemma_expert.lm_head" not in name)


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=DTYPES)
    args = parser.parse_args()
    if args.folder.exists():
        raise SystemExit(f"{args.folder} is there already: give the name of a new folder")
    count = write(args.folder, SIZES[args.size], seed=args.seed, dtype=args.dtype)
    print(f"{args.folder}: {count:,} parameters")


if __name__ == "__main__":
    main()
