"""pi0: PaliGemma reads images and text; a Gemma expert, given the state as a token of its own, moves the actions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.models._paligemma import PaliGemmaPolicy, gemma_norm
from edgewright.models._policy import PolicyBounds, PolicyWeights, Values
from edgewright.models._policy_parts import TimedActions, length, silu, suffix_in_turn, suffix_positions
from edgewright.nn import Linear, Prefix


class Pi0(PaliGemmaPolicy):
    """The state's token sees the prefix and itself; the actions see everything."""

    state_in_suffix = True

    def __init__(self, source: PolicyWeights, bounds: PolicyBounds) -> None:
        sizes = source.sizes
        width = sizes.expert.width
        super().__init__(source, bounds, lambda: gemma_norm(sizes.expert, sizes.text_epsilon))
        self.state_proj = Linear(sizes.state_dim, width, bias=True)
        self.action_time_mlp_in = TimedActions(width)
        self.action_time_mlp_out = Linear(width, width, bias=True)

    def denoise(self, g: GraphBuilder, values: Values, prefix: Sequence[Prefix]) -> ir.Value:
        mask = values["prefix_mask"]
        inner = self.action_time_mlp_in(g, self.action_in_proj(g, values["x_t"]), values["time_embedding"])
        with g.scope("action_time_mlp_in"):
            inner = silu(g, inner)
        moved = self.action_time_mlp_out(g, inner)
        state = self.state_proj(g, values["state"])
        with g.scope("suffix"):
            x = g.op("Concat", g.op("Unsqueeze", state, g.constant([1], np.int64)), moved, axis=1)
            rows = length(g, x)
        positions = suffix_positions(g, mask, rows)
        x = self.act(g, x, prefix, suffix_in_turn(g, mask, rows, blocks=2), positions)
        with g.scope("suffix"):
            ends = (g.constant([n], np.int64) for n in (1, np.iinfo(np.int64).max, 1))
            x = g.op("Slice", x, *ends)
        result: ir.Value = self.action_out_proj(g, self.expert.norm(g, x))
        return result


def network(source: PolicyWeights, bounds: PolicyBounds) -> Pi0:
    """Return the network of a checkpoint."""
    return Pi0(source, bounds)
