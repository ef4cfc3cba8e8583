"""Phi: attention and MLP side by side behind one layer norm, biases everywhere, rotary positions on half a head."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig

RENAMES = {"model.final_layernorm.": "model.norm."}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`PhiConfig`; its `layer_norm_eps` is `rms_norm_eps` here."""

    hidden_act: str = "gelu_new"
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 0.5
    qk_layernorm: bool = False

    aliases: typing.ClassVar[Mapping[str, str]] = {"layer_norm_eps": "rms_norm_eps"}
    no_effect: typing.ClassVar[Mapping[str, str]] = dict.fromkeys(("embd_pdrop", "resid_pdrop"), "training only")


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    width, head, eps = config.hidden_size, config.head_size, config.rms_norm_eps

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, eps)

    def head_norms() -> tuple[tuple[str, nn.Module], tuple[str, nn.Module]]:
        q, k = (nn.LayerNorm(n * head, eps, group=head) for n in (config.num_attention_heads, config.kv_heads))
        return ("q_layernorm", q), ("k_layernorm", k)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=nn.MLP(width, config.intermediate_size, config.hidden_act, bias=True, names=("fc1", "fc2")),
            norm=norm,
            names=nn.LayerNames(before_mlp=None),
            parallel=True,
            qkv_bias=True,
            out_bias=True,
            norms=head_norms() if config.qk_layernorm else None,
            out="dense",
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm(), head_bias=True)
