"""Ministral 3: Mistral with YaRN, and queries that grow with the logarithm of their position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright import nn
from edgewright.graph import GraphBuilder
from edgewright.graph.weights import ComputedWeight
from edgewright.models._config import DecoderConfig

#: Keys of the rope parameters that say nothing about the rope; the second is a copy that transformers never reads.
_BETA, _COPY = "llama_4_scaling_beta", "max_position_embeddings"


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`Ministral3Config`; an absent `head_dim` means 128, an absent `sliding_window` none."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None

    @property
    def yarn(self) -> Mapping[str, Any]:
        """The rope's own parameters."""
        return {key: value for key, value in (self.rope_scaling or {}).items() if key not in (_BETA, _COPY)}

    @property
    def beta(self) -> Any:
        """How fast queries grow."""
        return (self.rope_scaling or {}).get(_BETA)

    def problems(self) -> list[str]:
        found = super().problems()
        if self.yarn.get("rope_type") != "yarn":
            found.append("rope_parameters are not of type 'yarn'")
        if not isinstance(self.beta, int | float) or not 0 <= self.beta < math.inf:
            found.append(f"{_BETA} of the rope_parameters is {self.beta!r} where a number is needed")
        return found

    def rope(self, max_context: int, *, name: str = "rope") -> nn.RopeTable:
        return nn.RopeTable(name, max_context, self.rotary_dim, self.rope_theta, self.yarn)


class Attention(nn.Attention):
    """Attention whose queries are multiplied by 1 + beta * ln(1 + floor(position / original context))."""

    def __init__(self, config: Config, rope: nn.RopeTable) -> None:
        super().__init__(
            config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_size,
            rope=rope,
            window=config.sliding_window,
        )
        original = config.yarn["original_max_position_embeddings"]

        def rows(start: int, stop: int) -> np.ndarray:
            periods = np.arange(start, stop)[:, None] // original
            return np.asarray(1 + config.beta * np.log1p(periods))

        self._growth = ComputedWeight("query_growth", (rope.positions, 1), rows)

    def _query(self, g: GraphBuilder, x: ir.Value, cache: nn.Cache) -> ir.Value:
        # A factor commutes with the rotation, and in front of it kernels that rotate can still take the rope in.
        growth = g.op("Gather", g.weight(self._growth), cache.positions)
        return self._place(g, g.op("Mul", self.q_proj(g, x), growth), "", cache)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [nn.decoder_layer(config, rope, mixer=Attention(config, rope)) for _ in range(config.num_hidden_layers)]
    return nn.causal_lm(config, layers)
