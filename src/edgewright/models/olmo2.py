"""OLMo 2: Llama with the norms behind attention and MLP, and RMS norms over the whole q and k projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Olmo2Config`."""

    rms_norm_eps: float = 1e-5
    attention_bias: bool = False


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    return of_layers(config, [(config.rope(max_context), None)] * config.num_hidden_layers)


def of_layers(config: Config, layers: Sequence[tuple[nn.RopeTable, int | None]]) -> nn.CausalLM:
    """Return the network whose layers have these ropes and windows."""

    def norm(heads: int) -> nn.RMSNorm:
        return nn.RMSNorm(heads * config.head_size, config.rms_norm_eps)

    return nn.causal_lm(
        config,
        [
            nn.decoder_layer(
                config,
                rope,
                names=nn.POST_NORM,
                qkv_bias=config.attention_bias,
                out_bias=config.attention_bias,
                window=window,
                norms=(("q_norm", norm(config.num_attention_heads)), ("k_norm", norm(config.kv_heads))),
            )
            for rope, window in layers
        ],
    )
