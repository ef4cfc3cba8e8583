"""Helium: Llama with rotary positions on neighbouring pairs; `attention_bias` is that of q, k and v only."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models import llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """`HeliumConfig`."""

    num_key_value_heads: int | None = 20
    head_dim: int | None = 128
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-8
    rope_theta: float = 100000.0


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(config, rope, interleaved=True, qkv_bias=config.attention_bias, mlp_bias=config.mlp_bias)
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
