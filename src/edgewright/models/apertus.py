"""Apertus: q/k norms, an MLP without gate whose activation xIELU has trained parameters, llama3 rope unless told."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from edgewright import nn
from edgewright.errors import ConfigError
from edgewright.graph import GraphBuilder
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Reshape, Rule

_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`ApertusConfig`; without any rope keys the scaling is llama3's."""

    max_position_embeddings: int = 65536
    hidden_act: str = "xielu"
    rms_norm_eps: float = 1e-5
    rope_theta: float = 12000000.0
    attention_bias: bool = False

    own_activations: typing.ClassVar[tuple[str, ...]] = ("xielu",)
    fixed: typing.ClassVar[Mapping[str, Any]] = {"mlp_bias": False, "post_norm": False, "qk_norm": True}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
            if "rope_scaling" in config:
                raise ConfigError(
                    "rope_scaling is null, which transformers 4 takes for no scaling and 5 for llama3 scaling: "
                    "write the rope_parameters that the model was trained with."
                )
            config = {**config, "rope_parameters": _ROPE}
        return super().read(config)


class XIELU(nn.Module):
    """a_p x^2 + b x where x is positive, a_n (exp(min(x, eps)) - 1 - x) + b x elsewhere."""

    def __init__(self) -> None:
        self.alpha_p, self.alpha_n, self.beta, self.eps = (nn.Parameter(1) for _ in range(4))

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        beta = self.beta.value(g)
        a_p = g.op("Softplus", self.alpha_p.value(g))
        a_n = g.op("Add", beta, g.op("Softplus", self.alpha_n.value(g)))
        positive = g.op("Mul", a_p, g.op("Mul", x, x))
        grown = g.op("Sub", g.op("Exp", g.op("Min", x, self.eps.value(g))), g.constant(1, np.float32))
        negative = g.op("Mul", a_n, g.op("Sub", grown, x))
        bent = g.op("Where", g.op("Greater", x, g.constant(0, np.float32)), positive, negative)
        result: ir.Value = g.op("Add", bent, g.op("Mul", beta, x))
        return result


class XIELUMLP(nn.Module):
    """down(xielu(up(x)))."""

    def __init__(self, width: int, inner: int) -> None:
        self.up_proj = nn.Linear(width, inner)
        self.act_fn = XIELU()
        self.down_proj = nn.Linear(inner, width)

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        result: ir.Value = self.down_proj(g, self.act_fn(g, self.up_proj(g, x)))
        return result


def rules(config: Config) -> Sequence[Rule]:
    """Two of the activation's four numbers are stored without an axis."""
    return (Reshape(r"model\.layers\.\d+\.mlp\.act_fn\.(beta|eps)", lambda shape: shape or (1,)),)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    width, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=XIELUMLP(width, inner) if config.hidden_act == "xielu" else nn.MLP(width, inner, config.hidden_act),
            names=nn.LayerNames(before_mixer="attention_layernorm", before_mlp="feedforward_layernorm"),
            qkv_bias=bias,
            out_bias=bias,
            qk_norm_epsilon=config.rms_norm_eps,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
