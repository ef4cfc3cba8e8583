"""LFM2: gated short convolutions and a few attention layers with q/k norms; the MLP's width is adjusted by rule."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgewright import nn
from edgewright.models._config import DecoderConfig, because, layer_kinds

#: The final norm's name, and what it is here.
RENAMES = {"model.embedding_norm.": "model.norm."}

_ATTENTION = nn.LayerNames(mlp="feed_forward", before_mixer="operator_norm", before_mlp="ffn_norm")
_CONV = replace(_ATTENTION, mixer="conv")


@dataclass(frozen=True, kw_only=True)
class BaseConfig(DecoderConfig):
    """What `Lfm2Config` and `Lfm2MoeConfig` share; `norm_eps` is `rms_norm_eps` here, `conv_L_cache` `conv_kernel`."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 128000
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    rope_theta: float = 1e6
    conv_bias: bool = False
    conv_kernel: int = 3
    layer_types: list[str] | None = None

    aliases: typing.ClassVar[Mapping[str, str]] = {
        "conv_L_cache": "conv_kernel",
        "norm_eps": "rms_norm_eps",
        "tie_embedding": "tie_word_embeddings",
    }
    absent: typing.ClassVar[frozenset[str]] = frozenset({"hidden_act"})
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **because(
            "repeats another key; transformers never reads it",
            "block_dim conv_dim conv_dim_out num_heads block_norm_eps block_use_swiglu use_pos_enc theta",
        ),
        **because(
            "initialisation of a new model",
            "block_use_xavier_init conv_use_xavier_init block_mlp_init_scale block_out_init_scale",
        ),
    }

    def kinds(self) -> list[str]:
        """Return each layer's kind, "conv" or "full_attention"."""
        known = {"conv": "conv", "full_attention": "full_attention"}
        default = ["full_attention"] * self.num_hidden_layers
        return layer_kinds(default if self.layer_types is None else self.layer_types, len(default), known)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """`Lfm2Config`; `layer_types` decides where `full_attn_idxs` says something else."""

    intermediate_size: int = 12288
    block_ff_dim: int | None = None
    block_auto_adjust_ff_dim: bool = True
    block_ffn_dim_multiplier: float | None = 1.0
    block_multiple_of: int = 256
    full_attn_idxs: list[int] | None = None

    def kinds(self) -> list[str]:
        """Return each layer's kind, "conv" or "full_attention"."""
        if self.layer_types is not None or self.full_attn_idxs is None:
            return super().kinds()
        return ["full_attention" if i in self.full_attn_idxs else "conv" for i in range(self.num_hidden_layers)]

    @property
    def mlp_width(self) -> int:
        """Two thirds of the stated width, times a factor, rounded up to a multiple."""
        width = self.block_ff_dim or self.intermediate_size
        if not self.block_auto_adjust_ff_dim:
            return width
        width = int(2 * width / 3)
        if self.block_ffn_dim_multiplier is None:
            return width
        width = int(self.block_ffn_dim_multiplier * width)
        return -(-width // self.block_multiple_of) * self.block_multiple_of


def layer(config: BaseConfig, kind: str, rope: nn.RopeTable, mlp: nn.Module) -> nn.DecoderLayer:
    """Return a layer of a kind."""
    if kind == "conv":
        mixer = nn.ShortConv(config.hidden_size, config.conv_kernel, bias=config.conv_bias)
        return nn.decoder_layer(config, None, mixer=mixer, mlp=mlp, names=_CONV)
    size = config.head_size
    q, k = (
        nn.RMSNorm(n * size, config.rms_norm_eps, group=size) for n in (config.num_attention_heads, config.kv_heads)
    )
    norms = ("q_layernorm", q), ("k_layernorm", k)
    return nn.decoder_layer(config, rope, mlp=mlp, names=_ATTENTION, norms=norms, out="out_proj")


def dense(config: BaseConfig, width: int) -> nn.GatedMLP:
    """Return an MLP with the family's names."""
    return nn.GatedMLP(config.hidden_size, width, "silu", names=("w1", "w3", "w2"))


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [layer(config, kind, rope, dense(config, config.mlp_width)) for kind in config.kinds()]
    return nn.causal_lm(config, layers)
