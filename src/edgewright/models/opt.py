"""OPT: learned positions, LayerNorm, a plain MLP; the 350M model has narrow embeddings and norms behind the sums."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright import nn
from edgewright.graph import GraphBuilder
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Drop, Rename, Rule

#: The row of the table that belongs to the first position.
_FIRST_POSITION = 2
#: What all LayerNorms add to the variance; no key says it.
_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`OPTConfig`; with `do_layer_norm_before` false norms stand behind the sums, and there is no final one."""

    activation_function: str = "relu"
    tie_word_embeddings: bool = True
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = False
    word_embed_proj_dim: int | None = None
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True

    activation: typing.ClassVar[str] = "activation_function"
    absent: typing.ClassVar[frozenset[str]] = frozenset(
        {"num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling"}
    )
    aliases: typing.ClassVar[Mapping[str, str]] = {
        "_remove_final_layer_norm": "remove_final_layer_norm",
        "ffn_dim": "intermediate_size",
    }
    fixed: typing.ClassVar[Mapping[str, Any]] = {"learned_embeddings": True, "scale_embeddings": False}
    no_effect: typing.ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("activation_dropout", "dropout", "init_std", "layerdrop"), "training only"
    )

    @property
    def embedding_size(self) -> int:
        """Width of the token embeddings and of what the head reads."""
        return self.word_embed_proj_dim or self.hidden_size

    def norm(self) -> nn.LayerNorm:
        """Return one of the norms."""
        affine = self.layer_norm_elementwise_affine
        return nn.LayerNorm(self.hidden_size, _EPSILON, weight=affine, bias=affine)


#: Tensor name prefixes; the first files have no `model.` in front.
RENAMES = {
    f"{prefix}decoder.{old}": f"model.{new}"
    for prefix in ("model.", "")
    for old, new in {"final_layer_norm.": "norm.", "": ""}.items()
}


def rules(config: Config) -> Sequence[Rule]:
    """Give the MLP a name of its own."""
    return [
        Drop(r"model\.version", "a mark of the files' first format"),
        Rename(r"(model\.layers\.\d+\.)(fc[12]\.\w+)", r"\1mlp.\2"),
    ]


class Decoder(nn.Decoder):
    """Token rows, widened where they are narrow, plus a row of the table of positions; narrowed again at the end."""

    def __init__(self, config: Config, layers: Sequence[nn.DecoderLayer]) -> None:
        width, narrow = config.hidden_size, config.embedding_size
        final = config.norm() if config.do_layer_norm_before and not config.remove_final_layer_norm else None
        super().__init__(nn.Embedding(config.vocab_size, narrow), layers, final)
        self.embed_positions = nn.Embedding(config.max_position_embeddings + _FIRST_POSITION, width)
        if narrow != width:
            self.project_in = nn.Linear(narrow, width)
            self.project_out = nn.Linear(width, narrow)

    def embed(self, g: GraphBuilder, ids: ir.Value, positions: ir.Value) -> ir.Value:
        x = super().embed(g, ids, positions)
        if hasattr(self, "project_in"):
            x = self.project_in(g, x)
        rows = g.op("Add", positions, g.constant(_FIRST_POSITION, np.int64))
        result: ir.Value = g.op("Add", x, self.embed_positions(g, rows))
        return result

    def finish(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        x = super().finish(g, x)
        return self.project_out(g, x) if hasattr(self, "project_out") else x


class LateNormLayer(nn.DecoderLayer):
    """norm(x + attention(x)), then the same with the MLP."""

    self_attn: nn.Attention
    self_attn_layer_norm: nn.Module
    mlp: nn.Module
    final_layer_norm: nn.Module

    def forward(self, g: GraphBuilder, x: ir.Value, cache: nn.Cache, select: ir.Value | None = None) -> ir.Value:
        mixed = self.self_attn(g, x, cache)
        if select is not None:
            x, mixed = g.op("Gather", x, select, axis=1), g.op("Gather", mixed, select, axis=1)
        x = self.self_attn_layer_norm(g, g.op("Add", x, self.self_attn.project(g, mixed)))
        result: ir.Value = self.final_layer_norm(g, g.op("Add", x, self.mlp(g, x)))
        return result


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    width, bias = config.hidden_size, config.enable_bias
    kind = nn.DecoderLayer if config.do_layer_norm_before else LateNormLayer
    layers = [
        kind(
            nn.attention(config, None, qkv_bias=bias, out_bias=bias, out="out_proj"),
            nn.MLP(width, config.intermediate_size, config.activation_function, bias=bias, names=("fc1", "fc2")),
            config.norm,
            names=nn.LayerNames(before_mixer="self_attn_layer_norm", before_mlp="final_layer_norm"),
        )
        for _ in range(config.num_hidden_layers)
    ]
    head = None if config.tie_word_embeddings else nn.Linear(config.embedding_size, config.vocab_size)
    return nn.CausalLM(Decoder(config, layers), head, vocab=config.vocab_size)
