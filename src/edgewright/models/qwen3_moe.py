"""Qwen3 MoE: Qwen3 with experts on most layers, one window on every layer where it is asked for."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._experts import ROUTER_TRAINING, expert_rules
from edgewright.models._qwen_moe import SparseConfig
from edgewright.models._rules import Rule


@dataclass(frozen=True, kw_only=True)
class Config(SparseConfig):
    """`Qwen3MoeConfig`."""

    intermediate_size: int = 6144
    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    moe_intermediate_size: int = 768
    num_experts: int = 128
    num_experts_per_tok: int = 8

    aliases: typing.ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}
    #: Keys of some published files that transformers doesn't read; other values would be another network.
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "qkv_bias": False,
        "use_qk_norm": True,
        "shared_expert_intermediate_size": 0,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **ROUTER_TRAINING,
        "max_window_layers": "the window is on all layers or on none",
    }


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return expert_rules(config.num_experts, config.moe_intermediate_size)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            qk_norm_epsilon=config.rms_norm_eps,
            window=config.sliding_window if config.use_sliding_window else None,
            mlp=config.experts_of(index),
        )
        for index in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
