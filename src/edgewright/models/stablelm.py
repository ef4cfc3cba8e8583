"""StableLM: Llama with layer norms, rotary positions on a quarter of a head, optionally an MLP beside the attention."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Reshape, Rule, Stack


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`StableLmConfig`; its `layer_norm_eps` is `rms_norm_eps` here."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 0.25
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False

    aliases: typing.ClassVar[Mapping[str, str]] = {"layer_norm_eps": "rms_norm_eps"}

    def problems(self) -> list[str]:
        found = super().problems()
        if self.head_size * self.num_attention_heads != self.hidden_size:
            found.append(f"{self.num_attention_heads} heads of {self.head_size} don't make up {self.hidden_size}")
        return found


def rules(config: Config) -> Sequence[Rule]:
    """Put the norm weights of all heads into one table."""
    found: list[Rule] = []
    for name, heads in (("q_layernorm", config.num_attention_heads), ("k_layernorm", config.kv_heads)):
        table = rf"(model\.layers\.\d+\.self_attn\.{name})"
        found.append(Stack(table + r"\.norms\.(?P<i>\d+)\.weight", r"\1.weight", heads))
        found.append(Reshape(table + r"\.weight", lambda shape, heads=heads: (heads, shape[0] // heads)))  # type: ignore[misc]
    return found


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    rope = config.rope(max_context)
    head, eps = config.head_size, config.rms_norm_eps

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(config.hidden_size, eps)

    def head_norm(heads: int) -> nn.LayerNorm:
        return nn.LayerNorm(heads * head, eps, group=head, own_weights=True, bias=False)

    def head_norms() -> tuple[tuple[str, nn.Module], tuple[str, nn.Module]]:
        return ("q_layernorm", head_norm(config.num_attention_heads)), ("k_layernorm", head_norm(config.kv_heads))

    layers = [
        nn.decoder_layer(
            config,
            rope,
            norm=norm,
            names=nn.LayerNames(before_mlp=None) if config.use_parallel_residual else nn.PRE_NORM,
            parallel=config.use_parallel_residual,
            qkv_bias=config.use_qkv_bias,
            norms=head_norms() if config.qk_layernorm else None,
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm())
