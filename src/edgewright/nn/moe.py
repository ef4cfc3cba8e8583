"""Mixture of experts: routers, the experts, and the block that joins them with a shared expert.

A routing function turns router logits `[batch, seq, experts]` into the weights of all experts `[batch, seq, experts]`,
zero for those that are not chosen. Of equal scores the expert of the lower number is chosen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.graph import GraphBuilder
from edgewright.nn.layers import Linear, scaled
from edgewright.nn.module import Module, Parameter

#: `choose(g, logits)`, or `choose(g, logits, correction=...)` for a router that has a correction bias.
Routing = Callable[..., ir.Value]


def softmax_top_k(
    g: GraphBuilder, logits: ir.Value, *, top_k: int, renormalize: bool = False, scale: float = 1.0
) -> ir.Value:
    """Softmax over all experts, the largest `top_k` of it, with `renormalize` divided by their sum."""
    values, chosen = _largest(g, g.op("Softmax", logits, axis=-1), top_k)
    if renormalize:
        values = g.op("Div", values, _sum(g, values))
    return _spread(g, logits, chosen, scaled(g, values, scale))


def softmax_corrected(g: GraphBuilder, logits: ir.Value, *, top_k: int, floor: float, correction: ir.Value) -> ir.Value:
    """Softmax over all experts, of which `correction` `[experts]` is added for the choice only.

    The chosen ones are divided by their sum, at least `floor`.
    """
    scores = g.op("Softmax", logits, axis=-1)
    _, chosen = _largest(g, g.op("Add", scores, correction), top_k)
    values = g.op("GatherElements", scores, chosen, axis=-1)
    total = g.op("Max", _sum(g, values), g.constant(floor, np.float32))
    return _spread(g, logits, chosen, g.op("Div", values, total))


def top_k_softmax(g: GraphBuilder, logits: ir.Value, *, top_k: int) -> ir.Value:
    """Softmax over the largest `top_k` logits only."""
    values, chosen = _largest(g, logits, top_k)
    return _spread(g, logits, chosen, g.op("Softmax", values, axis=-1))


def sigmoid_groups(
    g: GraphBuilder,
    logits: ir.Value,
    *,
    experts: int,
    top_k: int,
    correction: ir.Value | None = None,
    groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    tiny: float = 1e-20,
    scale: float = 1.0,
) -> ir.Value:
    """Sigmoid scores; `correction` `[experts]` is added for the choice only; see `_in_best_groups` (sum of two).

    `tiny` is added to the sum that `renormalize` divides by.
    """
    scores = g.op("Sigmoid", logits)
    choice = scores if correction is None else g.op("Add", scores, correction)
    if top_groups < groups:

        def best_two(grouped: ir.Value) -> ir.Value:
            return _sum(g, _largest(g, grouped, 2)[0])

        choice = _in_best_groups(g, choice, experts, groups, top_groups, best_two, other=-np.inf)
    _, chosen = _largest(g, choice, top_k)
    values = g.op("GatherElements", scores, chosen, axis=-1)
    if renormalize:
        values = g.op("Div", values, g.op("Add", _sum(g, values), g.constant(tiny, np.float32)))
    return _spread(g, logits, chosen, scaled(g, values, scale))


def softmax_groups(
    g: GraphBuilder, logits: ir.Value, *, experts: int, top_k: int, groups: int, top_groups: int, scale: float = 1.0
) -> ir.Value:
    """Softmax over all experts, the largest `top_k` of it within the best groups by their largest score."""
    scores = g.op("Softmax", logits, axis=-1)
    if top_groups < groups:

        def best(grouped: ir.Value) -> ir.Value:
            result: ir.Value = g.op("ReduceMax", grouped, g.constant([-1], np.int64), keepdims=1)
            return result

        scores = _in_best_groups(g, scores, experts, groups, top_groups, best, other=0.0)
    values, chosen = _largest(g, scores, top_k)
    return _spread(g, logits, chosen, scaled(g, values, scale))


def sparse_mixer(g: GraphBuilder, logits: ir.Value, *, jitter: float) -> ir.Value:
    """Choose the two largest logits, each weighted by a softmax over the logits near it.

    Near means (largest - logit) / max(|logit|, largest) <= 2 * jitter; the second softmax leaves out the first expert.
    """
    size, hidden = g.op("Abs", logits), g.constant(-np.inf, np.float32)

    def pick(scores: ir.Value) -> tuple[ir.Value, ir.Value]:
        largest, chosen = _largest(g, scores, 1)
        distance = g.op("Div", g.op("Sub", largest, logits), g.op("Max", size, largest))
        far = g.op("Greater", distance, g.constant(2 * jitter, np.float32))
        gates = g.op("Softmax", g.op("Where", far, hidden, scores), axis=-1)
        return g.op("GatherElements", gates, chosen, axis=-1), chosen

    first, first_chosen = pick(logits)
    gone = g.op("Expand", hidden, g.op("Shape", first_chosen))
    second, second_chosen = pick(g.op("ScatterElements", logits, first_chosen, gone, axis=-1))
    chosen = g.op("Concat", first_chosen, second_chosen, axis=-1)
    return _spread(g, logits, chosen, g.op("Concat", first, second, axis=-1))


def _largest(g: GraphBuilder, values: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
    result: tuple[ir.Value, ir.Value] = g.op("TopK", values, g.constant([count], np.int64), outputs=2, axis=-1)
    return result


def _sum(g: GraphBuilder, values: ir.Value) -> ir.Value:
    result: ir.Value = g.op("ReduceSum", values, g.constant([-1], np.int64), keepdims=1)
    return result


def _spread(g: GraphBuilder, like: ir.Value, places: ir.Value, values: ir.Value) -> ir.Value:
    """Put `values` at `places` of the last axis into zeros of the shape of `like`."""
    zeros = g.op("ConstantOfShape", g.op("Shape", like))
    result: ir.Value = g.op("ScatterElements", zeros, places, values, axis=-1)
    return result


def _in_best_groups(
    g: GraphBuilder,
    scores: ir.Value,
    experts: int,
    groups: int,
    top_groups: int,
    measure: Callable[[ir.Value], ir.Value],
    *,
    other: float,
) -> ir.Value:
    """Return the scores with `other` in place of those outside the `top_groups` groups of largest `measure`.

    `measure` maps `[batch, seq, groups, experts / groups]` to `[batch, seq, groups, 1]`.
    """
    grouped = g.op("Reshape", scores, g.constant([0, 0, groups, experts // groups], np.int64))
    worth = g.op("Squeeze", measure(grouped), g.constant([-1], np.int64))
    best, places = _largest(g, worth, top_groups)
    ones = g.op("Expand", g.constant(1.0, np.float32), g.op("Shape", best))
    kept = g.op("Unsqueeze", _spread(g, worth, places, ones), g.constant([-1], np.int64))
    inside = g.op("Cast", kept, to=int(ir.DataType.BOOL))
    masked = g.op("Where", inside, grouped, g.constant(other, np.float32))
    result: ir.Value = g.op("Reshape", masked, g.constant([0, 0, experts], np.int64))
    return result


class FloatLinear(Module):
    """A small linear whose few weights decide much: not a `Linear` node, so that no recipe quantizes it."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        self.weight = Parameter(outputs, inputs)
        self.bias = Parameter(outputs) if bias else None

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        y: ir.Value = g.op("MatMul", x, g.op("Transpose", self.weight.value(g), perm=[1, 0]))
        if self.bias is not None:
            y = g.op("Add", y, self.bias.value(g))
        return y


class Router(FloatLinear):
    """Logits of the experts, and of these by `choose` the routing; `correction` adds an `e_score_correction_bias`."""

    def __init__(
        self, width: int, experts: int, choose: Routing, *, bias: bool = False, correction: bool = False
    ) -> None:
        super().__init__(width, experts, bias=bias)
        self.e_score_correction_bias = Parameter(experts) if correction else None
        self._choose = choose

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        logits = super().forward(g, x)
        if self.e_score_correction_bias is None:
            return self._choose(g, logits)
        return self._choose(g, logits, correction=self.e_score_correction_bias.value(g))


class Experts(Module):
    """The experts' matrices, those of one kind stacked by rows; without `gated` there is no `gate_proj`.

    `activation` is a name of `ops.ACTIVATIONS`, or `swiglu_clamped` with its `limit` and `alpha`.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        activation: str,
        *,
        experts: int,
        top_k: int,
        gated: bool = True,
        bias: bool = False,
        limit: float | None = None,
        alpha: float | None = None,
    ) -> None:
        if gated:
            self.gate_proj = Linear(width, experts * inner, bias=bias)
        self.up_proj = Linear(width, experts * inner, bias=bias)
        self.down_proj = Linear(inner, experts * width, bias=bias)
        self._gated, self._experts, self._top_k = gated, experts, top_k
        self._activation = activation if activation == "swiglu_clamped" else ops.ACTIVATIONS[activation]
        self._limit, self._alpha = limit, alpha

    def forward(self, g: GraphBuilder, x: ir.Value, routing: ir.Value) -> ir.Value:
        projections = [self.gate_proj if self._gated else None, self.up_proj, self.down_proj]
        gate, up, down = [p.weight.value(g) if p else None for p in projections]
        gate_bias, up_bias, down_bias = [p.bias.value(g) if p and p.bias else None for p in projections]
        assert up is not None
        assert down is not None
        return ops.experts(
            g,
            x,
            routing,
            gate,
            up,
            down,
            experts=self._experts,
            top_k=self._top_k,
            activation=self._activation,
            gate_bias=gate_bias,
            up_bias=up_bias,
            down_bias=down_bias,
            limit=self._limit,
            alpha=self._alpha,
        )


class MoE(Module):
    """experts(x, router(x)), plus `shared(x)` where there is one, times a sigmoid where that has a gate.

    `router_name`, `shared_name` and `shared_gate_name` are the checkpoint's; a name may have dots (`router.layer`).
    """

    def __init__(
        self,
        router: Router,
        experts: Experts,
        *,
        router_name: str = "gate",
        shared: Module | None = None,
        shared_name: str = "shared_experts",
        shared_gate: FloatLinear | None = None,
        shared_gate_name: str = "shared_expert_gate",
    ) -> None:
        _place(self, router_name, router)
        self.experts = experts
        if shared is not None:
            _place(self, shared_name, shared)
        if shared_gate is not None:
            _place(self, shared_gate_name, shared_gate)
        self._router_name = router_name
        self._shared_name = None if shared is None else shared_name
        self._shared_gate_name = None if shared_gate is None else shared_gate_name

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        y: ir.Value = self.experts(g, x, _at(self, self._router_name)(g, x))
        if self._shared_name is None:
            return y
        shared = _at(self, self._shared_name)(g, x)
        if self._shared_gate_name is not None:
            share = g.op("Sigmoid", _at(self, self._shared_gate_name)(g, x))
            shared = g.op("Mul", share, shared)
        total: ir.Value = g.op("Add", y, shared)
        return total


def _place(owner: Module, name: str, child: Module) -> None:
    """Make `child` an attribute of `owner` under a name that may have dots, with plain modules in between."""
    *between, last = name.split(".")
    for part in between:
        if not hasattr(owner, part):
            setattr(owner, part, Module())
        owner = getattr(owner, part)
    setattr(owner, last, child)


def _at(owner: Module, name: str) -> Module:
    result: Module = operator.attrgetter(name)(owner)
    return result
