"""Cohere (Command R): attention and MLP in parallel behind one LayerNorm, interleaved rope, scaled logits."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`CohereConfig`; `use_qk_norm` gives every head a LayerNorm of its own for q and for k."""

    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    rope_theta: float = 500000.0
    attention_bias: bool = False
    use_qk_norm: bool = False
    logit_scale: float = 0.0625

    absent: typing.ClassVar[frozenset[str]] = frozenset({"rms_norm_eps"})
    no_effect: typing.ClassVar[Mapping[str, str]] = {"model_max_length": "the tokenizer's limit"}

    def norm(self) -> nn.LayerNorm:
        """Return one of the norms."""
        return nn.LayerNorm(self.hidden_size, self.layer_norm_eps, bias=False)


#: One norm a layer, which attention and MLP both read through.
NAMES = nn.LayerNames(before_mlp=None)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope, size = config.rope(max_context), config.head_size

    def head_norm(heads: int) -> nn.LayerNorm:
        return nn.LayerNorm(heads * size, config.layer_norm_eps, group=size, own_weights=True, bias=False)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            norm=config.norm,
            names=NAMES,
            parallel=True,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            norms=(("q_norm", head_norm(config.num_attention_heads)), ("k_norm", head_norm(config.kv_heads)))
            if config.use_qk_norm
            else None,
            interleaved=True,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=config.norm(), logit_scale=config.logit_scale)
