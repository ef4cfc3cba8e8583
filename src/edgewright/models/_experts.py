"""How stored experts become the stacked matrices of `nn.moe.Experts`: numbered ones, or already stacked ones."""

from __future__ import annotations

from collections.abc import Sequence

from edgewright.models._config import because
from edgewright.models._rules import Rename, Reshape, Rule, Stack, grouped_spans, split

#: Keys of routers that count in training only.
ROUTER_TRAINING = because("training only", "router_aux_loss_coef router_jitter_noise aux_loss_alpha seq_aux ep_size")


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


def expert_problems(experts: int, top_k: int, *, groups: int = 1, top_groups: int = 1) -> list[str]:
    """Return why `top_k` experts can't be chosen of `experts`, in the best of groups where there are several."""
    if groups == 1:
        return [] if top_k <= experts and top_groups == 1 else [f"{top_k} of {experts} experts can't be chosen"]
    size, rest = divmod(experts, groups)
    fine = not rest and size >= 2 and top_groups <= groups and top_k <= top_groups * size
    return [] if fine else [f"{top_k} of {experts} experts can't be chosen in {top_groups} of {groups} groups"]


def one_below_another(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Put the matrices of all experts under each other."""
    return (shape[0] * shape[1], *shape[2:]) if len(shape) == 3 else shape
