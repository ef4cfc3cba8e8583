"""Short forms for the usual decoder: a layer and a model from a config's sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypedDict, Unpack

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.nn.attention import Attention
from edgewright.nn.causal_lm import CausalLM, Decoder
from edgewright.nn.decoder_layer import PRE_NORM, DecoderLayer, LayerNames
from edgewright.nn.layers import Embedding, GatedMLP, Linear, RMSNorm
from edgewright.nn.module import Module
from edgewright.nn.rope import RopeTable


class Sizes(Protocol):
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


class AttentionOptions(TypedDict, total=False):
    """The options of `Attention` that families set."""

    qkv_bias: bool
    out_bias: bool
    window: int | None
    scale: float | None
    softcap: float | None
    qk_norm_epsilon: float | None
    qk_norm_plus: float
    norms: tuple[tuple[str, Module], tuple[str, Module]] | None
    norm_after_rope: bool
    interleaved: bool
    clip: float | None
    sinks: bool
    bias_table: Callable[[GraphBuilder], ir.Value] | None
    gated: bool
    kv_from: int | None
    out: str


def attention(config: Sizes, rope: RopeTable | None, **options: Unpack[AttentionOptions]) -> Attention:
    """Return attention of a config's sizes; `rope` None means no rotary positions."""
    return Attention(
        config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_size,
        rope=rope,
        **options,
    )


def decoder_layer(
    config: Sizes,
    rope: RopeTable | None,
    *,
    mixer: Module | None = None,
    mlp: Module | None = None,
    norm: Callable[[], Module] | None = None,
    names: LayerNames = PRE_NORM,
    parallel: bool = False,
    residual_scale: float | None = None,
    activation: str | None = None,
    mlp_bias: bool = False,
    norm_plus: float = 0.0,
    **options: Unpack[AttentionOptions],
) -> DecoderLayer:
    """Return a layer of a config's sizes.

    Without `mixer` it is attention with `rope` and the options. Without `mlp` it is a gated one, of `activation` or
    the config's `hidden_act`; without `norm` the norms are RMS norms of the config's epsilon, `norm_plus` added to
    their weights.
    """
    width = config.hidden_size
    if mlp is None:
        mlp = GatedMLP(width, config.intermediate_size, activation or config.hidden_act, bias=mlp_bias)
    if norm is None:

        def norm() -> Module:
            return RMSNorm(width, config.rms_norm_eps, plus=norm_plus)

    if mixer is None:
        mixer = attention(config, rope, **options)
    return DecoderLayer(mixer, mlp, norm, names=names, parallel=parallel, residual_scale=residual_scale)


def causal_lm(
    config: Sizes,
    layers: Sequence[DecoderLayer],
    *,
    norm: Module | None = None,
    norm_plus: float = 0.0,
    embedding_scale: float | None = None,
    softcap: float | None = None,
    logit_scale: float | None = None,
    head_bias: bool = False,
) -> CausalLM:
    """Put embedding, final norm (an RMS norm unless given) and head around `layers`, as most families do."""
    width, vocab = config.hidden_size, config.vocab_size
    final = norm or RMSNorm(width, config.rms_norm_eps, plus=norm_plus)
    model = Decoder(Embedding(vocab, width, scale=embedding_scale), layers, final)
    table = model.embed_tokens.weight if config.tie_word_embeddings else None
    head = Linear(width, vocab, bias=head_bias, weight=table)
    return CausalLM(model, head, vocab=vocab, softcap=softcap, logit_scale=logit_scale)
