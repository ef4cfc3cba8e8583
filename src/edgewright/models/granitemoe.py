"""Granite MoE: Granite with experts in place of each MLP, stored stacked, gate and up in one matrix."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._experts import ROUTER_TRAINING, expert_problems, one_below_another
from edgewright.models._rules import Rename, Reshape, Rule, grouped_spans, split
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
    pair = grouped_spans(
        config.num_local_experts, {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
    )
    return (
        Reshape(r".*\.block_sparse_moe\.(?:input|output)_linear\.weight", one_below_another),
        split(r"(.*\.block_sparse_moe\.)input_linear(\.weight)", pair, r"\1experts.{part}\2"),
        Rename(r"(.*\.block_sparse_moe\.)output_linear\.weight", r"\1experts.down_proj.weight"),
    )


def _experts(config: Config) -> nn.MoE:
    width, experts, top_k = config.hidden_size, config.num_local_experts, config.num_experts_per_tok
    return nn.MoE(
        nn.Router(width, experts, functools.partial(moe.top_k_softmax, top_k=top_k)),
        nn.Experts(width, config.intermediate_size, config.hidden_act, experts=experts, top_k=top_k),
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
