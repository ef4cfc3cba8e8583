"""What Qwen's families with experts share: the keys that say which layers have some, and the experts themselves."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._experts import expert_block, expert_problems
from edgewright.nn import moe


@dataclass(frozen=True, kw_only=True)
class SparseConfig(DecoderConfig):
    """A layer has experts unless `mlp_only_layers` or `decoder_sparse_step` say otherwise."""

    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool = False

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        return super().problems() + expert_problems(self.num_experts, self.num_experts_per_tok)

    def experts_of(self, index: int, *, shared: int | None = None) -> nn.MoE | None:
        """Return the experts of a layer, see `experts`, or None where it has the usual MLP."""
        if index in (self.mlp_only_layers or []) or (index + 1) % self.decoder_sparse_step:
            return None
        return experts(self, renormalize=self.norm_topk_prob, shared=shared)


class Sizes(Protocol):
    """What the experts need of a config."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def moe_intermediate_size(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def num_experts_per_tok(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...


def experts(config: Sizes, *, renormalize: bool, shared: int | None = None) -> nn.MoE:
    """Return the experts of a layer; with `shared`, its width, one more beside them, times a sigmoid of its own."""
    width, act = config.hidden_size, config.hidden_act
    beside: dict[str, Any] = {}
    if shared is not None:
        beside = {
            "shared": nn.GatedMLP(width, shared, act),
            "shared_name": "shared_expert",
            "shared_gate": moe.FloatLinear(width, 1),
        }
    return expert_block(
        width,
        config.moe_intermediate_size,
        act,
        functools.partial(moe.softmax_top_k, renormalize=renormalize),
        experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        **beside,
    )
