"""The experts of Qwen's families: softmax over all, and a shared expert times a sigmoid of its own."""

from __future__ import annotations

import functools
from typing import Protocol

from edgewright import nn
from edgewright.nn import moe


class Sizes(Protocol):
    """What the experts need of a config."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def moe_intermediate_size(self) -> int: ...
    @property
    def shared_expert_intermediate_size(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def num_experts_per_tok(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...


def experts(config: Sizes, *, renormalize: bool) -> moe.MoE:
    """Return the experts of a layer."""
    width, top_k, act = config.hidden_size, config.num_experts_per_tok, config.hidden_act
    choose = functools.partial(moe.softmax_top_k, top_k=top_k, renormalize=renormalize)
    return moe.MoE(
        moe.Router(width, config.num_experts, choose),
        moe.Experts(width, config.moe_intermediate_size, act, experts=config.num_experts, top_k=top_k),
        shared=nn.GatedMLP(width, config.shared_expert_intermediate_size, act),
        shared_name="shared_expert",
        shared_gate=moe.FloatLinear(width, 1),
    )
