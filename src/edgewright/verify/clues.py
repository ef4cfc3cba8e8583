"""What two arrays that should be equal have to do with each other: an offset, a factor, an order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgewright.verify.graphs import Array

#: Two arrays count as equal when their difference is at most this share of the larger one's root mean square.
SAME = 2e-3


def rms(values: Array) -> float:
    """Return the root mean square; 0 for nothing."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) if values.size else 0.0


def same(a: Array, b: Array, bound: float = SAME) -> bool:
    """Tell whether arrays of one shape are equal up to `bound`."""
    return a.shape == b.shape and rms(a - b) <= bound * max(rms(a), rms(b), 1e-30)


def row_offset(given: Array, wanted: Array, bound: float = SAME) -> Array | None:
    """Return the vector that was added to every row of `wanted` `[rows, n]`, or None when it was no constant."""
    difference = given - wanted
    offset: Array = difference.mean(axis=0)
    if len(given) < 3 or rms(difference - offset) > 5 * bound * max(rms(difference), rms(wanted) * bound):
        return None
    return offset


def factor(given: Array, wanted: Array, bound: float = SAME) -> float | None:
    """Return a where given = a * wanted, or None; a factor of 1 is None, too."""
    g, w = given.ravel().astype(np.float64), wanted.ravel().astype(np.float64)
    norm = float(w @ w)
    a = float(g @ w) / norm if norm > 0 else 0.0
    if not np.isfinite(a) or abs(a - 1) < bound or rms(g - a * w) > bound * max(rms(g), 1e-30):
        return None
    return a


def column_order(given: Array, wanted: Array, bound: float = SAME) -> list[int] | None:
    """Return p where given[:, j] = wanted[:, p[j]] for arrays `[rows, n]`, or None; the identity is None, too."""
    if given.shape != wanted.shape or len(given) < 3 or given.shape[1] < 2 or given.shape[1] > 8192:
        return None
    g, w = given.astype(np.float64), wanted.astype(np.float64)
    probe = np.random.default_rng(0).normal(size=(len(g), min(24, len(g))))
    gp, wp = (g.T @ probe).T, (w.T @ probe).T
    distance = np.square(gp).sum(axis=0)[:, None] + np.square(wp).sum(axis=0)[None] - 2 * gp.T @ wp
    order = [int(i) for i in distance.argmin(axis=1)]
    if order == list(range(len(order))) or len(set(order)) != len(order) or not same(g, w[:, order], bound):
        return None
    return order


def is_pairing(order: Sequence[int], head_dim: int, rotary: int) -> bool:
    """Tell whether an order exchanges the two ways rope pairs elements: halves, and neighbours."""
    half = rotary // 2
    within = np.concatenate([np.arange(rotary).reshape(2, half).T.ravel(), np.arange(rotary, head_dim)])
    inverse = np.argsort(within)
    heads = np.arange(0, len(order), head_dim)[:, None]
    return any(list((heads + one).ravel()) == list(order) for one in (within, inverse))


def moves_blocks(order: Sequence[int], block: int) -> bool:
    """Tell whether an order moves whole blocks of `block` elements and leaves each in itself as it is."""
    if block < 1 or len(order) % block:
        return False
    rows = np.asarray(order).reshape(-1, block)
    return bool((rows - rows[:, :1] == np.arange(block)).all() and (rows[:, 0] % block == 0).all())
