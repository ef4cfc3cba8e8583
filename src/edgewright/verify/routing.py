"""The part of a graph that chooses experts, and what can go wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgewright.verify.semantic import Op, Piece, Semantic
from edgewright.verify.trials import Trial
from edgewright.verify.trials_attention import orders

_BOUNDARY = ("Linear", "Norm", "Attention")


def routing_ops(semantic: Semantic) -> set[str]:
    """Return the names of the ops between a router's logits and the experts' `routing` input."""
    found: set[str] = set()
    waiting = [op.inputs[1] for op in semantic.ops if op.type == "Experts"]
    while waiting:
        op = semantic.made.get(waiting.pop() or "")
        if op is None or op.name in found or any(kind in op.type for kind in _BOUNDARY):
            continue
        found.add(op.name)
        waiting += list(op.inputs)
    return found


def is_routing(op: Op, semantic: Semantic) -> bool:
    """Tell whether an op chooses or weighs experts."""
    return op.name in routing_ops(semantic)


def routing_trials(op: Op, piece: Piece) -> Iterator[Trial]:
    """Yield an `Experts` op with its experts in another order, and with even weights."""
    if op.type != "Experts" or op.inputs[1] not in piece.values:
        return
    name = str(op.inputs[1])
    routing = piece.values[name]
    for order in orders(int(op.attributes["experts"])):
        words = f"experts in the order {', '.join(map(str, order))}"
        yield Trial("routing", words, piece.changed(name, routing[..., order]))
    chosen = (routing > 0).astype(routing.dtype)
    count = chosen.sum(axis=-1, keepdims=True).clip(1)
    total = routing.sum(axis=-1, keepdims=True)
    yield Trial("routing", "every chosen expert with the weight one", piece.changed(name, chosen))
    yield Trial("routing", "the chosen experts with equal shares", piece.changed(name, chosen / count))
    yield Trial("routing", "weights that add up to one", piece.changed(name, routing / total.clip(1e-20)))
    gate, up = op.inputs[2], op.inputs[3]
    if gate and up:
        inputs = (*op.inputs[:2], up, gate, *op.inputs[4:])
        yield Trial("head layout", "gate and up exchanged", piece.swapped(op, replace(op, inputs=inputs)))
