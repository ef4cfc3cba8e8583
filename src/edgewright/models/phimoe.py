"""Phi-3.5 MoE: biases and LayerNorms, two experts chosen by sparse mixing, and a rope of two scales.

Beyond the original context cos and sin are multiplied by `long_mscale`, else by `short_mscale`. The frequencies are
those of `short_factor` either way: transformers never uses `long_factor`.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._experts import ROUTER_TRAINING, expert_rules
from edgewright.models._rules import Rule
from edgewright.nn import moe

_LONGROPE = {
    "rope_type",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "original_max_position_embeddings",
}


@dataclass(frozen=True)
class _RopeTable(nn.RopeTable):
    short_mscale: float = 1.0
    long_mscale: float = 1.0

    def angles(self, *, long: bool = False) -> tuple[np.ndarray, float]:
        """Return the short frequencies, with the scale of the set that is asked for."""
        freqs, _ = super().angles(long=False)
        return freqs, self.long_mscale if long else self.short_mscale


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`PhimoeConfig`; `router_jitter_noise` is not only noise in training but the reach of the mixing."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1000000.0
    original_max_position_embeddings: int | None = None
    sliding_window: int | None = None
    attention_bias: bool = False
    lm_head_bias: bool = False
    num_local_experts: int = 16
    router_jitter_noise: float = 0.01

    fixed: typing.ClassVar[Mapping[str, Any]] = {"num_experts_per_tok": 2}
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **{key: reason for key, reason in ROUTER_TRAINING.items() if key != "router_jitter_noise"},
        "input_jitter_noise": "training only",
    }

    def problems(self) -> list[str]:
        found = super().problems()
        if self.num_local_experts < 2:
            found.append("there are fewer than 2 experts")
        scaling = self.rope_scaling
        inner = None if scaling is None else scaling.get("original_max_position_embeddings")
        outer = self.original_max_position_embeddings
        if outer is not None and outer != inner:
            found.append(f"original_max_position_embeddings is {outer} but {inner} in the rope's parameters")
        if scaling is not None and (scaling["rope_type"] != "longrope" or scaling.keys() != _LONGROPE):
            found.append(
                f"the rope has the type {scaling['rope_type']!r} with {', '.join(sorted(scaling))} where only "
                f"'longrope' with {', '.join(sorted(_LONGROPE))} is supported"
            )
            return found
        for key in ("short_mscale", "long_mscale"):
            value = 1.0 if scaling is None else scaling[key]
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                found.append(f"the rope's {key} is {value!r}")
        return found

    def rope(self, max_context: int, *, name: str = "rope") -> nn.RopeTable:
        """Return the rope table of the config."""
        if self.rope_scaling is None:
            return super().rope(max_context, name=name)
        scales = {key: float(self.rope_scaling[key]) for key in ("short_mscale", "long_mscale")}
        rest = {key: value for key, value in self.rope_scaling.items() if key not in scales}
        limit = self.max_position_embeddings
        return _RopeTable(name, max_context, self.rotary_dim, self.rope_theta, rest, limit, **scales)


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return expert_rules(config.num_local_experts, config.intermediate_size, names=("w1", "w3", "w2"))


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    width, experts = config.hidden_size, config.num_local_experts
    choose = functools.partial(moe.sparse_mixer, jitter=config.router_jitter_noise)

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, config.rms_norm_eps)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            window=config.sliding_window,
            norm=norm,
            mlp=nn.MoE(
                nn.Router(width, experts, choose),
                nn.Experts(width, config.intermediate_size, config.hidden_act, experts=experts, top_k=2),
            ),
            names=nn.LayerNames(mlp="block_sparse_moe"),
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm(), head_bias=config.lm_head_bias)
