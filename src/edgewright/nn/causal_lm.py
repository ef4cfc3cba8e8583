"""The decoder-only language model: layers, head, and the stage's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict, Unpack

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.contract import KVLayer, StageContract, TensorContract
from edgewright.graph import GraphBuilder, Stage
from edgewright.nn.attention import Attention, Cache
from edgewright.nn.layers import Embedding, GatedMLP, Linear, RMSNorm
from edgewright.nn.module import Module
from edgewright.nn.rope import RopeTable


class DecoderLayer(Module):
    """Attention and MLP, each behind a norm on its input and, with `post_norms`, one on its output (Gemma style)."""

    def __init__(
        self,
        width: int,
        attention: Attention,
        mlp: GatedMLP,
        epsilon: float,
        *,
        post_norms: bool = False,
        plus: float = 0.0,
    ) -> None:
        def norm() -> RMSNorm:
            return RMSNorm(width, epsilon, plus=plus)

        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        if post_norms:
            self.pre_feedforward_layernorm = norm()
            self.post_feedforward_layernorm = norm()
        self.mlp = mlp
        self._post_norms = post_norms

    def forward(
        self, g: GraphBuilder, x: ir.Value, cache: Cache, select: ir.Value | None = None
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return hidden states and the present cache; with `select` `[n]` only those positions go past attention."""
        mixed, key, value = self.self_attn(g, self.input_layernorm(g, x), cache)
        if select is not None:
            x, mixed = g.op("Gather", x, select, axis=1), g.op("Gather", mixed, select, axis=1)
        attended = self.self_attn.o_proj(g, mixed)
        if self._post_norms:
            x = g.op("Add", x, self.post_attention_layernorm(g, attended))
            inner = self.mlp(g, self.pre_feedforward_layernorm(g, x))
            return g.op("Add", x, self.post_feedforward_layernorm(g, inner)), key, value
        x = g.op("Add", x, attended)
        return g.op("Add", x, self.mlp(g, self.post_attention_layernorm(g, x))), key, value


class Decoder(Module):
    """Embedding, layers, final norm."""

    def __init__(self, embed_tokens: Embedding, layers: Sequence[DecoderLayer], norm: RMSNorm) -> None:
        self.embed_tokens = embed_tokens
        self.layers = list(layers)
        self.norm = norm


class CausalLM(Module):
    """A decoder and its head: `input_ids` in, float32 logits of the asked-for positions out.

    `lm_head` None ties the head to the embedding table.
    """

    def __init__(self, model: Decoder, lm_head: Linear | None, *, vocab: int, softcap: float | None = None) -> None:
        self.model = model
        self.tied = lm_head is None
        width, table = model.norm.weight.shape[0], model.embed_tokens.weight
        self.lm_head = lm_head or Linear(width, vocab, weight=table)
        self._vocab, self._softcap = vocab, softcap
        self.assign_names()

    def stage(self, *, max_context: int) -> Stage:
        """Build the `llm` stage; every parameter must be bound.

        Inputs: `input_ids` int64 `[batch, seq]`; `past_lengths` int64 `[batch]`, the tokens each sequence's cache
        holds; `logit_positions` int64 `[positions]`, the rows of `seq` whose logits are wanted; and per layer
        `past_key.i`, `past_value.i` `[batch, kv_heads, capacity, head_dim]`. Outputs: `logits`
        `[batch, positions, vocab]` and the caches as `present_key.i`, `present_value.i`.
        """
        stage = Stage("llm", ir.Graph([], [], nodes=[], name="llm"), self._contract(max_context))
        g = GraphBuilder(stage)
        values = {tensor.name: g.input(tensor) for tensor in stage.contract.inputs}
        ids, lengths, select = values["input_ids"], values["past_lengths"], values["logit_positions"]
        positions = _positions(g, ids, lengths)
        x = self.model.embed_tokens(g, ids)
        results: dict[str, ir.Value] = {}
        last = len(self.model.layers) - 1
        for index, (layer, kv) in enumerate(zip(self.model.layers, stage.contract.kv, strict=True)):
            cache = Cache(values[kv.past_key], values[kv.past_value], lengths, positions)
            x, key, value = layer(g, x, cache, select if index == last else None)
            results[kv.present_key], results[kv.present_value] = key, value
        logits = self.lm_head(g, self.model.norm(g, x))
        results["logits"] = ops.softcap(g, logits, cap=self._softcap) if self._softcap else logits
        for tensor in stage.contract.outputs:
            g.output(results[tensor.name], tensor)
        return stage

    def _contract(self, max_context: int) -> StageContract:
        kv, past, present = [], [], []
        for index, layer in enumerate(self.model.layers):
            a = layer.self_attn
            shape = ("batch", a.kv_heads, "capacity", a.head_dim)
            layer_kv = KVLayer(
                past_key=f"past_key.{index}",
                past_value=f"past_value.{index}",
                present_key=f"present_key.{index}",
                present_value=f"present_value.{index}",
                kv_heads=a.kv_heads,
                head_dim=a.head_dim,
                window=a.window,
            )
            kv.append(layer_kv)
            past += [TensorContract(name, "float32", shape) for name in (layer_kv.past_key, layer_kv.past_value)]
            present += [
                TensorContract(name, "float32", shape) for name in (layer_kv.present_key, layer_kv.present_value)
            ]
        return StageContract(
            inputs=(
                TensorContract("input_ids", "int64", ("batch", "seq")),
                TensorContract("past_lengths", "int64", ("batch",)),
                TensorContract("logit_positions", "int64", ("positions",)),
                *past,
            ),
            outputs=(TensorContract("logits", "float32", ("batch", "positions", self._vocab)), *present),
            bounds={
                "batch": (1, 64),
                "seq": (1, max_context),
                "positions": (0, max_context),
                "capacity": (1, max_context),
            },
            kv=tuple(kv),
        )


def _positions(g: GraphBuilder, ids: ir.Value, lengths: ir.Value) -> ir.Value:
    """int64 `[batch, seq]`: row i of sequence b stands at past_lengths[b] + i."""
    with g.scope("positions"):
        one, zero = g.constant(1, np.int64), g.constant(0, np.int64)
        seq = g.op("Squeeze", g.op("Shape", ids, start=1, end=2), g.constant([0], np.int64))
        steps = g.op("Range", zero, seq, one)
        base = g.op("Unsqueeze", lengths, g.constant([1], np.int64))
        result: ir.Value = g.op("Add", base, steps)
    return result


class _Sizes(Protocol):
    """What the usual layer and model need of a family's config."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_size(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def tie_word_embeddings(self) -> bool: ...


class _AttentionOptions(TypedDict, total=False):
    """The options of `Attention` that families set."""

    qkv_bias: bool
    out_bias: bool
    window: int | None
    scale: float | None
    softcap: float | None
    qk_norm_epsilon: float | None
    qk_norm_plus: float


def decoder_layer(
    config: _Sizes,
    rope: RopeTable | None,
    *,
    activation: str | None = None,
    mlp_bias: bool = False,
    post_norms: bool = False,
    norm_plus: float = 0.0,
    **attention: Unpack[_AttentionOptions],
) -> DecoderLayer:
    """Return a layer of a config's sizes; `activation` overrides `hidden_act`, `rope` None means no positions."""
    width = config.hidden_size
    mixer = Attention(
        width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_size,
        rope=rope,
        **attention,
    )
    mlp = GatedMLP(width, config.intermediate_size, activation or config.hidden_act, bias=mlp_bias)
    return DecoderLayer(width, mixer, mlp, config.rms_norm_eps, post_norms=post_norms, plus=norm_plus)


def causal_lm(
    config: _Sizes,
    layers: Sequence[DecoderLayer],
    *,
    norm_plus: float = 0.0,
    embedding_scale: float | None = None,
    softcap: float | None = None,
) -> CausalLM:
    """Put embedding, final norm and head around `layers`, as most families do."""
    width, vocab = config.hidden_size, config.vocab_size
    model = Decoder(
        Embedding(vocab, width, scale=embedding_scale),
        layers,
        RMSNorm(width, config.rms_norm_eps, plus=norm_plus),
    )
    head = None if config.tie_word_embeddings else Linear(width, vocab)
    return CausalLM(model, head, vocab=vocab, softcap=softcap)
