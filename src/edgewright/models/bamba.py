"""Bamba: Mamba-2 layers and a few attention layers, each followed by an MLP; rotary positions on half a head."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgewright import nn
from edgewright.models._mamba import MambaConfig

#: The final norm's name, and what it is here.
RENAMES = {"model.final_layernorm.": "model.norm."}

_ATTENTION = nn.LayerNames(mlp="feed_forward", before_mlp="pre_ff_layernorm")
_MAMBA = replace(_ATTENTION, mixer="mamba")


@dataclass(frozen=True, kw_only=True)
class Config(MambaConfig):
    """`BambaConfig`; layers in `attn_layer_indices` have attention."""

    max_position_embeddings: int = 262144
    attn_layer_indices: list[int] | None = None
    mlp_bias: bool = False

    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **MambaConfig.no_effect,
        "partial_rotary_factor": "transformers takes 0.5 whatever the file says",
        "attn_rotary_emb": "transformers takes half of a head whatever the file says",
    }

    @property
    def rotary_dim(self) -> int:
        """Half of a head."""
        return self.head_size // 2


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias, attending = config.attention_bias, config.attn_layer_indices or []
    layers = [
        nn.decoder_layer(config, rope, names=_ATTENTION, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)
        if index in attending
        else nn.decoder_layer(config, None, mixer=config.mamba(), names=_MAMBA, mlp_bias=config.mlp_bias)
        for index in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
