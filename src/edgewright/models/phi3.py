"""Phi-3 and Phi-4: Llama with q, k, v and gate, up stored as one matrix each, and two sets of rope frequencies.

The second set (longrope) serves texts longer than `original_max_position_embeddings`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Rule, qkv_spans, split


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Phi3Config`; the window is on every layer."""

    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None

    no_effect: typing.ClassVar[Mapping[str, str]] = dict.fromkeys(("embd_pdrop", "resid_pdrop"), "training only")
    #: Keys of Microsoft's own code, for which no checkpoint has another value.
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "attention_bias": False,
        "mlp_bias": False,
        "lm_head_bias": False,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
    }

    @property
    def longrope(self) -> Mapping[str, Any] | None:
        """The rope's parameters; the original context stands outside of them in the config."""
        if self.rope_scaling is None:
            return None
        original = self.original_max_position_embeddings
        return {**self.rope_scaling, "rope_type": "longrope", "original_max_position_embeddings": original}

    def problems(self) -> list[str]:
        found = super().problems()
        scaling = self.rope_scaling or {"rope_type": "longrope"}
        if scaling["rope_type"] not in ("longrope", "su", "yarn"):  # three names of one thing in this family
            found.append(f"the rope type is {scaling['rope_type']!r} where only 'longrope' is supported")
        original = scaling.get("original_max_position_embeddings", self.original_max_position_embeddings)
        if original != self.original_max_position_embeddings:
            found.append(
                f"original_max_position_embeddings is {self.original_max_position_embeddings} "
                f"but {original} in the rope's parameters"
            )
        return found

    def rope(self, max_context: int, *, name: str = "rope") -> nn.RopeTable:
        limit = self.max_position_embeddings
        return nn.RopeTable(name, max_context, self.rotary_dim, self.rope_theta, self.longrope, limit)


def rules(config: Config) -> Sequence[Rule]:
    """Cut the joined matrices."""
    qkv = qkv_spans(config.num_attention_heads, config.kv_heads, config.head_size)
    inner = config.intermediate_size
    gate_up = {"gate_proj": [(0, inner)], "up_proj": [(inner, 2 * inner)]}
    return (
        split(r"(model\.layers\.\d+\.self_attn\.)qkv_proj(\.weight)", qkv),
        split(r"(model\.layers\.\d+\.mlp\.)gate_up_proj(\.weight)", gate_up),
    )


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [nn.decoder_layer(config, rope, window=config.sliding_window) for _ in range(config.num_hidden_layers)]
    return nn.causal_lm(config, layers)
