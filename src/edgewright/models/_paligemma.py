"""What pi0 and pi0.5 share: SigLIP, the projector, the Gemma that reads the prefix, and the expert's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from edgewright.checkpoint.policies.sizes import ExpertSizes, TextSizes
from edgewright.graph import GraphBuilder
from edgewright.models._policy import PolicyBounds, PolicyNetwork, PolicyWeights, Values
from edgewright.models._policy_parts import Group, Reader, Tower, prefix_positions, read_prefix
from edgewright.models._policy_sizes import check_towers, patches
from edgewright.nn import (
    Embedding,
    GatedMLP,
    JointLayer,
    Linear,
    Mask,
    MixedAttention,
    Module,
    Prefix,
    RMSNorm,
    RopeTable,
    SiglipTower,
)
from edgewright.nn.siglip import PatchPositions

ACTIVATION = "gelu_pytorch_tanh"


class PaliGemmaPolicy(PolicyNetwork):
    """Vision and prefix of pi0 and pi0.5, and the expert's layers; `norm` makes a norm of the expert."""

    def __init__(self, source: PolicyWeights, bounds: PolicyBounds, norm: Callable[[], Module]) -> None:
        sizes = source.sizes
        side = patches(sizes, source.spec.image_size)
        super().__init__(source, side * side, sizes.text.layers)
        check_towers(sizes)
        text, expert, vision = sizes.text, sizes.expert, sizes.vision
        rope = RopeTable("rope", bounds.prefix + bounds.horizon + 1, text.head_dim, sizes.rope_base)
        tower = SiglipTower.of(PatchPositions(side * side, vision.width), vision, sizes.vision_epsilon)
        model = Group(
            vision_tower=Group(vision_model=tower),
            multi_modal_projector=Group(linear=Linear(vision.width, text.width, bias=True)),
            language_model=Reader(
                Embedding(text.vocab, text.width, scale=text.width**0.5),
                _layers(text, rope, lambda: gemma_norm(text, sizes.text_epsilon)),
                gemma_norm(text, sizes.text_epsilon),
            ),
        )
        actor = Tower(_layers(expert, rope, norm), norm())
        self.paligemma_with_expert = Group(paligemma=Group(model=model), gemma_expert=Group(model=actor))
        self.action_in_proj = Linear(sizes.action_dim, expert.width, bias=True)
        self.action_out_proj = Linear(expert.width, sizes.action_dim, bias=True)

    @property
    def expert(self) -> Tower:
        """The tower that acts."""
        tower: Tower = self.paligemma_with_expert.gemma_expert.model
        return tower

    def vision(self, g: GraphBuilder, images: ir.Value) -> ir.Value:
        model = self.paligemma_with_expert.paligemma.model
        features: ir.Value = model.vision_tower.vision_model(g, images)
        result: ir.Value = model.multi_modal_projector.linear(g, features)
        return result

    def prefix(
        self, g: GraphBuilder, values: Values, *, transposed: bool, kv_only: bool
    ) -> tuple[ir.Value | None, list[Prefix]]:
        reader: Reader = self.paligemma_with_expert.paligemma.model.language_model
        mask = values["prefix_mask"]
        words = reader.embed_tokens(g, values["token_ids"])
        with g.scope("prefix"):
            x = g.op("Concat", values["image_features"], words, axis=1)
        positions = prefix_positions(g, mask)
        x, read = read_prefix(g, reader.layers, x, Mask(mask), positions, transposed=transposed, kv_only=kv_only)
        return (None if kv_only else reader.norm(g, x)), read

    def act(
        self,
        g: GraphBuilder,
        x: ir.Value,
        prefix: Sequence[Prefix],
        mask: Mask,
        positions: ir.Value,
        condition: ir.Value | None = None,
    ) -> ir.Value:
        """Return the hidden states behind the expert's layers."""
        for layer, read in zip(self.expert.layers, prefix, strict=True):
            x = layer(g, x, positions=positions, prefix=read, mask=mask, condition=condition)
        return x


def gemma_norm(sizes: TextSizes | ExpertSizes, epsilon: float) -> RMSNorm:
    """Return a norm whose weight is stored minus one."""
    return RMSNorm(sizes.width, epsilon, plus=1.0)


def _layers(sizes: TextSizes | ExpertSizes, rope: RopeTable, norm: Callable[[], Module]) -> list[JointLayer]:
    return [
        JointLayer(
            MixedAttention(sizes.width, heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=sizes.head_dim, rope=rope),
            GatedMLP(sizes.width, sizes.inner, ACTIVATION),
            norm,
        )
        for _ in range(sizes.layers)
    ]
