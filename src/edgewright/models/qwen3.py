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
    rope = config.rope(max_context)
    bias, epsilon = config.attention_bias, config.rms_norm_eps
    layers = [
        nn.decoder_layer(config, rope, qkv_bias=bias, out_bias=bias, window=window, qk_norm_epsilon=epsilon)
        for window in config.windows()
    ]
    return nn.causal_lm(config, layers)
