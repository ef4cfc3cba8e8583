"""Faults of attention: window, scale, soft cap, rope, heads, cache, mask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import mutate
import numpy as np
from fault import Fault
from inspect_case import Case

from edgewright.verify.locate import layer_of
from edgewright.verify.semantic import Op


def layer(op: Op) -> int:
    """Return the layer of an op that is in one."""
    found = layer_of(op.module)
    assert found is not None
    return found


def windows(case: Case) -> Iterator[Fault]:
    """Wrong windows: one more, one less, none, one where there is none."""
    attentions = case.ops("Attention")
    with_one = [op for op in attentions if op.attributes.get("window")]
    without = [op for op in attentions if not op.attributes.get("window")]
    if with_one:
        last, first = with_one[-1], with_one[0]
        size = int(last.attributes["window"])
        for recipe, form, op, new in (
            ("float32", "bundle", last, size + 1),
            ("int4", "bundle", first, size - 1),
            ("float32", "portable", last, None),
            ("int8", "bundle", last, 2 * size),
        ):
            title = f"window {new or 'none'} instead of {size}"
            yield Fault(
                case.name, recipe, form, title, "window", layer(op), stage=mutate.attribute(op.name, window=new)
            )
    if without:
        op = without[-1]
        change = mutate.attribute(op.name, window=12)
        yield Fault(case.name, "int4", "bundle", "window 12 where there is none", "window", layer(op), stage=change)


def scales(case: Case) -> Iterator[Fault]:
    """A wrong factor of the scores."""
    ops = case.ops("Attention")
    if not ops:
        return
    op = ops[len(ops) // 2]
    old = float(op.attributes["scale"])
    wrong = old * old if abs(old - 1) > 0.05 else float(op.attributes["head_dim"]) ** -0.5
    for recipe, form, new in (("int4", "bundle", wrong), ("float32", "portable", old * 1.07)):
        title = f"scores times {new:.4g} instead of {old:.4g}"
        yield Fault(case.name, recipe, form, title, "scale", layer(op), stage=mutate.attribute(op.name, scale=new))


def softcaps(case: Case) -> Iterator[Fault]:
    """A soft cap that is missing, or another one."""
    capped = [op for op in case.ops("Attention") if op.attributes.get("softcap")]
    if capped:
        op = capped[-1]
        old = float(op.attributes["softcap"])
        for recipe, form, new in (("int4", "bundle", None), ("float32", "portable", old * 1.5)):
            title = f"soft cap {new or 'none'} instead of {old:g}"
            change = mutate.attribute(op.name, softcap=new)
            yield Fault(case.name, recipe, form, title, "soft cap", layer(op), stage=change)
    for op in case.semantic.ops:
        if op.type == "Softcap":
            missing = mutate.attribute(op.name, cap=1e9)
            yield Fault(case.name, "int8", "bundle", "no soft cap", "soft cap", None, op.module, stage=missing)
            change = mutate.attribute(op.name, cap=float(op.attributes["cap"]) * 2)
            yield Fault(case.name, "float32", "portable", "twice the cap", "soft cap", None, op.module, stage=change)


def ropes(case: Case) -> Iterator[Fault]:
    """Pairs, positions and tables of rope, on one layer."""
    ropes = case.ops("Rope")
    if not ropes:
        return
    n = layer(ropes[-1])
    pair = case.of_layer(n, "Rope")
    flip = [mutate.attribute(op.name, interleaved=1 - int(op.attributes["interleaved"])) for op in pair]
    yield Fault(case.name, "int4", "bundle", "the other pairing", "rope", n, stage=mutate.together(*flip))
    missing = mutate.together(*(mutate.passed(op.name) for op in pair))
    yield Fault(case.name, "float32", "bundle", "no rotation", "rope", n, stage=missing)
    one = mutate.attribute(pair[-1].name, interleaved=1 - int(pair[-1].attributes["interleaved"]))
    yield Fault(case.name, "float32", "portable", "the other pairing of keys only", "rope", n, stage=one)
    late = mutate.together(*(mutate.shifted(op.name, 1, 1) for op in pair[:1]))
    yield Fault(case.name, "float32", "portable", "positions of queries + 1", "rope", n, stage=late)
    tables = sorted({str(op.inputs[2]) for op in ropes})
    own = str(pair[0].inputs[2])
    for other in tables:
        if other != own and case.semantic.shape(other) == case.semantic.shape(own):
            sin = other.removesuffix("cos") + "sin"
            moves = [m for op in pair for m in (mutate.rewire(op.name, 2, other), mutate.rewire(op.name, 3, sin))]
            yield Fault(case.name, "int4", "bundle", f"tables {other}", "rope", n, stage=mutate.together(*moves))


def rope_tables(case: Case) -> Iterator[Fault]:
    """Tables of another base, without their attention factor, or one position late, in the weight file."""
    ropes = case.ops("Rope")
    if not ropes:
        return
    cos = str(ropes[0].inputs[2])
    sin = cos.removesuffix("cos") + "sin"
    n = layer(ropes[0])
    c, s = case.semantic.initializer(cos), case.semantic.initializer(sin)
    size = float(np.sqrt(np.square(c[:1]) + np.square(s[:1])).max())
    if abs(size - 1) > 1e-3:

        def plain(folder):  # type: ignore[no-untyped-def]
            mutate.tensor([cos], lambda a: a / np.float32(size))(folder)
            mutate.tensor([sin], lambda a: a / np.float32(size))(folder)

        yield Fault(case.name, "float32", "bundle", "no attention factor", "rope", n, files=plain)

    def based(folder):  # type: ignore[no-untyped-def]
        freqs = 3e4 ** (-np.arange(c.shape[1]) / c.shape[1])
        turns = np.arange(len(c))[:, None] * freqs
        mutate.tensor([cos], lambda a: np.cos(turns).astype(np.float32))(folder)
        mutate.tensor([sin], lambda a: np.sin(turns).astype(np.float32))(folder)

    yield Fault(case.name, "float32", "portable", "tables of another base", "rope", n, files=based)

    def late(folder):  # type: ignore[no-untyped-def]
        mutate.tensor([cos], lambda a: np.roll(a, -1, axis=0))(folder)
        mutate.tensor([sin], lambda a: np.roll(a, -1, axis=0))(folder)

    yield Fault(case.name, "int4", "bundle", "tables one position early", "rope", n, files=late)


def heads(case: Case) -> Iterator[Fault]:
    """Heads in another order, in the weights or in the graph."""
    for op in case.ops("Attention")[-1:]:
        n, count, kv = layer(op), int(op.attributes["heads"]), int(op.attributes["kv_heads"])
        linears = {o.module.rsplit(".", 1)[-1]: o for o in case.of_layer(n, "Linear")}
        q, o, v = (linears.get(name) for name in ("q_proj", "o_proj", "v_proj"))
        if q is not None and count > 1:
            change = mutate.weight(str(q.inputs[1]), partial(_swapped, heads=count))
            yield Fault(case.name, "float32", "bundle", "query heads 0 and 1 exchanged", "head layout", n, stage=change)
        if v is not None and kv > 1:
            change = mutate.weight(str(v.inputs[1]), partial(_swapped, heads=kv))
            yield Fault(case.name, "int4", "bundle", "value heads 0 and 1 exchanged", "head layout", n, stage=change)
        if o is not None and count > 1:
            change = mutate.weight(str(o.inputs[1]), partial(_swapped_columns, heads=count))
            yield Fault(case.name, "int8", "bundle", "output heads 0 and 1 exchanged", "head layout", n, stage=change)
        if op.inputs[1] and op.inputs[2] and kv > 0 and op.attributes.get("value_dim") == op.attributes["head_dim"]:
            change = mutate.together(
                mutate.rewire(op.name, 1, str(op.inputs[2])), mutate.rewire(op.name, 2, str(op.inputs[1]))
            )
            yield Fault(case.name, "float32", "portable", "keys and values exchanged", "head layout", n, stage=change)


def _swapped(array: np.ndarray, heads: int) -> np.ndarray:
    parts = array.reshape(heads, -1, *array.shape[1:]).copy()
    parts[[0, 1]] = parts[[1, 0]]
    return parts.reshape(array.shape)


def _swapped_columns(array: np.ndarray, heads: int) -> np.ndarray:
    return _swapped(array.T, heads).T


def caches(case: Case) -> Iterator[Fault]:
    """Slots one off, a cache that is never written, the cache of another layer."""
    ops = [op for op in case.ops("Attention") if op.inputs[1]]
    if not ops:
        return
    op = ops[-1]
    n = layer(op)
    for by in (-1, 1):
        change = mutate.shifted(op.name, 5, by)
        yield Fault(case.name, "float32", "portable", f"cache slots {by:+d}", "cache", n, stage=change)
    change = mutate.stale(op.name, 1, 3)
    yield Fault(case.name, "float32", "portable", "keys are never stored", "cache", n, stage=change)
    first = ops[0]
    if first is not op and all(first.attributes[k] == op.attributes[k] for k in ("kv_heads", "head_dim")):
        change = mutate.rewire(op.name, 4, str(first.inputs[4]))
        title = f"past values of layer {layer(first)}"
        yield Fault(case.name, "int4", "portable", title, "cache", n, stage=change)


def masks(case: Case) -> Iterator[Fault]:
    """A mask that hides a token from itself, or shows it what comes later."""
    ops = case.ops("Attention")
    if not ops or any(op.attributes.get("window") for op in ops[:1]) or not ops[0].inputs[1]:
        return
    n = layer(ops[0])
    strict = mutate.in_body("Attention", "LessOrEqual", "Less")
    yield Fault(case.name, "float32", "portable", "a token does not see itself", "mask", n, lowered=strict)
    later = mutate.in_body("Attention", "LessOrEqual", "GreaterOrEqual")
    yield Fault(case.name, "int4", "portable", "tokens see the later ones", "mask", n, lowered=later)
