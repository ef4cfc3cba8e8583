"""Hunyuan MoE: Hunyuan dense with experts on every layer and its MLP beside them as a shared one."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models import hunyuan_v1_dense
from edgewright.models._config import because
from edgewright.models._experts import ROUTER_TRAINING, expert_problems, expert_rules
from edgewright.models._rules import Rule
from edgewright.nn import moe


@dataclass(frozen=True, kw_only=True)
class Config(hunyuan_v1_dense.Config):
    """`HunYuanMoEV1Config`; `intermediate_size` is the width of the experts and of the shared one.

    The published files say that again in `moe_intermediate_size`, and list values layer by layer.
    """

    num_experts: int = 1
    moe_topk: int | list[int] = 1
    moe_intermediate_size: int | list[int] | None = None
    num_shared_expert: int | list[int] | None = None

    aliases: typing.ClassVar[Mapping[str, str]] = {
        **hunyuan_v1_dense.Config.aliases,
        "num_experts_per_tok": "moe_topk",
        "num_local_experts": "num_experts",
    }
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        **hunyuan_v1_dense.Config.fixed,
        "group_limited_greedy": False,
        "moe_layer_num_skipped": 0,
        "norm_topk_prob": True,
        "position_embedding_xdrope": False,
        "use_mixed_mlp_moe": True,
        "use_mla": False,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **hunyuan_v1_dense.Config.no_effect,
        **ROUTER_TRAINING,
        **because("training only", "moe_drop_tokens moe_random_routing_dropped_token capacity_factor"),
        **because("use_mla is false", "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
        **because("group_limited_greedy is false", "n_group topk_group routed_scaling_factor"),
        **because("classification heads", "skip_cls_token"),
        **because("token ids of multimodal models", "num_media_embeds video_start_id video_end_id"),
    }

    @property
    def top_k(self) -> list[int]:
        """How many experts each layer chooses."""
        return [self.moe_topk] * self.num_hidden_layers if isinstance(self.moe_topk, int) else self.moe_topk

    def problems(self) -> list[str]:
        found = super().problems()
        if len(self.top_k) != self.num_hidden_layers or any(k < 1 for k in self.top_k):
            found.append(f"moe_topk is {self.moe_topk}")
        for top_k in sorted(set(self.top_k)):
            found += expert_problems(self.num_experts, top_k)
        for key, value, needed in (
            ("moe_intermediate_size", self.moe_intermediate_size, self.intermediate_size),
            ("num_shared_expert", self.num_shared_expert, 1),
        ):
            values = value if isinstance(value, list) else [value] * self.num_hidden_layers
            if len(values) != self.num_hidden_layers or any(v not in (None, needed) for v in values):
                found.append(f"{key} is {value} where only {needed} is supported")
        return found


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return expert_rules(config.num_experts, config.intermediate_size)


def _experts(config: Config, top_k: int) -> nn.MoE:
    width, inner, act, experts = config.hidden_size, config.intermediate_size, config.hidden_act, config.num_experts
    choose = functools.partial(moe.softmax_top_k, top_k=top_k, renormalize=True)
    return nn.MoE(
        nn.Router(width, experts, choose),
        nn.Experts(width, inner, act, experts=experts, top_k=top_k),
        router_name="gate.wg",
        shared=nn.GatedMLP(width, inner, act),
        shared_name="shared_mlp",
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    return hunyuan_v1_dense.of_mlps(config, max_context, [_experts(config, top_k) for top_k in config.top_k])
