"""Qwen2: Llama with a bias on q, k and v (not on the output), and windows on the upper layers when asked for."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig, layer_windows


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Qwen2Config`; the window counts only with `use_sliding_window`, from layer `max_window_layers` on."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    fixed: typing.ClassVar[Mapping[str, Any]] = {"use_mrope": False}
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "dual_chunk_attention_config": "how other runtimes go beyond the trained length; transformers doesn't read it"
    }
    signed: typing.ClassVar[frozenset[str]] = frozenset({"max_window_layers"})

    def windows(self) -> list[int | None]:
        """Return each layer's window."""
        upper = [self.use_sliding_window and i >= self.max_window_layers for i in range(self.num_hidden_layers)]
        window = self.sliding_window if self.use_sliding_window else None
        return layer_windows(self.layer_types, window, [u and window is not None for u in upper])


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [nn.decoder_layer(config, rope, qkv_bias=True, window=window) for window in config.windows()]
    return nn.causal_lm(config, layers)
