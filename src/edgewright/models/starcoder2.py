"""StarCoder2: layer norms, an MLP without gate, biases on every linear layer, one window or none."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Starcoder2Config`; its `norm_epsilon` is `rms_norm_eps` here. The norms have biases even without `use_bias`."""

    num_key_value_heads: int | None = 2
    max_position_embeddings: int = 4096
    hidden_act: str = "gelu_pytorch_tanh"
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    use_bias: bool = True
    sliding_window: int | None = None

    aliases: typing.ClassVar[Mapping[str, str]] = {"norm_epsilon": "rms_norm_eps"}
    #: Keys of BigCode's own code; the published checkpoints have these values.
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attn_weights": True,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "residual_dropout": "training only",
        "embedding_dropout": "training only",
        "activation_function": "hidden_act decides",
        "layer_norm_epsilon": "norm_epsilon decides",
        "attention_softmax_in_fp32": "the softmax always runs in float32",
        "scale_attention_softmax_in_fp32": "the softmax always runs in float32",
    }


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    width, inner, bias = config.hidden_size, config.intermediate_size, config.use_bias

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, config.rms_norm_eps)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=nn.MLP(width, inner, config.hidden_act, bias=bias, names=("c_fc", "c_proj")),
            norm=norm,
            qkv_bias=bias,
            out_bias=bias,
            window=config.sliding_window,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm())
