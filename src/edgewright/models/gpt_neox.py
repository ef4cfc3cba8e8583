"""GPT-NeoX: attention and MLP read the layer's input in parallel, each through a LayerNorm of its own; partial rope."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewright import nn
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Drop, Rule, grouped_spans, split


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`GPTNeoXConfig`; `use_parallel_residual` false means attention first, then the MLP."""

    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    partial_rotary_factor: float = 0.25
    attention_bias: bool = True
    use_parallel_residual: bool = True

    absent: typing.ClassVar[frozenset[str]] = frozenset({"num_key_value_heads", "head_dim", "rms_norm_eps"})
    aliases: typing.ClassVar[Mapping[str, str]] = {
        "rotary_pct": "partial_rotary_factor",
        "rotary_emb_base": "rope_theta",
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        "hidden_dropout_prob": "training only",
        "classifier_dropout": "training only",
        "custom_pipelines": "names of programs around the model",
    }


#: Tensor name prefixes; transformers 5 calls the head lm_head, files call it embed_out.
RENAMES = {
    "gpt_neox.embed_in.": "model.embed_tokens.",
    "gpt_neox.layers.": "model.layers.",
    "gpt_neox.final_layer_norm.": "model.norm.",
    "embed_out.": "lm_head.",
}


def rules(config: Config) -> Sequence[Rule]:
    """Cut q, k and v apart, which take turns by head."""
    size = config.head_size
    return [
        Drop(r"model\.layers\.\d+\.attention\.(bias|masked_bias)", "causal masks of old files"),
        split(
            r"(model\.layers\.\d+\.attention\.)query_key_value(\.\w+)",
            grouped_spans(config.num_attention_heads, {"q_proj": size, "k_proj": size, "v_proj": size}),
        ),
    ]


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    width, inner, rope = config.hidden_size, config.intermediate_size, config.rope(max_context)
    names = ("dense_h_to_4h", "dense_4h_to_h")

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, config.layer_norm_eps)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=nn.MLP(width, inner, config.hidden_act, bias=True, names=names),
            norm=norm,
            names=nn.LayerNames(mixer="attention"),
            parallel=config.use_parallel_residual,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            out="dense",
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm())
