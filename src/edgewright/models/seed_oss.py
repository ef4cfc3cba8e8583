"""Seed-OSS: Llama with a bias on q, k and v, and switches of their own for the other biases."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`SeedOssConfig`; an absent `head_dim` means 128, null means hidden / heads."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 524288
    attention_bias: bool = True
    attention_out_bias: bool = False
    mlp_bias: bool = False

    no_effect: typing.ClassVar[Mapping[str, str]] = {"residual_dropout": "training only"}


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_out_bias,
            mlp_bias=config.mlp_bias,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
