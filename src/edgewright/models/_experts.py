"""What families with experts share: the block, and how stored experts become the stacked matrices of `nn.Experts`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from edgewright import nn
from edgewright.models._config import because
from edgewright.models._rules import Rename, Reshape, Rule, Stack, grouped_spans, split
from edgewright.nn.moe import Routing

#: Keys of routers that count in training only.
ROUTER_TRAINING = because("training only", "router_aux_loss_coef router_jitter_noise aux_loss_alpha seq_aux ep_size")


def expert_block(
    width: int, inner: int, activation: str, choose: Routing, *, experts: int, top_k: int, **options: Any
) -> nn.MoE:
    """Return gated experts behind a router without bias that chooses `top_k` by `choose`; `options` are `nn.MoE`'s."""
    return nn.MoE(
        nn.Router(width, experts, functools.partial(choose, top_k=top_k)),
        nn.Experts(width, inner, activation, experts=experts, top_k=top_k),
        **options,
    )


def expert_rules(
    experts: int, inner: int, *, names: Sequence[str] = ("gate_proj", "up_proj", "down_proj")
) -> list[Rule]:
    """Return rules for `...experts.N.<name>.weight` and for stacked `...experts.gate_up_proj` and `down_proj`.

    `names` are the checkpoint's of gate, up and down, or of up and down; `inner` is an expert's width.
    """
    own = ("gate_proj", "up_proj", "down_proj")[-len(names) :]
    rules: list[Rule] = [
        Stack(rf"(.*\.experts\.)(?P<i>\d+)\.{name}\.weight", rf"\1{to}.weight", experts)
        for name, to in zip(names, own, strict=True)
    ]
    rules.append(Reshape(r".*\.experts\.(?:gate_up|up|down)_proj", one_below_another))
    rules.append(
        split(r"(.*\.experts\.)gate_up_proj()", grouped_spans(experts, {"gate_proj": inner, "up_proj": inner}))
    )
    rules.append(Rename(r"(.*\.experts\.(?:gate|up|down)_proj)", r"\1.weight"))
    return rules


def granite_rules(experts: int, inner: int) -> list[Rule]:
    """Return rules for Granite's stacked experts: gate and up in one matrix, in a `block_sparse_moe`."""
    pair = grouped_spans(experts, {"gate_proj": inner, "up_proj": inner})
    return [
        Reshape(r".*\.block_sparse_moe\.(?:input|output)_linear\.weight", one_below_another),
        split(r"(.*\.block_sparse_moe\.)input_linear(\.weight)", pair, r"\1experts.{part}\2"),
        Rename(r"(.*\.block_sparse_moe\.)output_linear\.weight", r"\1experts.down_proj.weight"),
    ]


def expert_problems(experts: int, top_k: int, *, groups: int = 1, top_groups: int = 1, smallest: int = 2) -> list[str]:
    """Return why `top_k` experts can't be chosen of `experts`, in the best of groups where there are several.

    `smallest` is how many experts a group must have.
    """
    if groups == 1:
        return [] if top_k <= experts and top_groups == 1 else [f"{top_k} of {experts} experts can't be chosen"]
    size, rest = divmod(experts, groups)
    fine = not rest and size >= smallest and top_groups <= groups and top_k <= top_groups * size
    return [] if fine else [f"{top_k} of {experts} experts can't be chosen in {top_groups} of {groups} groups"]


def one_below_another(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Put the matrices of all experts under each other."""
    return (shape[0] * shape[1], *shape[2:]) if len(shape) == 3 else shape
