"""Granite: Llama with four multipliers: of embeddings, attention scores, what is added to the residual, and logits."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models import llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """`GraniteConfig`; scores are multiplied by `attention_multiplier` instead of one over the root of the width."""

    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            residual_scale=config.residual_multiplier,
            mlp_bias=config.mlp_bias,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            scale=config.attention_multiplier,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(
        config, layers, embedding_scale=config.embedding_multiplier, logit_scale=1 / config.logits_scaling
    )
