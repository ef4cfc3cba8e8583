"""ERNIE 4.5: Llama with rotary positions on neighbouring pairs and one switch for all biases."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Ernie4_5Config`; an absent `head_dim` means 128, null means hidden / heads."""

    num_key_value_heads: int | None = 2
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    rope_theta: float = 500000.0
    use_bias: bool = False

    #: Keys of the first published files. transformers doesn't read them; other values mean another network there.
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "compression_ratio": 1.0,
        "attention_bias": False,
        "mlp_bias": False,
        "use_rmsnorm": True,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "hidden_dropout_prob": "training only",
        "use_flash_attention": "how attention is computed",
    }


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias = config.use_bias
    layers = [
        nn.decoder_layer(config, rope, interleaved=True, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
