"""What is special in Gemma 4's layers: norm of values, inputs of each layer's own, experts beside the MLP."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgewright import nn, ops
from edgewright.graph import GraphBuilder
from edgewright.nn import moe
from edgewright.nn.cache import Cache

if TYPE_CHECKING:
    from edgewright.models.gemma4_text import Config


class Attention(nn.Attention):
    """Scores are not scaled, q and k have norms with, v one without weight; `k_eq_v` takes the raw keys for values."""

    def __init__(
        self, width: int, *, kv_heads: int, head_dim: int, epsilon: float, k_eq_v: bool, **options: Any
    ) -> None:
        super().__init__(width, kv_heads=kv_heads, head_dim=head_dim, scale=1.0, qk_norm_epsilon=epsilon, **options)
        if k_eq_v and self.kv_from is None:
            del self.v_proj
        self.v_norm = nn.RMSNorm(kv_heads * head_dim, epsilon, group=head_dim, weight=False)

    def _key_value(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> tuple[ir.Value, ir.Value]:
        raw = self.k_proj(g, x)
        value = self.v_proj(g, x) if hasattr(self, "v_proj") else raw
        return self._place(g, raw, "k_norm", cache), self.v_norm(g, value)


class Router(nn.Module):
    """Weights of the chosen experts: a softmax made to sum to one, times a factor of each expert."""

    def __init__(self, width: int, experts: int, top_k: int, epsilon: float) -> None:
        self.norm = nn.RMSNorm(width, epsilon, weight=False)
        self.proj = moe.FloatLinear(width, experts)
        self.scale = nn.Parameter(width)
        self.per_expert_scale = nn.Parameter(experts)
        self._choose = functools.partial(moe.softmax_top_k, top_k=top_k, renormalize=True)
        self._factor = width**-0.5

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        scaled = nn.scaled(g, g.op("Mul", self.norm(g, x), self.scale.value(g)), self._factor)
        result: ir.Value = g.op("Mul", self._choose(g, self.proj(g, scaled)), self.per_expert_scale.value(g))
        return result


class Layer(nn.DecoderLayer):
    """A layer of four norms; experts beside the MLP, a last step that adds the layer's own input, a factor at the end.

    `layer_input` `[batch, seq, width]` is set by the decoder before the layer is built.
    """

    def __init__(self, config: Config, mixer: Attention, mlp: nn.Module) -> None:
        width, own, epsilon = config.hidden_size, config.hidden_size_per_layer_input, config.rms_norm_eps

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(width, epsilon)

        super().__init__(mixer, mlp, norm, names=nn.SANDWICH)
        self.layer_scalar = nn.Parameter(1)
        self.layer_input: ir.Value | None = None
        self._activation = ops.ACTIVATIONS[config.hidden_activation]
        if own:
            self.per_layer_input_gate = nn.Linear(width, own)
            self.per_layer_projection = nn.Linear(own, width)
            self.post_per_layer_input_norm = norm()
        self._moe = config.enable_moe_block
        if self._moe:
            count, chosen, inner = config.num_experts, config.top_k_experts, config.moe_intermediate_size
            assert count is not None
            assert chosen is not None
            assert inner is not None
            self.router = Router(width, count, chosen, epsilon)
            self.experts = moe.Experts(width, inner, config.hidden_activation, experts=count, top_k=chosen)
            self.post_feedforward_layernorm_1 = norm()
            self.pre_feedforward_layernorm_2 = norm()
            self.post_feedforward_layernorm_2 = norm()

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache, select: ir.Value | None = None) -> ir.Value:
        x = super().forward(g, x, cache, select)
        own = self.layer_input
        if own is not None:
            if select is not None:
                own = g.op("Gather", own, select, axis=1)
            gated = ops.gated_activation(g, self.per_layer_input_gate(g, x), own, activation=self._activation)
            x = g.op("Add", x, self.post_per_layer_input_norm(g, self.per_layer_projection(g, gated)))
        result: ir.Value = g.op("Mul", x, self.layer_scalar.value(g))
        return result

    def _with_mlp(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        if not self._moe:
            return super()._with_mlp(g, x)
        names = self._names
        dense = getattr(self, names.mlp)(g, self._norm(g, names.before_mlp, x))
        sparse = self.experts(g, self.pre_feedforward_layernorm_2(g, x), self.router(g, x))
        both = g.op("Add", self.post_feedforward_layernorm_1(g, dense), self.post_feedforward_layernorm_2(g, sparse))
        return self._add(g, x, self._norm(g, names.after_mlp, both))


class Decoder(nn.Decoder):
    """A scaled embedding; a second table and a projection of the first give each layer its own input."""

    def __init__(self, config: Config, layers: Sequence[Layer]) -> None:
        width, own, epsilon = config.hidden_size, config.hidden_size_per_layer_input, config.rms_norm_eps
        embedding = nn.Embedding(config.vocab_size, width, scale=width**0.5)
        super().__init__(embedding, layers, nn.RMSNorm(width, epsilon))
        self._own_layers = tuple(layers)
        self._factor = width**-0.5
        if own:
            total = len(layers) * own
            self.embed_tokens_per_layer = nn.Embedding(config.vocab_size_per_layer_input, total, scale=own**0.5)
            self.per_layer_model_projection = nn.Linear(width, total)
            self.per_layer_projection_norm = nn.RMSNorm(total, epsilon, group=own)

    def embed(self, g: GraphBuilder, ids: ir.Value, positions: ir.Value) -> ir.Value:
        x = super().embed(g, ids, positions)
        if hasattr(self, "embed_tokens_per_layer"):
            seen = nn.scaled(g, self.per_layer_model_projection(g, x), self._factor)
            both = g.op("Add", self.per_layer_projection_norm(g, seen), self.embed_tokens_per_layer(g, ids))
            count = len(self._own_layers)
            halved = g.op("Mul", both, g.constant(2**-0.5, np.float32))
            parts = g.op("Split", halved, outputs=count, axis=-1, num_outputs=count)
            for layer, part in zip(self._own_layers, parts if count > 1 else [parts], strict=True):
                layer.layer_input = part
        return x
