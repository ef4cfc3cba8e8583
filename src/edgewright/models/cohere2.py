"""Cohere 2 (Command R7B, A): Cohere with windows, and rotary positions on the windowed layers only."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models import cohere
from edgewright.models._config import layer_windows


@dataclass(frozen=True, kw_only=True)
class Config(cohere.Config):
    """`Cohere2Config`; without `layer_types` every `sliding_window_pattern`-th layer sees everything."""

    rope_theta: float = 10000.0
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 4
    layer_types: list[str] | None = None

    absent: typing.ClassVar[frozenset[str]] = cohere.Config.absent | {"use_qk_norm"}
    aliases: typing.ClassVar[Mapping[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}
    #: Keys of published files that transformers doesn't read and that describe what the model is.
    fixed: typing.ClassVar[Mapping[str, Any]] = {
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_qk_norm": False,
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **cohere.Config.no_effect,
        "layer_switch": "sliding_window_pattern and layer_types say it",
        "use_parallel_embedding": "how training spread the table over machines",
    }

    def windows(self) -> list[int | None]:
        """Return each layer's window."""
        default = [bool((i + 1) % self.sliding_window_pattern) for i in range(self.num_hidden_layers)]
        return layer_windows(self.layer_types, self.sliding_window, default)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(
            config,
            rope if window else None,
            norm=config.norm,
            names=cohere.NAMES,
            parallel=True,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            window=window,
            interleaved=True,
        )
        for window in config.windows()
    ]
    return nn.causal_lm(config, layers, norm=config.norm(), logit_scale=config.logit_scale)
