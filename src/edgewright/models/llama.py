"""Llama: pre-norm decoder, grouped-query attention, rotary positions, SwiGLU. The base most families vary."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`LlamaConfig`."""

    attention_bias: bool = False
    mlp_bias: bool = False

    #: What the files of Falcon 3 call the gated SiLU.
    fixed: typing.ClassVar[Mapping[str, Any]] = {"activation": "swiglu"}
    no_effect: typing.ClassVar[Mapping[str, str]] = {"max_sequence_length": "max_position_embeddings decides"}


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias = config.attention_bias
    layers = [
        nn.decoder_layer(config, rope, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
