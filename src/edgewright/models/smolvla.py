"""SmolVLA: a small VLM reads images, text and state; a narrower expert that looks at its layers moves actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgewright.checkpoint.policies.sizes import ExpertSizes, PolicySizes, TextSizes
from edgewright.errors import ConfigError
from edgewright.graph import GraphBuilder
from edgewright.models._policy import PolicyBounds, PolicyNetwork, PolicyWeights, Values
from edgewright.models._policy_parts import (
    Group,
    Reader,
    TimedActions,
    Tower,
    first_positions,
    in_turn,
    length,
    prefix_positions,
    read_prefix,
    silu,
    suffix_in_turn,
    suffix_positions,
)
from edgewright.models._policy_sizes import check_towers, patches
from edgewright.nn import (
    Embedding,
    GatedMLP,
    JointLayer,
    Linear,
    Mask,
    MixedAttention,
    Prefix,
    RMSNorm,
    RopeTable,
    SiglipTower,
    scaled,
)
from edgewright.nn.siglip import PatchPositions, pixel_shuffle


@dataclass(frozen=True)
class _Rope(RopeTable):
    """Positions are divided by wavelengths, in float32, where others multiply them by frequencies."""

    def _rows(self, function: np.ufunc, positions: np.ndarray, *, long: bool) -> np.ndarray:
        half = self.rotary_dim // 2
        exponents = np.float32(2.0 / self.rotary_dim) * np.arange(half, dtype=np.float32)
        lengths = np.power(np.float64(self.theta), exponents.astype(np.float64)).astype(np.float32)
        turns = positions.astype(np.float32)[:, None] / lengths
        values: np.ndarray = function(turns.astype(np.float64)).astype(np.float32)
        return values


class SmolVLA(PolicyNetwork):
    """The state's token is the prefix's last, sees all of it and is seen by itself alone; actions see those before.

    Of the expert's layers every `self_attention_every`-th mixes the actions with the prefix, the others look across at
    projections of the prefix's keys and values.
    """

    state_in_prefix = True

    def __init__(self, source: PolicyWeights, bounds: PolicyBounds) -> None:
        sizes = source.sizes
        side = patches(sizes, source.spec.image_size)
        shuffle = sizes.pixel_shuffle
        super().__init__(source, (side // shuffle) ** 2, sizes.expert.layers)
        check_towers(sizes)
        _check_layers(sizes)
        self._side, self._shuffle = side, shuffle
        text, expert, vision = sizes.text, sizes.expert, sizes.vision
        rope = _Rope("rope", bounds.prefix + bounds.horizon, text.head_dim, sizes.rope_base)
        self.vlm_with_expert = Group(
            vlm=Group(
                model=Group(
                    vision_model=SiglipTower.of(_positions(source, side), vision, sizes.vision_epsilon),
                    connector=Group(
                        modality_projection=Group(proj=Linear(vision.width * shuffle * shuffle, text.width))
                    ),
                    text_model=Reader(
                        Embedding(text.vocab, text.width, scale=math.sqrt(text.width)),
                        [_layer(text, rope, sizes.text_epsilon) for _ in range(text.layers)],
                        RMSNorm(text.width, sizes.text_epsilon),
                    ),
                )
            ),
            lm_expert=Tower(
                [
                    _layer(expert, rope, sizes.text_epsilon, across=_across(sizes, index))
                    for index in range(expert.layers)
                ],
                RMSNorm(expert.width, sizes.text_epsilon),
            ),
        )
        self.state_proj = Linear(sizes.state_dim, text.width, bias=True)
        self.action_in_proj = Linear(sizes.action_dim, expert.width, bias=True)
        self.action_out_proj = Linear(expert.width, sizes.action_dim, bias=True)
        self.action_time_mlp_in = TimedActions(expert.width)
        self.action_time_mlp_out = Linear(expert.width, expert.width, bias=True)

    def vision(self, g: GraphBuilder, images: ir.Value) -> ir.Value:
        model = self.vlm_with_expert.vlm.model
        features = model.vision_model(g, images)
        with g.scope(model.connector.path):
            grid = (self._side, self._side)
            joined = pixel_shuffle(g, features, grid, self.sizes.vision.width, self._shuffle)
        projected = model.connector.modality_projection.proj(g, joined)
        with g.scope(model.connector.path):
            return scaled(g, projected, math.sqrt(self.sizes.text.width))

    def prefix(
        self, g: GraphBuilder, values: Values, *, transposed: bool, kv_only: bool
    ) -> tuple[ir.Value | None, list[Prefix]]:
        reader: Reader = self.vlm_with_expert.vlm.model.text_model
        words, state = reader.embed_tokens(g, values["token_ids"]), self.state_proj(g, values["state"])
        with g.scope("prefix"):
            last = g.op("Unsqueeze", state, g.constant([1], np.int64))
            x = g.op("Concat", values["image_features"], words, last, axis=1)
        mask = self._prefix_mask(g, values["prefix_mask"])
        positions = prefix_positions(g, values["prefix_mask"])
        step = self.sizes.text.layers // self.sizes.expert.layers
        needed = reader.layers[: step * (self.sizes.expert.layers - 1) + 1] if kv_only else reader.layers
        x, read = read_prefix(g, needed, x, mask, positions, transposed=transposed, kv_only=kv_only)
        experts: Sequence[JointLayer] = self.vlm_with_expert.lm_expert.layers
        given = [
            layer.self_attn.as_projected(g, prefix) if self.cross_once and layer.self_attn.from_prefix else prefix
            for layer, prefix in zip(experts, read[::step], strict=True)
        ]
        return (None if kv_only else reader.norm(g, x)), given

    def _prefix_mask(self, g: GraphBuilder, valid: ir.Value) -> Mask:
        with g.scope("prefix.mask"):
            count, zero, one = length(g, valid), g.constant(0, np.int64), g.constant(1, np.int64)
            steps = g.op("Range", one, g.op("Add", count, one), one)
            blocks = g.op("Div", steps, count)  # 1 for the last row, 0 for all others
            keys = g.op("Unsqueeze", valid, g.constant([1], np.int64))
            return Mask(g.op("Mul", keys, in_turn(g, g.op("Max", blocks, zero))), by_row=True)

    def denoise(self, g: GraphBuilder, values: Values, prefix: Sequence[Prefix]) -> ir.Value:
        valid, x_t = values["prefix_mask"], values["x_t"]
        inner = self.action_time_mlp_in(g, self.action_in_proj(g, x_t), values["time_embedding"])
        with g.scope("action_time_mlp_in"):
            inner = silu(g, inner)
        x = self.action_time_mlp_out(g, inner)
        with g.scope("suffix"):
            rows = length(g, x_t)
        among = {"positions": suffix_positions(g, valid, rows), "mask": suffix_in_turn(g, valid, rows, blocks=None)}
        across = {"positions": first_positions(g, valid, rows), "mask": Mask(valid)}
        for layer, read in zip(self.vlm_with_expert.lm_expert.layers, prefix, strict=True):
            looks = layer.self_attn.from_prefix
            x = layer(g, x, prefix=read, projected=looks and self.cross_once, **(across if looks else among))
        result: ir.Value = self.action_out_proj(g, self.vlm_with_expert.lm_expert.norm(g, x))
        return result


def network(source: PolicyWeights, bounds: PolicyBounds) -> SmolVLA:
    """Return the network of a checkpoint."""
    return SmolVLA(source, bounds)


def _layer(sizes: TextSizes | ExpertSizes, rope: RopeTable, epsilon: float, *, across: bool = False) -> JointLayer:
    attention = MixedAttention(
        sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        rope=rope,
        from_prefix=across,
    )
    return JointLayer(attention, GatedMLP(sizes.width, sizes.inner, "silu"), lambda: RMSNorm(sizes.width, epsilon))


def _across(sizes: PolicySizes, index: int) -> bool:
    """Tell whether a layer looks across; with no `self_attention_every` they all do."""
    every = sizes.self_attention_every
    return every <= 0 or index % every != 0


def _check_layers(sizes: PolicySizes) -> None:
    """Raise ConfigError where the expert's layers have no layer each to read, or the two numberings disagree."""
    step, rest = divmod(sizes.text.layers, sizes.expert.layers)
    if rest:
        raise ConfigError(
            f"The expert's {sizes.expert.layers} layers can't be spread over {sizes.text.layers}: check "
            "num_expert_layers."
        )
    # The projections are sized by the expert's own numbering, and used by that of the layers which are read.
    if any(_across(sizes, index) != _across(sizes, index * step) for index in range(sizes.expert.layers)):
        raise ConfigError(
            f"An expert layer for every {step} layers and self-attention in every {sizes.self_attention_every} don't "
            "go together: check num_expert_layers and self_attn_every_n_layers."
        )


def _positions(source: PolicyWeights, side: int) -> PatchPositions:
    """Return the position table's rows of an image of `side` by `side` patches.

    A patch takes the row that its place, as a fraction of the side, falls on, in float32 as SmolVLM computes it.
    """
    width = source.sizes.vision.width
    name = "vlm_with_expert.vlm.model.vision_model.embeddings.position_embedding.weight"
    stored = source.tensors[name].shape[0] if name in source.tensors else side * side
    table = math.isqrt(stored)
    edges = (1 / table + np.arange(table - 1) * (1 / table)).astype(np.float32)
    places = np.minimum(np.arange(side, dtype=np.float32) * np.float32(1 / side), np.float32(1 - 1e-6))
    bucket = np.searchsorted(edges, places, side="right")
    rows = (bucket[:, None] * table + bucket[None, :]).reshape(-1)
    return PatchPositions(side * side, width, stored, tuple(int(row) for row in rows))
