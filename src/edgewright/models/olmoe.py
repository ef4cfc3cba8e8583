"""OLMoE: Llama with experts in place of each MLP, and RMS norms over the whole q and k projections, then bounded."""

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
    """`OlmoeConfig`; `intermediate_size` is the width of an expert."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    clip_qkv: float | None = None
    num_experts: int = 64
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False

    aliases: typing.ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}
    no_effect: typing.ClassVar[Mapping[str, str]] = ROUTER_TRAINING

    def problems(self) -> list[str]:
        return super().problems() + expert_problems(self.num_experts, self.num_experts_per_tok)


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return expert_rules(config.num_experts, config.intermediate_size)


def _layer(config: Config, rope: nn.RopeTable) -> nn.DecoderLayer:
    def norm(heads: int) -> nn.RMSNorm:
        return nn.RMSNorm(heads * config.head_size, config.rms_norm_eps)

    return nn.decoder_layer(
        config,
        rope,
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        norms=(("q_norm", norm(config.num_attention_heads)), ("k_norm", norm(config.kv_heads))),
        clip=config.clip_qkv,
        mlp=expert_block(
            config.hidden_size,
            config.intermediate_size,
            config.hidden_act,
            functools.partial(moe.softmax_top_k, renormalize=config.norm_topk_prob),
            experts=config.num_experts,
            top_k=config.num_experts_per_tok,
        ),
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    return nn.causal_lm(config, [_layer(config, rope) for _ in range(config.num_hidden_layers)])
