"""Mistral: Llama with one sliding window on every layer, or none."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`MistralConfig`; an absent `sliding_window` means 4096, null means none."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = nn.RopeTable("rope", max_context, config.head_size, config.rope_theta, config.rope_scaling)
    layers = [
        nn.DecoderLayer(
            config.hidden_size,
            nn.Attention(
                config.hidden_size,
                heads=config.num_attention_heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_size,
                rope=rope,
                window=config.sliding_window,
            ),
            nn.GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act),
            config.rms_norm_eps,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
