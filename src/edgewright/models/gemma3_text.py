"""Gemma 3 text: scaled embeddings, four norms a layer (weights stored minus one), q/k norms, local and full layers."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig, kind_rope_problems, layer_windows


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Gemma3TextConfig`; sliding layers use `rope_local_base_freq` unscaled, full layers `rope_theta` with scaling."""

    #: The published 4B file says neither these nor most others.
    vocab_size: int = 262208
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 131072
    hidden_activation: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    rope_theta: float = 1000000.0
    rope_local_base_freq: float = 10000.0
    attention_bias: bool = False
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 6
    layer_types: list[str] | None = None
    final_logit_softcapping: float | None = None

    activation: typing.ClassVar[str] = "hidden_activation"
    aliases: typing.ClassVar[Mapping[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}
    fixed: typing.ClassVar[Mapping[str, Any]] = {"use_bidirectional_attention": False}
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "hidden_act": "hidden_activation decides",
        "attn_logit_softcapping": "transformers 5.24 reads it for Gemma 3 and never applies it",
    }

    def problems(self) -> list[str]:
        return super().problems() + kind_rope_problems(self.rope_scaling)

    def windows(self) -> list[int | None]:
        """Return each layer's window: every `sliding_window_pattern`-th layer sees everything."""
        default = [bool((i + 1) % self.sliding_window_pattern) for i in range(self.num_hidden_layers)]
        return layer_windows(self.layer_types, self.sliding_window, default)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    full = config.rope(max_context)
    local = nn.RopeTable("rope_local", max_context, config.head_size, config.rope_local_base_freq)
    layers = [
        nn.decoder_layer(
            config,
            local if window else full,
            activation=config.hidden_activation,
            names=nn.SANDWICH,
            norm_plus=1.0,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            window=window,
            scale=config.query_pre_attn_scalar**-0.5,
            qk_norm_epsilon=config.rms_norm_eps,
            qk_norm_plus=1.0,
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
