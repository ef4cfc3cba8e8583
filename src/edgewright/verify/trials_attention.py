"""Changes of attention and of its rope: positions, pairs, tables, heads, cache and mask."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from edgewright.verify.graphs import Array
from edgewright.verify.semantic import Op, Piece, Semantic
from edgewright.verify.trials import Trial

_THETAS = (1e4, 1e6, 5e5, 1e5, 5e4, 8e6)


def rope_trials(op: Op, piece: Piece, semantic: Semantic) -> Iterator[Trial]:
    """Yield changes of one `Rope` op, and of the tables for all of them."""
    if op.type != "Rope":
        return
    x, _, cos, sin = (str(name) for name in op.inputs[:4])
    passed = Op(op.name, "", "Identity", {}, (x,), op.outputs)
    yield Trial("rope", f"no rotation at {op.name.rsplit('/', 1)[1]}", piece.swapped(op, passed))
    c, s = piece.values[cos], piece.values[sin]
    for shift in (1, -1):
        moved = piece.changed(cos, np.roll(c, -shift, axis=0)).changed(sin, np.roll(s, -shift, axis=0))
        yield Trial("rope", f"positions {shift:+d}", moved)
        for name, array in ((cos, c), (sin, s)):
            words = f"the rows of {name} {shift:+d}"
            yield Trial("rope", words, piece.changed(name, np.roll(array, -shift, axis=0)))
    yield Trial("rope", "the sine negated", piece.changed(sin, -s))
    yield Trial("rope", "cosine and sine exchanged", piece.changed(sin, c).changed(cos, s))
    size = float(np.sqrt(np.square(c[:1]) + np.square(s[:1])).max())
    if abs(size - 1) > 1e-4:
        words = f"tables without the attention factor {size:.6g}"
        yield Trial("rope", words, piece.changed(cos, c / np.float32(size)).changed(sin, s / np.float32(size)))
    tables = [n for n in sorted(semantic.initializers) if n.endswith(".cos") and n != cos]
    for other in tables:
        if semantic.shape(other)[1:] == c.shape[1:]:
            twin = other.removesuffix("cos") + "sin"
            changed = piece.changed(cos, semantic.initializer(other)).changed(sin, semantic.initializer(twin))
            yield Trial("rope", f"the tables {other.removesuffix('.cos')}", changed)
    half = c.shape[1]
    for theta in _THETAS:
        freqs = theta ** (-np.arange(half) / half)
        turns = np.arange(len(c))[:, None] * freqs
        plain = np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)
        yield Trial("rope", f"plain tables of base {theta:g}", piece.changed(cos, plain[0]).changed(sin, plain[1]))


def both_ropes(piece: Piece) -> Iterator[Trial]:
    """Yield changes of all `Rope` ops of a piece at once."""
    ropes = [op for op in piece.ops if op.type == "Rope"]
    if len(ropes) < 2:
        return
    none, flipped = piece, piece
    for op in ropes:
        none = none.swapped(op, Op(op.name, "", "Identity", {}, op.inputs[:1], op.outputs))
        turned = {**op.attributes, "interleaved": 1 - int(op.attributes["interleaved"])}
        flipped = flipped.swapped(op, replace(op, attributes=turned))
    yield Trial("rope", "no rotation of queries and keys", none)
    yield Trial("rope", "the other pairing", flipped)


def attention_trials(op: Op, piece: Piece) -> Iterator[Trial]:
    """Yield changes of what an `Attention` op reads: lengths, caches, heads."""
    if op.type != "Attention":
        return
    names = [str(n) if n else None for n in op.inputs]
    q, k, v, past_key, past_value, lengths = names[:6]
    assert q is not None
    assert past_key is not None
    assert past_value is not None
    assert lengths is not None
    given = piece.values[lengths]
    for shift in (-1, 1):
        moved = np.maximum(given + shift, 0)
        alone = replace(op, inputs=(*op.inputs[:5], f"{lengths}/moved", *op.inputs[6:]))
        words = f"cache slots {shift:+d}"
        yield Trial("cache", words, piece.swapped(op, alone).changed(f"{lengths}/moved", moved))
        yield Trial("cache", f"{words}, positions with them", piece.changed(lengths, moved))
    if given.any():
        zero = replace(op, inputs=(*op.inputs[:5], f"{lengths}/zero", *op.inputs[6:]))
        yield Trial("cache", "the past is not seen", piece.swapped(op, zero).changed(f"{lengths}/zero", given * 0))
        for name, what in ((past_key, "keys"), (past_value, "values")):
            if name in piece.values:
                array = piece.values[name]
                yield Trial("cache", f"no past {what}", piece.changed(name, array * 0))
                for shift in (1, -1):
                    rolled = np.roll(array, shift, axis=2)
                    yield Trial("cache", f"past {what} {shift:+d} slot", piece.changed(name, rolled))
        if past_key in piece.values and past_value in piece.values:
            a, b = piece.values[past_key], piece.values[past_value]
            if a.shape == b.shape:
                yield Trial(
                    "cache", "past keys and values exchanged", piece.changed(past_key, b).changed(past_value, a)
                )
    if k and v and q in piece.values:
        yield from _heads(op, piece, q, k, v)


def _heads(op: Op, piece: Piece, q: str, k: str, v: str) -> Iterator[Trial]:
    heads, kv_heads = int(op.attributes["heads"]), int(op.attributes["kv_heads"])
    roots = {name: source(piece, name) for name in (q, k, v)}
    if not all(root in piece.values for root in roots.values()):
        return
    rq, rk, rv = roots[q], roots[k], roots[v]
    if piece.values[rk].shape == piece.values[rv].shape:
        a, b = piece.values[rk], piece.values[rv]
        yield Trial("head layout", "keys and values exchanged", piece.changed(rk, b).changed(rv, a))
    share = heads // kv_heads
    if 1 < kv_heads < heads:
        # Heads that take the key/value heads in turn instead of in runs, and the other way round.
        turn = np.arange(heads).reshape(kv_heads, share).T.ravel()
        for words, one in (("in turn", turn), ("in runs", np.argsort(turn))):
            yield Trial("head layout", f"query heads take key/value heads {words}", _reordered(op, piece, rq, one))
    for name, count, what in ((rq, heads, "query"), (rk, kv_heads, "key"), (rv, kv_heads, "value")):
        for order in orders(count):
            words = f"{what} heads in the order {', '.join(map(str, order))}"
            yield Trial("head layout", words, piece.changed(name, heads_in(piece.values[name], order)))
    for order in orders(kv_heads):
        both = piece.changed(rk, heads_in(piece.values[rk], order)).changed(rv, heads_in(piece.values[rv], order))
        yield Trial("head layout", f"key/value heads in the order {', '.join(map(str, order))}", both)


def source(piece: Piece, name: str) -> str:
    """Return the value outside the piece that a query, key or value comes from."""
    made = {op.outputs[0]: op for op in piece.ops}
    while name in made and name not in piece.values and made[name].inputs[0]:
        name = str(made[name].inputs[0])
    return name


def _reordered(op: Op, piece: Piece, q: str, order: Array) -> Piece:
    """Return the piece with query heads in another order, and its result put back into the old one."""
    changed = piece.changed(q, heads_in(piece.values[q], list(order)))
    width = int(op.attributes.get("value_dim", op.attributes["head_dim"]))
    back = np.concatenate([np.arange(i * width, (i + 1) * width) for i in np.argsort(order)])
    inner = f"{op.outputs[0]}/ordered"
    first = replace(op, outputs=(inner, *op.outputs[1:]))
    gather = Op(f"{op.name}/back", "", "Gather", {"axis": 2}, (inner, "order/back"), op.outputs[:1])
    ops = tuple(o for old in changed.ops for o in ([first, gather] if old.name == op.name else [old]))
    return replace(changed, ops=ops).changed("order/back", back.astype(np.int64))


def heads_in(array: Array, order: list[int]) -> Array:
    """Return `[..., heads * width]` with its heads in another order."""
    parts = np.split(array, len(order), axis=-1)
    return np.concatenate([parts[i] for i in order], axis=-1)


def orders(count: int) -> Iterator[list[int]]:
    """Yield orders that a mistake makes: two heads exchanged, all moved by one, reversed, halves exchanged."""
    if count < 2:
        return
    plain = list(range(count))
    seen = [plain]
    pairs = itertools.combinations(plain, 2) if count <= 6 else itertools.pairwise(plain)
    orders = [plain[1:] + plain[:1], plain[-1:] + plain[:-1], plain[::-1], plain[count // 2 :] + plain[: count // 2]]
    for a, b in pairs:
        order = plain.copy()
        order[a], order[b] = order[b], order[a]
        orders.append(order)
    if count % 2 == 0:
        orders.append([i ^ 1 for i in plain])
    for order in orders:
        if order not in seen:
            seen.append(order)
            yield order
