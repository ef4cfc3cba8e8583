"""Mixtral: Mistral with experts in place of each MLP, the softmax of those chosen divided by their sum."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._experts import ROUTER_TRAINING, expert_block, expert_problems, expert_rules
from edgewright.models._rules import Rule
from edgewright.nn import moe


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`MixtralConfig`; the window is on every layer."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1000000.0
    sliding_window: int | None = None
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    aliases: typing.ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}
    no_effect: typing.ClassVar[Mapping[str, str]] = ROUTER_TRAINING

    def problems(self) -> list[str]:
        return super().problems() + expert_problems(self.num_local_experts, self.num_experts_per_tok)


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return expert_rules(config.num_local_experts, config.intermediate_size, names=("w1", "w3", "w2"))


def _experts(config: Config) -> nn.MoE:
    return expert_block(
        config.hidden_size,
        config.intermediate_size,
        config.hidden_act,
        functools.partial(moe.softmax_top_k, renormalize=True),
        experts=config.num_local_experts,
        top_k=config.num_experts_per_tok,
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            window=config.sliding_window,
            mlp=_experts(config),
            names=nn.LayerNames(mlp="block_sparse_moe"),
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
