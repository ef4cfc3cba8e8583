"""Falcon-H1: attention and a Mamba-2 mixer side by side in every layer, and multipliers at nearly every place."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from edgewright import nn, ops
from edgewright.graph import GraphBuilder
from edgewright.models._config import because
from edgewright.models._mamba import MambaConfig
from edgewright.nn.decoder_layer import Mixer
from edgewright.nn.layers import split

#: The final norm's name, and what it is here.
RENAMES = {"model.final_layernorm.": "model.norm."}

_NAMES = nn.LayerNames(mlp="feed_forward", before_mlp="pre_ff_layernorm")


@dataclass(frozen=True, kw_only=True)
class Config(MambaConfig):
    """`FalconH1Config`."""

    max_position_embeddings: int = 8192
    mamba_d_ssm: int | None = 1024
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = True
    projectors_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    lm_head_multiplier: float = 1.0
    key_multiplier: float = 1.0
    attention_in_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0
    ssm_multipliers: list[float] | None = None
    mlp_multipliers: list[float] | None = None

    fixed: typing.ClassVar[Mapping[str, Any]] = {
        **MambaConfig.fixed,
        "attn_layer_indices": None,
        "mamba_use_mlp": True,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **MambaConfig.no_effect,
        "mlp_expansion_factor": "intermediate_size decides",
        **because("initialisation of a new model", "time_step_min time_step_max time_step_floor time_step_rank"),
    }

    @property
    def mamba_width(self) -> int:
        """Width of all heads of a mixer."""
        return super().mamba_width if self.mamba_d_ssm is None else self.mamba_d_ssm

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        wanted = {"ssm_multipliers": 5, "mlp_multipliers": 2}
        lists = {name: getattr(self, name) for name in wanted}
        return super().problems() + [
            f"{name} has {len(value)} values where {wanted[name]} are needed"
            for name, value in lists.items()
            if value is not None and len(value) != wanted[name]
        ]


class _SideBySide:
    """Both mixers of a layer as one: their mixed values stand behind each other."""

    kv_from: int | None = None

    def __init__(self, config: Config, attention: nn.Attention, mamba: nn.Mamba2) -> None:
        self.kv, self.dual_rope = attention.kv, attention.dual_rope
        self.states: Mapping[str, tuple[int, ...]] = mamba.states
        self._config, self._attention, self._mamba = config, attention, mamba

    def __call__(self, g: GraphBuilder, x: ir.Value, cache: nn.Cache) -> ir.Value:
        attended = self._attention(g, nn.scaled(g, x, self._config.attention_in_multiplier), cache)
        result: ir.Value = g.op("Concat", attended, self._mamba(g, x, cache), axis=-1)
        return result

    def project(self, g: GraphBuilder, mixed: ir.Value) -> ir.Value:
        """Apply both output projections and add the results."""
        config = self._config
        attended, rest = split(g, mixed, [config.num_attention_heads * config.head_size, config.mamba_width])
        attended = nn.scaled(g, self._attention.project(g, attended), config.attention_out_multiplier)
        rest = nn.scaled(g, self._mamba.project(g, rest), config.ssm_out_multiplier)
        result: ir.Value = g.op("Add", attended, rest)
        return result


class _Layer(nn.DecoderLayer):
    """A layer with two mixers, `self_attn` and `mamba`."""

    def __init__(self, config: Config, attention: nn.Attention, mamba: nn.Mamba2) -> None:
        width, epsilon = config.hidden_size, config.rms_norm_eps
        super().__init__(attention, _MLP(config), lambda: nn.RMSNorm(width, epsilon), names=_NAMES)
        self.mamba = mamba
        self._both = _SideBySide(config, attention, mamba)

    @property
    def mixing(self) -> Mixer:
        """Both mixers."""
        return self._both


class _MLP(nn.Module):
    """A gated MLP whose gate is multiplied before the activation, and whose result is multiplied."""

    def __init__(self, config: Config) -> None:
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self._gate_scale, self._scale = config.mlp_multipliers or (1.0, 1.0)

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        gate = nn.scaled(g, self.gate_proj(g, x), self._gate_scale)
        inner = ops.gated_activation(g, gate, self.up_proj(g, x), activation="silu")
        return nn.scaled(g, self.down_proj(g, inner), self._scale)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias = config.attention_bias
    # Keys are multiplied in front of a rotation, so the scores are, too.
    scale = config.head_size**-0.5 * config.key_multiplier
    layers = [
        _Layer(
            config,
            nn.attention(config, rope, qkv_bias=bias, out_bias=bias, scale=scale),
            config.mamba(
                epsilon=config.rms_norm_eps if config.mamba_rms_norm else None,
                norm_first=config.mamba_norm_before_gate,
                out_bias=config.projectors_bias,
                in_scale=config.ssm_in_multiplier,
                part_scales=config.ssm_multipliers,
            ),
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(
        config, layers, embedding_scale=config.embedding_multiplier, logit_scale=config.lm_head_multiplier
    )
