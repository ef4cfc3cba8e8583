"""Qwen3.5 MoE text: Qwen3.5 with experts in every layer and a gated shared one."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from edgewright import nn
from edgewright.models import qwen3_5_text
from edgewright.models._experts import expert_problems, expert_rules
from edgewright.models._qwen_moe import experts
from edgewright.models._rules import Rule

RENAMES = qwen3_5_text.RENAMES
OTHER_STAGES = qwen3_5_text.OTHER_STAGES


@dataclass(frozen=True, kw_only=True)
class Config(qwen3_5_text.BaseConfig):
    """`Qwen3_5MoeTextConfig`."""

    intermediate_size: int = 1
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    num_experts: int = 256
    num_experts_per_tok: int = 8

    absent: typing.ClassVar[frozenset[str]] = qwen3_5_text.BaseConfig.absent | {"intermediate_size"}
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        **qwen3_5_text.BaseConfig.fixed,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **qwen3_5_text.BaseConfig.no_effect,
        "intermediate_size": "no layer is without experts",
    }

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read a config; raises ConfigError."""
        return super().read(qwen3_5_text.without_mrope(config))

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        return super().problems() + expert_problems(self.num_experts, self.num_experts_per_tok)


def rules(config: Config) -> Sequence[Rule]:
    """Cut each head's query from its gate, and put the experts' matrices behind each other."""
    return *qwen3_5_text.rules(config), *expert_rules(config.num_experts, config.moe_intermediate_size)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        qwen3_5_text.layer(
            config, kind, rope, experts(config, renormalize=True, shared=config.shared_expert_intermediate_size)
        )
        for kind in config.kinds()
    ]
    return nn.causal_lm(config, layers, norm_plus=1.0)
