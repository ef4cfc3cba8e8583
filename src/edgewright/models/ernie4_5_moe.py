"""ERNIE 4.5 MoE: ERNIE 4.5 with experts, chosen by softmax plus a bias, beside shared ones on a range of layers."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._experts import ROUTER_TRAINING, expert_problems, expert_rules
from edgewright.models._rules import Rename, Reshape, Rule
from edgewright.nn import moe

#: Blocks that predict further tokens.
OTHER_STAGES = ("model.mtp_", "mtp_")


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Ernie4_5_MoeConfig`; `use_bias` is that of attention, MLPs, shared experts and the head."""

    intermediate_size: int = 12288
    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    rope_theta: float = 500000.0
    use_bias: bool = False
    moe_intermediate_size: int = 1536
    moe_k: int = 6
    moe_num_experts: int = 64
    moe_num_shared_experts: int = 2
    moe_layer_start_index: int = 1
    moe_layer_end_index: int = -1
    moe_layer_interval: int = 1

    signed: typing.ClassVar[frozenset[str]] = frozenset(
        {"moe_num_shared_experts", "moe_layer_start_index", "moe_layer_end_index"}
    )
    aliases: typing.ClassVar[Mapping[str, str]] = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}
    #: Besides the smallest sum, keys of the first published files that transformers doesn't read.
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "moe_norm_min": 1e-12,
        "moe_gate": "topk",
        "moe_use_aux_free": True,
        "compression_ratio": 1.0,
        "use_rmsnorm": True,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **ROUTER_TRAINING,
        "moe_capacity": "training only",
        "num_nextn_predict_layers": "blocks that predict further tokens are not used",
    }

    def sparse(self, index: int) -> bool:
        """Tell whether a layer has experts."""
        last = self.num_hidden_layers - 1 if self.moe_layer_end_index == -1 else self.moe_layer_end_index
        return (index + 1) % self.moe_layer_interval == 0 and self.moe_layer_start_index <= index <= last

    def problems(self) -> list[str]:
        found = super().problems() + expert_problems(self.moe_num_experts, self.moe_k)
        if self.moe_num_shared_experts < 0:
            found.append(f"moe_num_shared_experts is {self.moe_num_shared_experts}")
        if not -1 <= self.moe_layer_end_index < self.num_hidden_layers:
            found.append(f"moe_layer_end_index is {self.moe_layer_end_index} of {self.num_hidden_layers} layers")
        if self.moe_layer_start_index < 0:
            found.append(f"moe_layer_start_index is {self.moe_layer_start_index}")
        return found


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other; the choice's bias, stored as a row, belongs to the router."""
    bias = r"(.*\.mlp\.)(?:gate\.)?moe_statics\.e_score_correction_bias"
    return (
        *expert_rules(config.moe_num_experts, config.moe_intermediate_size),
        Reshape(bias, lambda shape: shape[-1:] if shape[:-1] == (1,) else shape),
        Rename(bias, r"\1gate.e_score_correction_bias"),
    )


def _feed_forward(config: Config, index: int) -> nn.Module:
    width, act, inner = config.hidden_size, config.hidden_act, config.moe_intermediate_size
    if not config.sparse(index):
        return nn.GatedMLP(width, config.intermediate_size, act, bias=config.use_bias)
    experts, top_k, shared = config.moe_num_experts, config.moe_k, config.moe_num_shared_experts
    choose = functools.partial(moe.softmax_corrected, top_k=top_k, floor=1e-12)
    return nn.MoE(
        nn.Router(width, experts, choose, correction=True),
        nn.Experts(width, inner, act, experts=experts, top_k=top_k),
        shared=nn.GatedMLP(width, inner * shared, act, bias=config.use_bias) if shared else None,
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias = config.use_bias
    layers = [
        nn.decoder_layer(config, rope, interleaved=True, qkv_bias=bias, out_bias=bias, mlp=_feed_forward(config, index))
        for index in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, head_bias=bias)
