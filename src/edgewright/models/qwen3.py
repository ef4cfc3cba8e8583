"""Qwen3: Qwen2 with RMS norms on each head's q and k instead of the q/k/v bias, and its own head_dim."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models import qwen2


@dataclass(frozen=True, kw_only=True)
class Config(qwen2.Config):
    """`Qwen3Config`."""

    head_dim: int | None = 128
    attention_bias: bool = False


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
                window=window,
                qk_norm_epsilon=config.rms_norm_eps,
            ),
            nn.GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act),
            config.rms_norm_eps,
        )
        for window in config.windows()
    ]
    return nn.causal_lm(config, layers)
