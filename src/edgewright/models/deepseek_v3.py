"""DeepSeek-V3 and R1: latent attention, a few dense layers, then experts chosen by sigmoid scores in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._mla import LatentConfig, latent_rules
from edgewright.models._routed import SigmoidConfig, routed_rules
from edgewright.models._rules import Rule


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig, SigmoidConfig):
    """`DeepseekV3Config`; `rope_interleave` false turns halves instead of neighbouring pairs."""

    max_position_embeddings: int = 4096
    moe_intermediate_size: int = 2048
    n_routed_experts: int = 256
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    first_k_dense_replace: int = 3
    n_group: int = 8
    topk_group: int = 4
    routed_scaling_factor: float = 2.5
    rope_interleave: bool = True


def rules(config: Config) -> Sequence[Rule]:
    """Cut the projections of the latent and put the experts' matrices behind each other."""
    return (*routed_rules(config), *latent_rules(config))


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            None,
            mixer=config.attention(rope, interleaved=config.rope_interleave),
            mlp=config.feed_forward(index),
        )
        for index in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
