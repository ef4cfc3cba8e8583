"""Mamba-2: one state-space mixer a layer behind one norm, no attention, no MLP, no positions."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig, because
from edgewright.models._mamba import step_limit, step_limit_problems

#: Tensor name prefixes of published checkpoints, and what they are here.
RENAMES = {
    "backbone.embeddings.": "model.embed_tokens.",
    "backbone.embedding.": "model.embed_tokens.",
    "backbone.norm_f.": "model.norm.",
    "backbone.": "model.",
}

_NAMES = nn.LayerNames(mixer="mixer", before_mixer="norm")


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Mamba2Config`; heads and epsilon have the names of the other families here. No length bounds the model."""

    intermediate_size: int = 1
    num_attention_heads: int = 128
    head_dim: int | None = 64
    max_position_embeddings: int = 1 << 20
    rms_norm_eps: float = 1e-5
    expand: int = 2
    state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_limit: list[float] | None = None

    aliases: typing.ClassVar[Mapping[str, str]] = {
        "num_heads": "num_attention_heads",
        "layer_norm_epsilon": "rms_norm_eps",
    }
    absent: typing.ClassVar[frozenset[str]] = frozenset(
        {"intermediate_size", "num_key_value_heads", "hidden_act", "rope_theta", "rope_scaling"}
    )
    fixed: typing.ClassVar[Mapping[str, Any]] = {"hidden_act": "silu", "rms_norm": True}
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "intermediate_size": "expand times hidden_size decides",
        "norm_before_gate": "transformers norms behind the gate always",
        **because("how transformers computes and rounds", "chunk_size residual_in_fp32 use_mambapy"),
        **because(
            "initialisation of a new model",
            "time_step_rank time_step_min time_step_max time_step_floor time_step_scale time_step_init_scheme "
            "rescale_prenorm_residual",
        ),
    }

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        found = super().problems() or step_limit_problems(self.time_step_limit)
        if self.num_attention_heads * self.head_size != self.expand * self.hidden_size:
            found.append("num_heads times head_dim isn't expand times hidden_size")
        if self.num_attention_heads % self.n_groups:
            found.append(f"{self.num_attention_heads} heads don't share {self.n_groups} groups evenly")
        return found


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    width = config.hidden_size
    layers = []
    for _ in range(config.num_hidden_layers):
        mixer = nn.Mamba2(
            width,
            heads=config.num_attention_heads,
            head_dim=config.head_size,
            state_size=config.state_size,
            groups=config.n_groups,
            kernel=config.conv_kernel,
            epsilon=config.rms_norm_eps,
            bias=config.use_bias,
            out_bias=config.use_bias,
            conv_bias=config.use_conv_bias,
            step_limit=step_limit(config.time_step_limit),
        )
        layers.append(nn.DecoderLayer(mixer, None, lambda: nn.RMSNorm(width, config.rms_norm_eps), names=_NAMES))
    return nn.causal_lm(config, layers)
