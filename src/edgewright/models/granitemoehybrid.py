"""Granite 4: Mamba-2 and attention layers, a shared MLP in each, experts beside it, and Granite's four multipliers."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgewright import nn
from edgewright.models._config import layer_kinds
from edgewright.models._experts import expert_block, expert_problems, granite_rules
from edgewright.models._mamba import MAMBA_OR_ATTENTION, MambaConfig
from edgewright.models._rules import Rename, Rule, split
from edgewright.nn import moe

_EXPERTS = nn.LayerNames(mlp="block_sparse_moe")
_DENSE = replace(_EXPERTS, mlp="shared_mlp")


@dataclass(frozen=True, kw_only=True)
class Config(MambaConfig):
    """`GraniteMoeHybridConfig`; without experts `intermediate_size` and `num_experts_per_tok` play no part."""

    intermediate_size: int = 11008
    num_key_value_heads: int | None = None
    rms_norm_eps: float = 1e-6
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    layer_types: list[str] | None = None
    position_embedding_type: str | None = None
    shared_intermediate_size: int = 1024
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    signed: typing.ClassVar[frozenset[str]] = frozenset({"num_local_experts", "num_experts_per_tok"})
    aliases: typing.ClassVar[Mapping[str, str]] = {"layers_block_type": "layer_types"}
    fixed: typing.ClassVar[Mapping[str, Any]] = {**MambaConfig.fixed, "normalization_function": "rmsnorm"}
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **MambaConfig.no_effect,
        "init_method": "initialisation of a new model",
    }

    def kinds(self) -> list[str]:
        """Return each layer's kind."""
        default = ["mamba"] * self.num_hidden_layers
        return layer_kinds(default if self.layer_types is None else self.layer_types, len(default), MAMBA_OR_ATTENTION)

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        found = super().problems()
        if self.position_embedding_type not in (None, "nope", "rope"):
            found.append(f"position_embedding_type is {self.position_embedding_type!r}, neither rope nor nope")
        if min(self.num_local_experts, self.num_experts_per_tok) < bool(self.num_local_experts):
            found.append(f"{self.num_experts_per_tok} of {self.num_local_experts} experts are chosen")
        elif self.num_local_experts:
            found += expert_problems(self.num_local_experts, self.num_experts_per_tok)
        return found


def rules(config: Config) -> Sequence[Rule]:
    """Cut gate from up, in the shared MLP and in the experts, which are stored stacked."""
    shared, experts = config.shared_intermediate_size, config.num_local_experts
    found: list[Rule] = [
        split(
            r"(.*\.shared_mlp\.)input_linear(\.weight)", {"gate_proj": [(0, shared)], "up_proj": [(shared, 2 * shared)]}
        ),
        Rename(r"(.*\.shared_mlp\.)output_linear\.weight", r"\1down_proj.weight"),
    ]
    if experts:
        found += granite_rules(experts, config.intermediate_size)
        found.append(Rename(r"(.*)\.shared_mlp\.(.*)", r"\1.block_sparse_moe.shared_mlp.\2"))
    return found


def _feed_forward(config: Config) -> nn.Module:
    width = config.hidden_size
    shared = nn.GatedMLP(width, config.shared_intermediate_size, "silu")
    if not config.num_local_experts:
        return shared
    return expert_block(
        width,
        config.intermediate_size,
        "silu",
        moe.top_k_softmax,
        experts=config.num_local_experts,
        top_k=config.num_experts_per_tok,
        router_name="router.layer",
        shared=shared,
        shared_name="shared_mlp",
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context) if config.position_embedding_type == "rope" else None
    names = _EXPERTS if config.num_local_experts else _DENSE
    layers = [
        nn.decoder_layer(
            config,
            rope,
            mixer=config.mamba() if kind == "mamba" else None,
            mlp=_feed_forward(config),
            names=replace(names, mixer="mamba") if kind == "mamba" else names,
            residual_scale=config.residual_multiplier,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            scale=config.attention_multiplier,
        )
        for kind in config.kinds()
    ]
    return nn.causal_lm(
        config, layers, embedding_scale=config.embedding_multiplier, logit_scale=1 / config.logits_scaling
    )
