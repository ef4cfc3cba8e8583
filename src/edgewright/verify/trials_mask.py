"""Attention under another mask, computed in NumPy: the reference op has no attribute for a wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgewright.verify.graphs import Array
from edgewright.verify.semantic import Op, Piece
from edgewright.verify.trials import Trial

#: What a query at slot r may see of slot s, by the name of the mistake; `n` is the number of filled slots.
MASKS = {
    "later tokens are seen": lambda s, r, n: s < n + 0 * r,
    "a token does not see itself": lambda s, r, n: (s < r) | ((r == 0) & (s == 0)),
    "slots that hold nothing are seen": lambda s, r, n: s >= 0 * r,
    "one token too many is seen": lambda s, r, n: s <= r + 1,
    "the first token is hidden": lambda s, r, n: (s <= r) & ((s > 0) | (r == 0)),
}


@dataclass(frozen=True)
class Masked:
    """The outputs of a piece whose last op is attention, under one of MASKS."""

    piece: Piece
    op: Op
    mask: str

    def run(self) -> dict[str, Array]:
        """Compute the outputs; raises ValueError for attention of another kind."""
        op, a = self.op, self.op.attributes
        codes = len(op.inputs) > 8
        if any(op.inputs[6:8]) or not (codes or all(op.inputs[:6])):
            raise ValueError("attention with more inputs")
        results = self.piece.run()
        wanted = tuple(str(n) for n in op.inputs[:3] if n)
        made = {name for o in self.piece.ops for name in o.outputs}
        before = replace(self.piece, ops=tuple(o for o in self.piece.ops if o.name != op.name))
        inner = tuple(n for n in wanted if n in made and n not in self.piece.values)
        values = {**self.piece.values, **(replace(before, outputs=inner).run() if inner else {})}
        caches = _decoded(op, values) if codes else [results[name] for name in op.outputs[1:]]
        y = _attention(values[wanted[0]], caches[0], caches[1], values, op, MASKS[self.mask])
        return {**results, op.outputs[0]: y.astype(np.float32).reshape(results[op.outputs[0]].shape)} if a else results


def _decoded(op: Op, values: Mapping[str, Array]) -> list[Array]:
    """Return keys and values of caches of codes, as the op reads them; ValueError where they are not known."""
    caches, scales = ([values.get(str(name)) for name in op.inputs[a : a + 2]] for a in (3, 8))
    if any(array is None for array in (*caches, *scales)):
        raise ValueError("caches that are not known")
    return [
        np.asarray(c, dtype=np.float64) * np.asarray(s).reshape(1, -1, 1, 1)
        for c, s in zip(caches, scales, strict=True)
    ]


def _attention(q: Array, keys: Array, values: Array, given: Mapping[str, Array], op: Op, mask: Any) -> Array:
    """Return y `[batch, seq, heads, value_dim]` for present keys and values `[batch, kv_heads, slots, width]`."""
    a = op.attributes
    batch, seq = q.shape[:2]
    past = given[str(op.inputs[5])]
    rows = past[:, None, None, None, None] + np.arange(seq)[:, None]
    slots = np.arange(keys.shape[2])
    heads, kv_heads = int(a["heads"]), int(a["kv_heads"])
    qh = q.reshape(batch, seq, kv_heads, heads // kv_heads, -1).astype(np.float64)
    scores = np.einsum("bqkgd,bksd->bkgqs", qh, keys.astype(np.float64)) * a["scale"]
    if cap := a.get("softcap"):
        scores = cap * np.tanh(scores / cap)
    seen = mask(slots, rows, (past + seq)[:, None, None, None, None])
    if window := a.get("window"):
        seen = seen & (slots > rows - window)
    scores = np.where(seen, scores, -1e30)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Array = np.einsum("bkgqs,bksd->bqkgd", weights, values.astype(np.float64))
    return mixed


def mask_trials(op: Op, piece: Piece) -> Iterator[Trial]:
    """Yield an `Attention` op under each of MASKS."""
    if op.type == "Attention":
        for words in MASKS:
            yield Trial("mask", words, Masked(piece, op, words))
