"""Arcee (AFM): Llama with a squared-ReLU MLP without gate."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright import nn
from edgewright.models import llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """`ArceeConfig`."""

    max_position_embeddings: int = 4096
    hidden_act: str = "relu2"
    rms_norm_eps: float = 1e-5


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    width, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=nn.MLP(width, inner, config.hidden_act, bias=config.mlp_bias),
            qkv_bias=bias,
            out_bias=bias,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
