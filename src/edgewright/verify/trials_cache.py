"""Changes of a quantized cache: its scales, its slots, and the heads that are written and read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from edgewright.verify.cause import Cause
from edgewright.verify.codes import is_codes
from edgewright.verify.graphs import FP8, Array
from edgewright.verify.locate import Divergence
from edgewright.verify.replay import Call
from edgewright.verify.semantic import Op, Piece, Semantic
from edgewright.verify.trials import Trial
from edgewright.verify.trials_attention import heads_in, orders, source

#: Where the ops have the scales of keys and of values.
_SCALES = {"CacheWrite": (5, 6), "Attention": (8, 9)}
#: Most layers whose scales are tried.
_LAYERS = 8
#: Factors this near to each other are one, and the share of codes that a factor must explain.
_NEAR, _MOST = 0.01, 0.99


def cache_trials(op: Op, piece: Piece, semantic: Semantic) -> Iterator[Trial]:
    """Yield changes of a `CacheWrite`, and of an `Attention` that reads codes."""
    scales = scales_of(op)
    if scales is None:
        return
    if op.type == "CacheWrite":
        yield from _written(op, piece)
    else:
        name = source(piece, str(op.inputs[0]))
        if name in piece.values:
            for order in orders(int(op.attributes["heads"])):
                words = f"query heads in the order {', '.join(map(str, order))}"
                yield Trial("head layout", words, piece.changed(name, heads_in(piece.values[name], order)))
    yield from _scales(op, piece, semantic, scales)


def scales_of(op: Op) -> tuple[str, str] | None:
    """Return the scales of keys and values that an op has, or None."""
    places = _SCALES.get(op.type, ())
    names = [op.inputs[i] for i in places if i < len(op.inputs)]
    return (str(names[0]), str(names[1])) if len(names) == 2 and all(names) else None


def _scales(op: Op, piece: Piece, semantic: Semantic, scales: tuple[str, str]) -> Iterator[Trial]:
    key, value = (piece.values[name] for name in scales)
    if key.shape == value.shape:
        changed = piece.changed(scales[0], value).changed(scales[1], key)
        yield Trial("scale", "the scales of keys and values exchanged", changed)
    for name, array in zip(scales, (key, value), strict=True):
        kind = name.rsplit(".", 1)[-1]
        others = [o for o in sorted(semantic.initializers) if o.endswith(f".{kind}") and o != name]
        for other in [o for o in others if semantic.shape(o) == array.shape][:_LAYERS]:
            yield Trial("scale", f"{other} instead of {name}", piece.changed(name, semantic.initializer(other)))
        for order in orders(len(array)):
            words = f"{name} of the heads {', '.join(map(str, order))}"
            yield Trial("scale", words, piece.changed(name, np.ascontiguousarray(array[order])))


def _written(op: Op, piece: Piece) -> Iterator[Trial]:
    """Yield other slots, keys and values exchanged, and other heads."""
    k, v, past_key, past_value, lengths = (str(name) for name in op.inputs[:5])
    given = piece.values[lengths]
    for words, moved in (("-1", np.maximum(given - 1, 0)), ("+1", given + 1), ("from the start", given * 0)):
        alone = replace(op, inputs=(*op.inputs[:4], f"{lengths}/moved", *op.inputs[5:]))
        yield Trial("cache", f"cache slots {words}", piece.swapped(op, alone).changed(f"{lengths}/moved", moved))
    if piece.values[past_key].shape == piece.values[past_value].shape:
        a, b = piece.values[past_key], piece.values[past_value]
        exchanged = piece.changed(past_key, b).changed(past_value, a)
        yield Trial("cache", "past keys and values exchanged", exchanged)
    roots = [source(piece, name) for name in (k, v)]
    if not all(root in piece.values for root in roots):
        return
    a, b = (piece.values[root] for root in roots)
    if a.shape == b.shape:
        yield Trial("head layout", "keys and values exchanged", piece.changed(roots[0], b).changed(roots[1], a))
    for order in orders(int(op.attributes["kv_heads"])):
        spelled = ", ".join(map(str, order))
        one, other = heads_in(a, order), heads_in(b, order)
        yield Trial("head layout", f"key heads in the order {spelled}", piece.changed(roots[0], one))
        yield Trial("head layout", f"value heads in the order {spelled}", piece.changed(roots[1], other))
        both = piece.changed(roots[0], one).changed(roots[1], other)
        yield Trial("head layout", f"key/value heads in the order {spelled}", both)


def scale_clue(found: Divergence) -> Cause | None:
    """Return the cause of codes that are those of scales some times too large or too small, or None."""
    words = []
    for check in found.failed:
        given, wanted = found.candidate(check.value), found.again[check.value]
        if found.op.type != "CacheWrite" or given.shape != wanted.shape or not is_codes(given):
            return None
        factors = _factors(given, wanted, found.call)
        if factors is None:
            return None
        what = "keys" if check.value == found.op.outputs[0] else "values"
        if np.ptp(factors) < _NEAR * factors.max():
            words.append(f"the scale of the {what} is {factors.mean():.3g} times what it should be")
        else:
            times = ", ".join(f"{factor:.3g}" for factor in factors)
            words.append(f"the scales of the heads of the {what} are {times} times what they should be")
    return Cause("scale", " and ".join(words))


def _factors(given: Array, wanted: Array, call: Call) -> Array | None:
    """Return by how much the scale of each head is too large, from the codes that a call wrote; None when that does
    not explain them."""
    after = np.arange(given.shape[2]) - call.starts[:, None]
    fresh = np.broadcast_to(((after >= 0) & (after < call.tokens))[:, None, :, None], given.shape)
    g, w = given.astype(np.float64), wanted.astype(np.float64)
    largest = max(np.abs(g[fresh]).max(initial=0), np.abs(w[fresh]).max(initial=0))
    counts = fresh & np.isfinite(g) & np.isfinite(w)
    counts &= (np.abs(g) < largest) & (np.abs(w) < largest)  # what is cut off says nothing
    # Of norms, not of a regression: both sides carry the same noise of rounding.
    given_norm, norm = (np.square(np.where(counts, other, 0)).sum(axis=(0, 2, 3)) for other in (g, w))
    if not ((given_norm > 0) & (norm > 0)).all():
        return None
    ratio = np.sqrt(given_norm / norm)
    a = ratio.reshape(1, -1, 1, 1)
    allowed = _half_step(g, given.dtype) + a * _half_step(w, given.dtype) + _NEAR * np.abs(g)
    explained = (np.abs(g - a * w) <= allowed)[counts].mean()
    factors: Array = 1 / ratio
    return factors if explained > _MOST and (np.abs(factors - 1) > _NEAR / 5).any() else None


def _half_step(codes: Array, dtype: np.dtype) -> Array | float:
    """Return how far a value may lie from its code."""
    return np.maximum(np.abs(codes) * 2.0**-4, 2.0**-10) if dtype == FP8 else 0.5
