"""Falcon: LayerNorm, a plain MLP, q, k and v in one matrix of three layouts, rope or ALiBi, three ways of residuals.

The three generations are falcon-rw (a key/value head per query head, ALiBi, attention before the MLP), falcon-7b
(`multi_query`, both in parallel behind one norm) and falcon-40b (`new_decoder_architecture`: grouped heads, two norms).
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from edgewright import nn
from edgewright.graph import GraphBuilder
from edgewright.graph.weights import ComputedWeight
from edgewright.models._config import DecoderConfig
from edgewright.models._rules import Rule, grouped_spans, qkv_spans, split


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """`FalconConfig`; `multi_query` and `num_kv_heads` count as the architecture says, see `kv_heads`."""

    intermediate_size: int = 0
    activation_name: str = "gelu"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    alibi: bool = False
    bias: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool | None = True
    parallel_attn: bool | None = True
    num_ln_in_parallel_attn: int | None = None

    activation: typing.ClassVar[str] = "activation_name"
    absent: typing.ClassVar[frozenset[str]] = frozenset({"head_dim", "hidden_act", "rms_norm_eps"})
    aliases: typing.ClassVar[Mapping[str, str]] = {
        "activation": "activation_name",
        "ffn_hidden_size": "intermediate_size",
        "n_embed": "hidden_size",
        "num_kv_heads": "num_key_value_heads",
    }
    fixed: typing.ClassVar[Mapping[str, Any]] = {"apply_residual_connection_post_layernorm": False, "ff_factor": 4}

    def __post_init__(self) -> None:
        if not self.intermediate_size:
            object.__setattr__(self, "intermediate_size", 4 * self.hidden_size)

    @property
    def kv_heads(self) -> int:
        """Key/value heads: given in the new architecture; in the old one, or as many as query heads."""
        if not self.new_decoder_architecture and self.multi_query:
            return 1
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def layer_names(self) -> nn.LayerNames:
        """The norms of a layer, and which of attention and MLP they stand before."""
        if not self.parallel_attn:
            return nn.LayerNames(mixer="self_attention")
        if self.new_decoder_architecture and self.num_ln_in_parallel_attn in (None, 2):
            return nn.LayerNames(mixer="self_attention", before_mixer="ln_attn", before_mlp="ln_mlp")
        return nn.LayerNames(mixer="self_attention", before_mlp=None)

    def problems(self) -> list[str]:
        found = super().problems()
        norms = self.num_ln_in_parallel_attn
        if self.new_decoder_architecture and not self.parallel_attn:
            found.append("parallel_attn is false in the new architecture, which has nothing else")
        if norms not in ((None, 1, 2) if self.new_decoder_architecture else (None, 1)):
            found.append(f"num_ln_in_parallel_attn is {norms}")
        if not self.new_decoder_architecture and not self.multi_query and self.kv_heads != self.num_attention_heads:
            found.append(f"num_kv_heads is {self.kv_heads} in the old architecture without multi_query")
        if self.alibi and self.rope_scaling is not None:
            found.append("a rope scaling is given beside alibi")
        return found


#: Tensor name prefixes.
RENAMES = {
    "transformer.word_embeddings.": "model.embed_tokens.",
    "transformer.h.": "model.layers.",
    "transformer.ln_f.": "model.norm.",
}


def rules(config: Config) -> Sequence[Rule]:
    """Cut q, k and v apart: by key/value head in the new architecture, else one after the other or by head."""
    heads, kv_heads, size = config.num_attention_heads, config.kv_heads, config.head_size
    if config.new_decoder_architecture or not config.multi_query:
        share = heads // kv_heads
        spans = grouped_spans(kv_heads, {"q_proj": share * size, "k_proj": size, "v_proj": size})
    else:
        spans = qkv_spans(heads, kv_heads, size)
    return [split(r"(model\.layers\.\d+\.self_attention\.)query_key_value(\.\w+)", spans)]


def alibi(heads: int, head_dim: int, slots: int) -> Callable[[GraphBuilder], ir.Value]:
    """Return the table of ALiBi, slope of a head times slot; in bfloat16, as transformers computes it."""
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2.0 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)]

    def rows(start: int, stop: int) -> np.ndarray:
        factors = np.array(slopes[start:stop], np.float32).astype(ml_dtypes.bfloat16)
        steps = np.arange(slots).astype(ml_dtypes.bfloat16)
        table: np.ndarray = (factors[:, None] * steps).astype(np.float32)
        return table / np.float32(math.sqrt(head_dim))

    table = ComputedWeight("alibi", (heads, slots), rows)
    return lambda g: g.weight(table)


def network(config: Config, max_context: int) -> nn.CausalLM:
    """Return the network of a config."""
    width, bias = config.hidden_size, config.bias
    rope = None if config.alibi else config.rope(max_context)
    table = alibi(config.num_attention_heads, config.head_size, max_context) if config.alibi else None

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, config.layer_norm_epsilon)

    def mlp() -> nn.MLP:
        names = ("dense_h_to_4h", "dense_4h_to_h")
        return nn.MLP(width, config.intermediate_size, config.activation_name, bias=bias, names=names)

    layers = [
        nn.decoder_layer(
            config,
            rope,
            mlp=mlp(),
            norm=norm,
            names=config.layer_names,
            parallel=bool(config.parallel_attn),
            qkv_bias=bias,
            out_bias=bias,
            bias_table=table,
            out="dense",
        )
        for _ in range(config.num_hidden_layers)
    ]
    return nn.causal_lm(config, layers, norm=norm())
