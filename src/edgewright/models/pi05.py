"""pi0.5: PaliGemma reads images and text; a Gemma expert, its norms modulated by the time, moves the actions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.models._paligemma import PaliGemmaPolicy
from edgewright.models._policy import PolicyBounds, PolicyWeights, Values
from edgewright.models._policy_parts import length, open_suffix, silu, suffix_positions
from edgewright.nn import AdaRMSNorm, Linear, Prefix


class Pi05(PaliGemmaPolicy):
    """The state, where there is one, is part of the text."""

    def __init__(self, source: PolicyWeights, bounds: PolicyBounds) -> None:
        width, epsilon = source.sizes.expert.width, source.sizes.text_epsilon
        super().__init__(source, bounds, lambda: AdaRMSNorm(width, width, epsilon))
        self.time_mlp_in = Linear(width, width, bias=True)
        self.time_mlp_out = Linear(width, width, bias=True)

    def denoise(self, g: GraphBuilder, values: Values, prefix: Sequence[Prefix]) -> ir.Value:
        condition = self._condition(g, values["time_embedding"])
        mask, x_t = values["prefix_mask"], values["x_t"]
        with g.scope("suffix"):
            positions = suffix_positions(g, mask, length(g, x_t))
        x = self.action_in_proj(g, x_t)
        x = self.act(g, x, prefix, open_suffix(g, mask, x_t), positions, condition)
        y, _ = self.expert.norm(g, x, condition)
        result: ir.Value = self.action_out_proj(g, y)
        return result

    def _condition(self, g: GraphBuilder, time: ir.Value) -> ir.Value:
        inner = self.time_mlp_in(g, time)
        with g.scope("time_mlp_in"):
            inner = silu(g, inner)
        outer = self.time_mlp_out(g, inner)
        with g.scope("time_mlp_out"):
            return silu(g, outer)


def network(source: PolicyWeights, bounds: PolicyBounds) -> Pi05:
    """Return the network of a checkpoint."""
    return Pi05(source, bounds)
