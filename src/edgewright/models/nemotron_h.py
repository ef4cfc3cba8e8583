"""Nemotron-H: each layer is one of Mamba-2, attention without positions, an MLP, or experts of squared ReLU."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import onnx_ir as ir

from edgewright import nn
from edgewright.errors import ConfigError
from edgewright.graph import GraphBuilder
from edgewright.models._config import DecoderConfig, because, layer_kinds
from edgewright.models._experts import expert_problems, expert_rules
from edgewright.models._mamba import MAMBA_OR_ATTENTION
from edgewright.models._rules import Drop, Rule
from edgewright.nn import moe

#: Tensor name prefixes of published checkpoints, and what they are here.
RENAMES = {"backbone.embeddings.": "model.embed_tokens.", "backbone.norm_f.": "model.norm.", "backbone.": "model."}

_MIXER = nn.LayerNames(mixer="mixer", before_mixer="norm")
_FEED_FORWARD = nn.LayerNames(mlp="mixer", before_mlp="norm")

#: The letters of `hybrid_override_pattern`, and the kinds of layers by all their names.
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {**MAMBA_OR_ATTENTION, "mlp": "mlp", "moe": "moe"}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`NemotronHConfig`; a step is bounded from below by `time_step_min`."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    intermediate_size: int = 21504
    max_position_embeddings: int = 4096
    layer_norm_epsilon: float = 1e-5
    layers_block_type: list[str] | None = None
    mlp_hidden_act: str = "relu2"
    mlp_bias: bool = False
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    ssm_state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_min: float = 0.001
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    activation: typing.ClassVar[str] = "mlp_hidden_act"
    absent: typing.ClassVar[frozenset[str]] = frozenset({"hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling"})
    aliases: typing.ClassVar[Mapping[str, str]] = {
        "attention_head_dim": "head_dim",
        "num_query_groups": "num_key_value_heads",
        "num_local_experts": "n_routed_experts",
        "layer_types": "layers_block_type",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_dt_min": "time_step_min",
        "mamba_conv_bias": "use_conv_bias",
    }
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "mamba_hidden_act": "silu",
        "attention_bias": False,
        "mamba_proj_bias": False,
        "sliding_window": None,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **because("layer_norm_epsilon decides", "rms_norm_eps norm_eps"),
        **because("attention has no positions", "rope_theta rope_scaling partial_rotary_factor"),
        **because("heads times their width decide", "expand mamba_expand"),
        **because("transformers takes time_step_min and no upper bound", "time_step_limit mamba_dt_limit"),
        "n_shared_experts": "moe_shared_expert_intermediate_size is the width of all of them",
        "moe_shared_expert_overlap": "when another runtime computes the shared expert",
        **because(
            "how transformers computes and rounds",
            "chunk_size mamba_chunk_size use_mamba_kernels mamba_ssm_cache_dtype residual_in_fp32",
        ),
        "num_logits_to_keep": "which logits transformers computes",
        **because(
            "initialisation of a new model",
            "time_step_max mamba_dt_max time_step_floor mamba_dt_init_floor time_step_rank rescale_prenorm_residual",
        ),
        **because(
            "layers that predict further tokens, which are left out",
            "num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern",
        ),
    }

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read a config, the pattern of letters as the list it stands for; raises ConfigError."""
        raw = dict(config)
        pattern = raw.pop("hybrid_override_pattern", None)
        listed = raw.get("layers_block_type", raw.get("layer_types"))
        if listed is None:
            if not isinstance(pattern, str) or set(pattern) - _LETTERS.keys():
                raise ConfigError(f"hybrid_override_pattern is {pattern!r} where letters M, *, - and E are needed.")
            listed = raw["layers_block_type"] = [_LETTERS[letter] for letter in pattern]
        if isinstance(listed, list):
            raw.setdefault("num_hidden_layers", len(listed))
        return super().read(raw)

    def kinds(self) -> list[str]:
        """Return each layer's kind."""
        return layer_kinds(self.layers_block_type or [], self.num_hidden_layers, _KINDS)

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        found = super().problems()
        if self.mamba_num_heads % self.n_groups:
            found.append(f"{self.mamba_num_heads} mamba heads don't share {self.n_groups} groups evenly")
        return found + expert_problems(
            self.n_routed_experts, self.num_experts_per_tok, groups=self.n_group, top_groups=self.topk_group
        )


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return (
        Drop(r"mtp\..*", "they predict further tokens"),
        *expert_rules(config.n_routed_experts, config.moe_intermediate_size, names=("up_proj", "down_proj")),
    )


class _MoE(nn.Module):
    """Routed experts, between two projections where the config has `moe_latent_size`, and a shared one."""

    def __init__(self, config: Config) -> None:
        width, latent, bias = config.hidden_size, config.moe_latent_size, config.mlp_bias
        choose = functools.partial(
            moe.sigmoid_groups,
            experts=config.n_routed_experts,
            top_k=config.num_experts_per_tok,
            groups=config.n_group,
            top_groups=config.topk_group,
            renormalize=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
        )
        self.gate = moe.Router(width, config.n_routed_experts, choose, correction=True)
        if latent is not None:
            self.fc1_latent_proj = nn.Linear(width, latent, bias=bias)
            self.fc2_latent_proj = nn.Linear(latent, width, bias=bias)
        self.experts = moe.Experts(
            latent or width,
            config.moe_intermediate_size,
            config.mlp_hidden_act,
            experts=config.n_routed_experts,
            top_k=config.num_experts_per_tok,
            gated=False,
        )
        self.shared_experts = _mlp(config, config.moe_shared_expert_intermediate_size)
        self._latent = latent is not None

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        inner = self.fc1_latent_proj(g, x) if self._latent else x
        y = self.experts(g, inner, self.gate(g, x))
        y = self.fc2_latent_proj(g, y) if self._latent else y
        result: ir.Value = g.op("Add", y, self.shared_experts(g, x))
        return result


def _mlp(config: Config, inner: int) -> nn.MLP:
    return nn.MLP(config.hidden_size, inner, config.mlp_hidden_act, bias=config.mlp_bias)


def _norm(config: Config) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, config.layer_norm_epsilon)


def _mamba(config: Config) -> nn.Mamba2:
    return nn.Mamba2(
        config.hidden_size,
        heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        state_size=config.ssm_state_size,
        groups=config.n_groups,
        kernel=config.conv_kernel,
        epsilon=config.layer_norm_epsilon,
        bias=config.use_bias,
        out_bias=config.use_bias,
        conv_bias=config.use_conv_bias,
        step_limit=(config.time_step_min, math.inf),
    )


def _layer(config: Config, kind: str) -> nn.DecoderLayer:
    norm = functools.partial(_norm, config)
    if kind in ("mlp", "moe"):
        part = _MoE(config) if kind == "moe" else _mlp(config, config.intermediate_size)
        return nn.DecoderLayer(None, part, norm, names=_FEED_FORWARD)
    mixer = _mamba(config) if kind == "mamba" else nn.attention(config, None)
    return nn.DecoderLayer(mixer, None, norm, names=_MIXER)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    return nn.causal_lm(config, [_layer(config, kind) for kind in config.kinds()], norm=_norm(config))
