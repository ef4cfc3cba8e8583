"""OLMo: Llama with LayerNorms that have neither weight nor bias, and q, k and v clipped where asked for."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig

#: What all LayerNorms add to the variance; no key says it.
_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`OlmoConfig`."""

    attention_bias: bool = False
    clip_qkv: float | None = None

    absent: typing.ClassVar[frozenset[str]] = frozenset({"rms_norm_eps"})
    no_effect: typing.ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("layer_norm_eps", "rms_norm_eps"), "transformers doesn't read it: its norms add 1e-5"
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(config.hidden_size, _EPSILON, weight=False, bias=False)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            norm=norm,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            clip=config.clip_qkv,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm())
