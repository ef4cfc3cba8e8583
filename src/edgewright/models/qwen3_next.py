"""Qwen3-Next: the layers of Qwen3.5 with joined projections of the delta net, and experts with a gated shared one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models import qwen3_5_text
from edgewright.models._experts import expert_rules
from edgewright.models._qwen_moe import SparseConfig
from edgewright.models._rules import Rule, Split, grouped_spans


@dataclass(frozen=True, kw_only=True)
class Config(qwen3_5_text.BaseConfig, SparseConfig):
    """`Qwen3NextConfig`."""

    intermediate_size: int = 5632
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    num_experts: int = 512
    num_experts_per_tok: int = 10
    norm_topk_prob: bool = True


def rules(config: Config) -> Sequence[Rule]:
    """Cut the delta net's projections, which go key head by key head, into those of Qwen3.5."""
    heads, key, value = config.linear_num_key_heads, config.linear_key_head_dim, config.linear_value_head_dim
    share = config.linear_num_value_heads // heads
    spans = grouped_spans(heads, {"q": key, "k": key, "v": share * value, "z": share * value})
    small = grouped_spans(heads, {"b": share, "a": share})
    qkv = [*spans["q"], *spans["k"], *spans["v"]]
    return (
        *qwen3_5_text.rules(config),
        *expert_rules(config.num_experts, config.moe_intermediate_size),
        Split(
            r"(.*\.linear_attn\.)in_proj_qkvz\.weight",
            {r"\1in_proj_qkv.weight": qkv, r"\1in_proj_z.weight": spans["z"]},
        ),
        Split(
            r"(.*\.linear_attn\.)in_proj_ba\.weight",
            {rf"\1in_proj_{name}.weight": runs for name, runs in small.items()},
        ),
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        qwen3_5_text.layer(config, kind, rope, config.experts_of(index, shared=config.shared_expert_intermediate_size))
        for index, kind in enumerate(config.kinds())
    ]
    return nn.causal_lm(config, layers, norm_plus=1.0)
