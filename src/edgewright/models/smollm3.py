"""SmolLM3: Llama in which some layers have no rotary positions, and windows where asked for."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig, layer_windows


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`SmolLM3Config`; `no_rope_layers[i]` is 1 where layer i has rotary positions, 0 where it has none."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768
    rope_theta: float = 2000000.0
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int = 4
    use_sliding_window: bool = False
    sliding_window: int | None = None
    layer_types: list[str] | None = None

    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "max_window_layers": "layer_types or no_rope_layers decide",
    }

    def rotary_layers(self) -> list[bool]:
        """Return which layers have rotary positions; without a list every `no_rope_layer_interval`-th has none."""
        if self.no_rope_layers is not None:
            return [bool(x) for x in self.no_rope_layers]
        return [bool((i + 1) % self.no_rope_layer_interval) for i in range(self.num_hidden_layers)]

    def problems(self) -> list[str]:
        found = super().problems()
        if found:
            return found
        if len(self.rotary_layers()) != self.num_hidden_layers:
            found.append(f"no_rope_layers has {len(self.rotary_layers())} entries for {self.num_hidden_layers} layers")
        if self.no_rope_layers is not None and set(self.no_rope_layers) - {0, 1}:
            found.append(f"no_rope_layers holds more than 0 and 1: {self.no_rope_layers}")
        if not self.use_sliding_window and "sliding_attention" in (self.layer_types or []):
            found.append("layer_types asks for sliding attention but use_sliding_window is false")
        return found

    def windows(self) -> list[int | None]:
        """Return each layer's window."""
        active = self.use_sliding_window and self.sliding_window is not None
        default = [active and not rotary for rotary in self.rotary_layers()]
        return layer_windows(self.layer_types, self.sliding_window, default)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias = config.attention_bias
    layers = [
        nn.decoder_layer(
            config,
            rope if rotary else None,
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=config.mlp_bias,
            window=window,
        )
        for rotary, window in zip(config.rotary_layers(), config.windows(), strict=True)
    ]
    return nn.causal_lm(config, layers)
