"""Qwen2 MoE: Qwen2 with experts on most layers and, beside them, a shared one times a sigmoid of its own."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import layer_windows
from edgewright.models._experts import ROUTER_TRAINING, expert_rules
from edgewright.models._qwen_moe import SparseConfig
from edgewright.models._rules import Rule


@dataclass(frozen=True, kw_only=True)
class Config(SparseConfig):
    """`Qwen2MoeConfig`.

    Other than in Qwen2 the window is on the even layers before `max_window_layers`; transformers writes 0 for one that
    isn't used.
    """

    intermediate_size: int = 5632
    num_key_value_heads: int | None = 16
    max_position_embeddings: int = 32768
    qkv_bias: bool = True
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    num_experts: int = 60
    num_experts_per_tok: int = 4

    no_effect: typing.ClassVar[Mapping[str, str]] = ROUTER_TRAINING
    signed: typing.ClassVar[frozenset[str]] = frozenset({"sliding_window", "max_window_layers"})

    def windows(self) -> list[int | None]:
        """Return each layer's window."""
        window = self.sliding_window if self.use_sliding_window else None
        lower = [i % 2 == 0 and i < self.max_window_layers for i in range(self.num_hidden_layers)]
        return layer_windows(self.layer_types, window, [self.use_sliding_window and low for low in lower])

    def problems(self) -> list[str]:
        found = super().problems()
        if self.use_sliding_window and self.sliding_window is not None and self.sliding_window < 1:
            found.append(f"sliding_window is {self.sliding_window}")
        return found


def rules(config: Config) -> Sequence[Rule]:
    """Put the experts' matrices behind each other."""
    return expert_rules(config.num_experts, config.moe_intermediate_size)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope,
            qkv_bias=config.qkv_bias,
            window=window,
            mlp=config.experts_of(index, shared=config.shared_expert_intermediate_size),
        )
        for index, window in enumerate(config.windows())
    ]
    return nn.causal_lm(config, layers)
