"""The layer that the two halves of a policy are made of: the one that reads the prefix and the one that acts."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.nn.ada_rms_norm import gated_residual, normed
from edgewright.nn.mixed_attention import Mask, MixedAttention, Prefix
from edgewright.nn.module import Module


class JointLayer(Module):
    """x + gate * attention(norm(x)), then the same with the MLP; only `AdaRMSNorm` has gates."""

    def __init__(self, attention: MixedAttention, mlp: Module, norm: Callable[[], Module]) -> None:
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.mlp = mlp

    def forward(
        self,
        g: GraphBuilder,
        x: ir.Value,
        *,
        positions: ir.Value,
        prefix: Prefix,
        mask: Mask,
        condition: ir.Value | None = None,
        projected: bool = False,
    ) -> ir.Value:
        """Return the hidden states of rows that see a prefix and each other; `projected` as in `MixedAttention`."""
        y, gate = normed(g, self.input_layernorm, x, condition)
        y = self.self_attn(g, y, positions=positions, prefix=prefix, mask=mask, projected=projected)
        with g.scope(self.path):
            x = gated_residual(g, x, y, gate)
        return self._fed(g, x, condition)

    def read(
        self, g: GraphBuilder, x: ir.Value, *, positions: ir.Value, mask: Mask, transposed: bool, kv_only: bool
    ) -> tuple[ir.Value, Prefix]:
        """Return the hidden states of the prefix's own rows, and their keys and values.

        With `kv_only` the keys and values are all that is made, and x is returned.
        """
        normed_x = self.input_layernorm(g, x)
        prefix = self.self_attn.as_prefix(g, normed_x, positions, transposed=transposed)
        if kv_only:
            return x, prefix
        y = self.self_attn(g, normed_x, positions=positions, prefix=prefix, mask=mask, own=False)
        with g.scope(self.path):
            x = gated_residual(g, x, y, None)
        return self._fed(g, x, None), prefix

    def _fed(self, g: GraphBuilder, x: ir.Value, condition: ir.Value | None) -> ir.Value:
        y, gate = normed(g, self.post_attention_layernorm, x, condition)
        y = self.mlp(g, y)
        with g.scope(self.path):
            return gated_residual(g, x, y, gate)
