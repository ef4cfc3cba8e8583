"""Nemotron: layer norms (weights stored minus one), an MLP of squared ReLU without gate, rope on half a head."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`NemotronConfig`."""

    max_position_embeddings: int = 4096
    hidden_act: str = "relu2"
    norm_eps: float = 1e-5
    partial_rotary_factor: float = 0.5
    attention_bias: bool = False
    mlp_bias: bool = False

    absent: typing.ClassVar[frozenset[str]] = frozenset({"rms_norm_eps"})
    #: As NVIDIA's own files have it.
    aliases: typing.ClassVar[Mapping[str, str]] = {"kv_channels": "head_dim"}
    fixed: typing.ClassVar[Mapping[str, Any]] = {"rope_percent": 0.5}


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    width, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, config.norm_eps, plus=1.0)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=nn.MLP(width, inner, config.hidden_act, bias=config.mlp_bias),
            norm=norm,
            qkv_bias=bias,
            out_bias=bias,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm())
