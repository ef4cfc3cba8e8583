"""What DeepSeek-V3 and GLM-4.5 share: experts chosen by sigmoid scores within the best groups, and shared experts."""

from __future__ import annotations

import functools
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._experts import ROUTER_TRAINING, expert_problems, expert_rules
from edgewright.models._rules import Drop, Rule, Tensors
from edgewright.nn import moe


@dataclass(frozen=True, kw_only=True)
class RoutedConfig(DecoderConfig, ABC):
    """The experts' keys; the first `first_k_dense_replace` layers have none."""

    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int
    n_group: int | None
    topk_group: int | None
    routed_scaling_factor: float = 1.0

    signed: typing.ClassVar[frozenset[str]] = frozenset({"first_k_dense_replace"})
    aliases: typing.ClassVar[Mapping[str, str]] = {
        "num_experts": "n_routed_experts",
        "num_local_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    }
    #: Keys of the published code with the one meaning transformers has.
    fixed: typing.ClassVar[Mapping[str, Any]] = {"moe_layer_freq": 1}
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **ROUTER_TRAINING,
        "num_nextn_predict_layers": "layers that predict further tokens are not used",
    }

    @property
    def groups(self) -> tuple[int, int]:
        """Into how many groups the experts are parted and of how many the best are kept."""
        return (self.n_group or 1, self.topk_group or 1)

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        groups, kept = self.groups
        found = super().problems()
        found += expert_problems(
            self.n_routed_experts, self.num_experts_per_tok, groups=groups, top_groups=kept, smallest=1
        )
        if self.first_k_dense_replace < 0:
            found.append(f"first_k_dense_replace is {self.first_k_dense_replace}")
        return found

    @abstractmethod
    def router(self) -> moe.Router:
        """Return the router of a layer."""

    def feed_forward(self, index: int, *, bias: bool = False) -> nn.Module:
        """Return the MLP of a layer: dense, or experts with the shared ones beside them."""
        width, act = self.hidden_size, self.hidden_act
        if index < self.first_k_dense_replace:
            return nn.GatedMLP(width, self.intermediate_size, act, bias=bias)
        inner, experts, top_k = self.moe_intermediate_size, self.n_routed_experts, self.num_experts_per_tok
        return nn.MoE(
            self.router(),
            nn.Experts(width, inner, act, experts=experts, top_k=top_k),
            shared=nn.GatedMLP(width, inner * self.n_shared_experts, act, bias=bias),
        )


@dataclass(frozen=True, kw_only=True)
class SigmoidConfig(RoutedConfig):
    """Sigmoid scores, plus a bias for the choice."""

    norm_topk_prob: bool = True

    fixed: typing.ClassVar[Mapping[str, Any]] = {
        **RoutedConfig.fixed,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }

    def problems(self) -> list[str]:
        found = super().problems()
        if self.n_routed_experts < 2 * self.groups[0]:
            found.append(f"{self.groups[0]} groups of {self.n_routed_experts} experts hold fewer than 2 each")
        return found

    def router(self) -> moe.Router:
        groups, kept = self.groups
        choose = functools.partial(
            moe.sigmoid_groups,
            experts=self.n_routed_experts,
            top_k=self.num_experts_per_tok,
            groups=groups,
            top_groups=kept,
            renormalize=self.norm_topk_prob,
            scale=self.routed_scaling_factor,
        )
        return moe.Router(self.hidden_size, self.n_routed_experts, choose, correction=True)


class _DropPredictors:
    """Leave out the layers behind the last one that predict further tokens: they have an `eh_proj`."""

    def __init__(self, layers: int) -> None:
        self._layers = layers

    def apply(self, tensors: Tensors) -> str | None:
        found = [re.fullmatch(r"model\.layers\.(\d+)\.eh_proj\.weight", name) for name in tensors]
        extra = [match[1] for match in found if match and int(match[1]) >= self._layers]
        if not extra:
            return None
        return Drop(rf"model\.layers\.(?:{'|'.join(extra)})\..*", "layers that predict further tokens").apply(tensors)


def routed_rules(config: RoutedConfig) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return (
        _DropPredictors(config.num_hidden_layers),
        *expert_rules(config.n_routed_experts, config.moe_intermediate_size),
    )
