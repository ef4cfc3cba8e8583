"""gpt-oss: attention with sinks and a window on every other layer, experts with biases and a bounded SwiGLU.

The experts are stored as `[in, out]`, gate and up taking turns in the columns, or quantized (MXFP4) by rows.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from edgewright import nn
from edgewright.models._config import DecoderConfig, layer_windows
from edgewright.models._experts import ROUTER_TRAINING, expert_problems
from edgewright.models._rules import Deal, Rule, Transpose
from edgewright.nn import moe

#: The rope of a config that says nothing of it.
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`GptOssConfig`; `intermediate_size` is the width of an expert.

    Without `layer_types` the even layers have windows.
    """

    num_key_value_heads: int | None = 8
    head_dim: int | None = 64
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    rope_theta: float = 150000.0
    attention_bias: bool = True
    sliding_window: int | None = 128
    layer_types: list[str] | None = None
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    absent: typing.ClassVar[frozenset[str]] = frozenset({"hidden_act"})
    fixed: typing.ClassVar[Mapping[str, Any]] = {"hidden_act": "silu"}
    aliases: typing.ClassVar[Mapping[str, str]] = {
        "num_experts": "num_local_experts",
        "experts_per_token": "num_experts_per_tok",
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **ROUTER_TRAINING,
        "initial_context_length": "the rope's parameters hold it",
    }

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read a config; without any parameters of the rope it is the published models'."""
        if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
            config = {**config, "rope_scaling": _YARN}
        return super().read(config)

    def problems(self) -> list[str]:
        return super().problems() + expert_problems(self.num_local_experts, self.num_experts_per_tok)

    def windows(self) -> list[int | None]:
        """Return each layer's window."""
        default = [index % 2 == 0 for index in range(self.num_hidden_layers)]
        return layer_windows(self.layer_types, self.sliding_window, default)


def rules(config: Config) -> Sequence[Rule]:
    """Turn the experts' matrices, and take the columns, or the rows of quantized ones, of gate and up apart."""
    experts = r"(.*\.experts\.)"
    halves = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    whole = {"down_proj": slice(None)}
    return (
        Deal(experts + r"gate_up_proj\.weight", (r"\1gate_proj.weight", r"\1up_proj.weight")),
        *(
            Transpose(experts + stored + suffix, {rf"\1{part}.{kind}": picked for part, picked in parts.items()}, True)
            for stored, parts in (("gate_up_proj", halves), ("down_proj", whole))
            for suffix, kind in (("", "weight"), ("_bias", "bias"))
        ),
    )


def _experts(config: Config) -> nn.MoE:
    width, experts, top_k = config.hidden_size, config.num_local_experts, config.num_experts_per_tok
    return nn.MoE(
        nn.Router(width, experts, functools.partial(moe.top_k_softmax, top_k=top_k), bias=True),
        nn.Experts(
            width,
            config.intermediate_size,
            "swiglu_clamped",
            experts=experts,
            top_k=top_k,
            bias=True,
            limit=config.swiglu_limit,
            alpha=config.swiglu_alpha,
        ),
        router_name="router",
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias = config.attention_bias
    layers = [
        nn.decoder_layer(config, rope, qkv_bias=bias, out_bias=bias, sinks=True, window=window, mlp=_experts(config))
        for window in config.windows()
    ]
    return nn.causal_lm(config, layers)
