"""GPT-2: learned positions, LayerNorm with bias, a plain MLP; matrices stored `[in, out]`, q, k and v in one."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from edgewright import nn
from edgewright.graph import GraphBuilder
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Rule, Transpose, qkv_spans, split


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`GPT2Config`; `n_inner` null or absent means four times the width."""

    intermediate_size: int = 0
    max_position_embeddings: int = 1024
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False

    activation: typing.ClassVar[str] = "activation_function"
    absent: typing.ClassVar[frozenset[str]] = frozenset(
        {"num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling"}
    )
    aliases: typing.ClassVar[Mapping[str, str]] = {
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
    }
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), "training only"),
        **{
            f"summary_{key}": "a classification head"
            for key in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")
        },
        "reorder_and_upcast_attn": "the same values in another order of computing",
        "n_ctx": "a second name of n_positions that transformers doesn't read",
        "_num_labels": "classification heads",
        **dict.fromkeys(("n_special", "output_past", "predict_special_tokens"), "options of old libraries"),
    }

    def __post_init__(self) -> None:
        if not self.intermediate_size:
            object.__setattr__(self, "intermediate_size", 4 * self.hidden_size)

    def attention_scale(self, layer: int) -> float:
        """Return what the scores of a layer are multiplied by."""
        scale = self.head_size**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


#: Tensor name prefixes; the first files have none in front.
RENAMES = {
    f"{prefix}{old}.": f"model.{new}."
    for prefix in ("transformer.", "")
    for old, new in {"wte": "embed_tokens", "wpe": "embed_positions", "h": "layers", "ln_f": "norm"}.items()
}


def rules(config: Config) -> Sequence[Rule]:
    """Turn the matrices and cut q, k and v apart."""
    return [
        Transpose(r"model\.layers\.\d+\.(attn|mlp)\.c_\w+\.weight", {r"\g<0>": slice(None)}),
        split(
            r"(model\.layers\.\d+\.attn\.)c_attn(\.\w+)",
            qkv_spans(config.num_attention_heads, config.kv_heads, config.head_size),
        ),
    ]


class Decoder(nn.Decoder):
    """Adds a row of a second table, by position, to each token's row."""

    def __init__(self, config: Config, layers: Sequence[nn.DecoderLayer], norm: nn.Module) -> None:
        width = config.hidden_size
        super().__init__(nn.Embedding(config.vocab_size, width), layers, norm)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, width)

    def embed(self, g: GraphBuilder, ids: ir.Value, positions: ir.Value) -> ir.Value:
        result: ir.Value = g.op("Add", super().embed(g, ids, positions), self.embed_positions(g, positions))
        return result


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    width, act = config.hidden_size, config.activation_function

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, config.layer_norm_epsilon)

    layers = [
        nn.decoder_layer(
            config,
            None,
            mlp=nn.MLP(width, config.intermediate_size, act, bias=True, names=("c_fc", "c_proj")),
            norm=norm,
            names=nn.LayerNames(mixer="attn", before_mixer="ln_1", before_mlp="ln_2"),
            qkv_bias=True,
            out_bias=True,
            scale=config.attention_scale(i),
            out="c_proj",
        )
        for i in range(config.num_hidden_layers)
    ]
    head = None if config.tie_word_embeddings else nn.Linear(width, config.vocab_size)
    return nn.CausalLM(Decoder(config, layers, norm()), head, vocab=config.vocab_size)
