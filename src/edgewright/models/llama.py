"""Llama: pre-norm decoder, grouped-query attention, rotary positions, SwiGLU. The base most families vary."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`LlamaConfig`."""

    attention_bias: bool = False
    mlp_bias: bool = False


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = nn.RopeTable("rope", max_context, config.head_size, config.rope_theta, config.rope_scaling)
    bias = config.attention_bias
    layers = [
        nn.decoder_layer(config, rope, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
