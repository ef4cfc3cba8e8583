"""Gemma 2: Gemma with four norms a layer, soft caps on scores and logits, and a window on every other layer."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig, layer_windows


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Gemma2Config`; an absent cap means 50 for scores and 30 for logits, null means none."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 8192
    hidden_activation: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0

    activation: typing.ClassVar[str] = "hidden_activation"
    absent: typing.ClassVar[frozenset[str]] = frozenset({"hidden_act"})
    aliases: typing.ClassVar[Mapping[str, str]] = {"sliding_window_size": "sliding_window"}
    fixed: typing.ClassVar[Mapping[str, Any]] = {"use_bidirectional_attention": False}
    no_effect: typing.ClassVar[Mapping[str, str]] = {"hidden_act": "hidden_activation decides"}

    def windows(self) -> list[int | None]:
        """Return each layer's window; without `layer_types` the even layers have one."""
        default = [i % 2 == 0 for i in range(self.num_hidden_layers)]
        return layer_windows(self.layer_types, self.sliding_window, default)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            activation=config.hidden_activation,
            names=nn.SANDWICH,
            norm_plus=1.0,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            window=window,
            scale=config.query_pre_attn_scalar**-0.5,
            softcap=config.attn_logit_softcapping,
        )
        for window in config.windows()
    ]
    return nn.causal_lm(
        config,
        layers,
        norm_plus=1.0,
        embedding_scale=config.hidden_size**0.5,
        softcap=config.final_logit_softcapping,
    )
