"""DeepSeek-V2: latent attention, a few dense layers, then experts chosen by softmax beside shared ones."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._mla import LatentConfig, latent_rules
from edgewright.models._routed import RoutedConfig, routed_rules
from edgewright.models._rules import Rule
from edgewright.nn import moe


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig, RoutedConfig):
    """`DeepseekV2Config`; groups count for the `topk_method` `group_limited_greedy` only."""

    moe_intermediate_size: int = 1407
    n_routed_experts: int = 64
    n_shared_experts: int = 2
    first_k_dense_replace: int = 0
    n_group: int | None = None
    topk_group: int | None = None
    topk_method: str = "greedy"
    mlp_bias: bool = False

    #: The weights of those chosen are never divided by their sum in transformers.
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        **RoutedConfig.fixed,
        "scoring_func": "softmax",
        "norm_topk_prob": False,
    }

    @property
    def groups(self) -> tuple[int, int]:
        return super().groups if self.topk_method == "group_limited_greedy" else (1, 1)

    def problems(self) -> list[str]:
        found = super().problems()
        if self.topk_method not in ("greedy", "group_limited_greedy"):
            found.append(f"topk_method is {self.topk_method!r}")
        return found

    def router(self) -> moe.Router:
        groups, kept = self.groups
        choose = functools.partial(
            moe.softmax_groups,
            experts=self.n_routed_experts,
            top_k=self.num_experts_per_tok,
            groups=groups,
            top_groups=kept,
            scale=self.routed_scaling_factor,
        )
        return moe.Router(self.hidden_size, self.n_routed_experts, choose)


def rules(config: Config) -> Sequence[Rule]:
    """Cut the projections of the latent and put the experts' matrices behind each other."""
    return (*routed_rules(config), *latent_rules(config))


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            None,
            mixer=config.attention(rope, interleaved=True),
            mlp=config.feed_forward(index, bias=config.mlp_bias),
        )
        for index in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
