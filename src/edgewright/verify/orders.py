"""The cause of elements that stand in another order: heads, the pairs of a rope, or rows of a weight."""

from __future__ import annotations

from edgewright.verify import clues
from edgewright.verify.cause import Cause
from edgewright.verify.semantic import Op, Semantic


def order_cause(order: list[int], op: Op, semantic: Semantic, left: float | None = None) -> Cause:
    """Return the cause of a linear whose output elements stand in another order."""
    for attention in semantic.ops:
        if attention.type != "Attention" or attention.module != op.module.rsplit(".", 1)[0]:
            continue
        head = int(attention.attributes["head_dim"])
        rotary = [int(o.attributes["rotary_dim"]) for o in semantic.ops if o.type == "Rope"] or [head]
        if len(order) % head == 0:
            if any(clues.is_pairing(order, head, r) for r in rotary):
                return Cause("rope", "the elements of each head are in the order of the other rope pairing", left)
            if clues.moves_blocks(order, head):
                heads = ", ".join(str(i // head) for i in order[::head])
                return Cause("head layout", f"the heads stand in the order {heads}", left)
    return Cause("weight bytes", "the rows of the weight are in another order", left)
