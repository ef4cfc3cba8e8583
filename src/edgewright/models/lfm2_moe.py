"""LFM2 MoE: LFM2 whose later layers have experts, chosen by sigmoid scores plus a bias."""

from __future__ import annotations

import functools
import typing
from collections.abc import Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models import lfm2
from edgewright.models._experts import expert_problems, expert_rules
from edgewright.models._rules import Rename, Rule
from edgewright.nn import moe

RENAMES = lfm2.RENAMES


@dataclass(frozen=True, kw_only=True)
class Config(lfm2.BaseConfig):
    """`Lfm2MoeConfig`."""

    intermediate_size: int = 7168
    num_dense_layers: int = 2
    moe_intermediate_size: int = 1792
    num_experts: int = 32
    num_experts_per_tok: int = 4
    use_expert_bias: bool = True
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    signed: typing.ClassVar[frozenset[str]] = frozenset({"num_dense_layers"})

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        return super().problems() + expert_problems(self.num_experts, self.num_experts_per_tok)


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other; the choice's bias belongs to the router."""
    return (
        *expert_rules(config.num_experts, config.moe_intermediate_size, names=("w1", "w3", "w2")),
        Rename(r"(.*\.feed_forward\.)expert_bias", r"\1gate.e_score_correction_bias"),
    )


def _experts(config: Config) -> nn.Module:
    width, experts, top_k = config.hidden_size, config.num_experts, config.num_experts_per_tok
    choose = functools.partial(
        moe.sigmoid_groups,
        experts=experts,
        top_k=top_k,
        renormalize=config.norm_topk_prob,
        tiny=1e-6,
        scale=config.routed_scaling_factor,
    )
    router = moe.Router(width, experts, choose, correction=config.use_expert_bias)
    return moe.MoE(router, moe.Experts(width, config.moe_intermediate_size, "silu", experts=experts, top_k=top_k))


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        lfm2.layer(
            config,
            kind,
            rope,
            lfm2.dense(config, config.intermediate_size) if index < config.num_dense_layers else _experts(config),
        )
        for index, kind in enumerate(config.kinds())
    ]
    return nn.causal_lm(config, layers)
