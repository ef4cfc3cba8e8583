"""GLM-4.5: the experts of DeepSeek-V3 with common attention, a rope on half of each head, and norms of q and k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._routed import SigmoidConfig, routed_rules
from edgewright.models._rules import Rule


@dataclass(frozen=True, kw_only=True)
class Config(SigmoidConfig):
    """`Glm4MoeConfig`; `attention_bias` is that of q, k and v, the output has none."""

    intermediate_size: int = 10944
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 0.5
    attention_bias: bool = False
    use_qk_norm: bool = False
    moe_intermediate_size: int = 1408
    n_routed_experts: int = 128
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    first_k_dense_replace: int = 1
    n_group: int = 1
    topk_group: int = 1


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return routed_rules(config)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            qkv_bias=config.attention_bias,
            qk_norm_epsilon=config.rms_norm_eps if config.use_qk_norm else None,
            mlp=config.feed_forward(index),
        )
        for index in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
