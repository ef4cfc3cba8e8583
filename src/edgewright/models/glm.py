"""GLM-4: Llama with gate and up stored as one matrix, and rotary positions on the neighbouring pairs of half a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Rule, split


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`GlmConfig`; `attention_bias` is that of q, k and v, the output has none."""

    num_key_value_heads: int | None = 2
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-7
    partial_rotary_factor: float = 0.5
    attention_bias: bool = True


def rules(config: Config) -> Sequence[Rule]:
    """Cut the joined matrix of gate and up."""
    inner = config.intermediate_size
    spans = {"gate_proj": [(0, inner)], "up_proj": [(inner, 2 * inner)]}
    return (split(r"(model\.layers\.\d+\.mlp\.)gate_up_proj(\.weight)", spans),)


def network(config: Config, max_context: int, *, names: nn.LayerNames = nn.PRE_NORM) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    layers = [
        nn.decoder_layer(config, rope, names=names, qkv_bias=config.attention_bias, interleaved=True)
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers)
