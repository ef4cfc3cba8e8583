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
    rope = config.rope(max_context)
    layers = [nn.decoder_layer(config, rope, window=config.sliding_window) for _ in range(config.num_hidden_layers)]
    return nn.causal_lm(config, layers)
