"""Gemma: Llama with scaled embeddings, norm weights stored minus one, a head tied to the table, and a GELU gate."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`GemmaConfig`; `hidden_act` "gelu" is how the first releases spelled the tanh form."""

    num_key_value_heads: int | None = 16
    head_dim: int | None = 256
    max_position_embeddings: int = 8192
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str | None = None
    tie_word_embeddings: bool = True
    attention_bias: bool = False

    fixed: typing.ClassVar[Mapping[str, Any]] = {"use_bidirectional_attention": False}

    @property
    def gate(self) -> str:
        """The activation of the MLP."""
        return "gelu_pytorch_tanh" if self.hidden_act == "gelu" else self.hidden_act

    def problems(self) -> list[str]:
        found = super().problems()
        # Older transformers let hidden_activation decide, newer ones hidden_act.
        if self.hidden_activation not in (None, self.gate):
            found.append(f"hidden_act is {self.hidden_act!r} but hidden_activation is {self.hidden_activation!r}")
        return found


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    bias = config.attention_bias
    layers = [
        nn.decoder_layer(config, rope, activation=config.gate, norm_plus=1.0, qkv_bias=bias, out_bias=bias)
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm_plus=1.0, embedding_scale=config.hidden_size**0.5)
