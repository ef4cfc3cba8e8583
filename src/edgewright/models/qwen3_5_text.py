"""Qwen3.5 text: gated delta nets, every fourth layer attention with an output gate; norms are stored minus one."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from edgewright import nn
from edgewright.models._config import DecoderConfig, because, layer_kinds
from edgewright.models._rules import Drop, Rule, grouped_spans, split

#: Tensor name prefixes of published checkpoints, and what they are here.
RENAMES = {"model.language_model.": "model."}

#: Tensors that belong to other stages, by prefix.
OTHER_STAGES = ("model.visual.",)

_ATTENTION = nn.PRE_NORM
_DELTA = replace(nn.PRE_NORM, mixer="linear_attn")


@dataclass(frozen=True, kw_only=True)
class BaseConfig(DecoderConfig):
    """What the text configs of Qwen3-Next, Qwen3.5 and Qwen3.5 MoE share."""

    num_key_value_heads: int | None = 2
    head_dim: int | None = 256
    max_position_embeddings: int = 32768
    partial_rotary_factor: float = 0.25
    attention_bias: bool = False
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    layer_types: list[str] | None = None
    full_attention_interval: int = 4

    #: The convolution has the MLP's activation, so that is SiLU.
    absent: typing.ClassVar[frozenset[str]] = frozenset({"hidden_act"})
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "hidden_act": "silu",
        "attn_output_gate": True,
        "use_sliding_window": False,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "router_aux_loss_coef": "training only",
        "mamba_ssm_dtype": "how transformers computes and rounds",
        **because("layers that predict further tokens", "mtp_num_hidden_layers mtp_use_dedicated_embeddings"),
    }

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        found = super().problems()
        if self.linear_num_value_heads % self.linear_num_key_heads:
            found.append("linear_num_value_heads is no multiple of linear_num_key_heads")
        return found

    def kinds(self) -> list[str]:
        """Return each layer's kind."""
        count = self.num_hidden_layers
        known = {kind: kind for kind in ("linear_attention", "full_attention")}
        interval = self.full_attention_interval
        default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(count)]
        return layer_kinds(default if self.layer_types is None else self.layer_types, count, known)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """`Qwen3_5TextConfig`. Text has one position a token, so how a head is shared by three plays no part."""

    num_key_value_heads: int | None = 4

    fixed: typing.ClassVar[Mapping[str, Any]] = {**BaseConfig.fixed, "mlp_only_layers": []}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read a config; raises ConfigError."""
        return super().read(without_mrope(config))


def without_mrope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out how a head's rotary part is shared by time, height and width of an image's place."""
    known = {"mrope_section", "mrope_interleaved"}
    return {
        name: {key: inner for key, inner in value.items() if key not in known}
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, Mapping)
        else value
        for name, value in config.items()
    }


def rules(config: BaseConfig) -> Sequence[Rule]:
    """Cut each head's query from its gate."""
    spans = grouped_spans(config.num_attention_heads, {"q_proj": config.head_size, "q_gate": config.head_size})
    return (
        Drop(r"mtp\..*", "they predict further tokens"),
        split(r"(.*\.self_attn\.)q_proj(\.(?:weight|bias))", spans),
    )


def layer(config: BaseConfig, kind: str, rope: nn.RopeTable, mlp: nn.Module | None = None) -> nn.DecoderLayer:
    """Return a layer of a kind."""
    if kind == "full_attention":
        return nn.decoder_layer(
            config,
            rope,
            mlp=mlp,
            names=_ATTENTION,
            norm_plus=1.0,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            qk_norm_epsilon=config.rms_norm_eps,
            qk_norm_plus=1.0,
            gated=True,
        )
    mixer = nn.GatedDeltaNet(
        config.hidden_size,
        key_heads=config.linear_num_key_heads,
        heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        kernel=config.linear_conv_kernel_dim,
        epsilon=config.rms_norm_eps,
    )
    return nn.decoder_layer(config, None, mixer=mixer, mlp=mlp, names=_DELTA, norm_plus=1.0)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [layer(config, kind, rope) for kind in config.kinds()]
    return nn.causal_lm(config, layers, norm_plus=1.0)
