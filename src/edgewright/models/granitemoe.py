"""Granite MoE: Granite with experts in place of each MLP, stored stacked, gate and up in one matrix."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._experts import ROUTER_TRAINING, expert_block, expert_problems, granite_rules
from edgewright.models._rules import Rule
from edgewright.nn import moe


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`GraniteMoeConfig`; `intermediate_size` is the width of an expert."""

    attention_bias: bool = False
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    no_effect: typing.ClassVar[Mapping[str, str]] = ROUTER_TRAINING

    def problems(self) -> list[str]:
        return super().problems() + expert_problems(self.num_local_experts, self.num_experts_per_tok)


def rules(config: Config) -> Sequence[Rule]:
    """Cut gate from up, expert by expert."""
    return granite_rules(config.num_local_experts, config.intermediate_size)


def _experts(config: Config) -> nn.MoE:
    return expert_block(
        config.hidden_size,
        config.intermediate_size,
        config.hidden_act,
        moe.top_k_softmax,
        experts=config.num_local_experts,
        top_k=config.num_experts_per_tok,
        router_name="router.layer",
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=_experts(config),
            names=nn.LayerNames(mlp="block_sparse_moe"),
            residual_scale=config.residual_multiplier,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            scale=config.attention_multiplier,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(
        config, layers, embedding_scale=config.embedding_multiplier, logit_scale=1 / config.logits_scaling
    )
