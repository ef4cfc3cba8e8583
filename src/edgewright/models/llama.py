"""Llama: pre-norm decoder, grouped-query attention, rotary positions, SwiGLU. The base most families vary."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`LlamaConfig`."""

    attention_bias: bool = False
    mlp_bias: bool = False


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = nn.RopeTable("rope", max_context, config.head_size, config.rope_theta, config.rope_scaling)
    layers = [
        nn.DecoderLayer(
            config.hidden_size,
            nn.Attention(
                config.hidden_size,
                heads=config.num_attention_heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_size,
                rope=rope,
                qkv_bias=config.attention_bias,
                out_bias=config.attention_bias,
            ),
            nn.GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, bias=config.mlp_bias),
            config.rms_norm_eps,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
