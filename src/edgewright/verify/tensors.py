"""The cause of a shipped tensor that is not what checkpoint and recipe say, from its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgewright.verify import clues
from edgewright.verify.cause import Cause
from edgewright.verify.graphs import Array
from edgewright.verify.orders import order_cause
from edgewright.verify.routing import is_routing
from edgewright.verify.semantic import Op, Semantic
from edgewright.verify.shipped import TABLE, FreshTensors, Leaf, ShippedTensors, Tensors, decode


@dataclass(frozen=True)
class TensorPair:
    """A weight as it is shipped and as it should be, both as floats of one shape; `fault` says how they differ."""

    name: str
    fault: str
    shipped: Array = field(repr=False)
    right: Array = field(repr=False)


class WrongTensors:
    """Gives the values of the tensors that `faults` (of the level `weights`) begin with the names of."""

    def __init__(self, faults: Sequence[str], found: Mapping[str, Leaf], shipped: ShippedTensors) -> None:
        self._faults = dict(fault.split(" ", 1) for fault in faults)
        self._found, self._shipped = found, shipped

    def __call__(self, name: str) -> TensorPair | None:
        """Return the pair of an initializer of the reference, or None when nothing is known to be wrong with it."""
        name = name.removesuffix(".float")
        leaf, beside = self._found.get(name), self._found.get(TABLE)
        first = beside.producer.specs[0].name if beside is not None else ""
        if beside is not None and TABLE in self._faults and (name == TABLE or (name == first not in self._faults)):
            return self._pair(beside, first, f"in {TABLE} {self._faults[TABLE]}")
        if name not in self._faults or leaf is None:
            return None
        return self._pair(leaf, name, self._faults[name])

    def _pair(self, leaf: Leaf, name: str, fault: str) -> TensorPair | None:
        if not self._shipped.holds(leaf):
            return None
        shipped, right = (_floats(leaf, tensors) for tensors in (self._shipped, FreshTensors()))
        return TensorPair(name, fault, shipped, right)

    def first(self) -> TensorPair | None:
        """Return the first wrong tensor that is in the bundle."""
        return next((pair for name in self._faults if (pair := self(name)) is not None), None)


def _floats(leaf: Leaf, tensors: Tensors) -> Array:
    """Return a weight as float32 of its own shape."""
    weight, fmt = leaf.producer.weight, getattr(leaf.producer, "format", None)  # type: ignore[attr-defined]
    parts = []
    for start, stop in weight.blocks():
        arrays = tensors.leaf_rows(leaf, start, stop)
        parts.append(decode(leaf, arrays, fmt, weight.shape[1]) if fmt else arrays[0].astype(np.float32))
    return np.concatenate(parts).reshape(weight.shape)


def tensor_cause(pair: TensorPair, op: Op, semantic: Semantic) -> Cause:
    """Return the cause class of a wrong tensor that `op` reads, and what happened to it in words."""
    words = f"{pair.name} {pair.fault}"
    if pair.name.endswith((".cos", ".sin")):
        return Cause("rope", _said(words, _table(pair)), 0.0)
    if "Norm" in op.type:
        return Cause("norm", _said(words, _shift(pair)), 0.0)
    if is_routing(op, semantic):
        return Cause("routing", words, 0.0)
    if pair.name.endswith(("bias", "sinks")):
        return Cause("bias", _said(words, _shift(pair)), 0.0)
    if not np.isfinite(pair.shipped).all() or pair.shipped.ndim < 2:
        return Cause("weight bytes", words, 0.0)
    if op.type == "Experts":
        return _experts(pair, op, words)
    order = clues.column_order(pair.shipped.T, pair.right.T, 0.02)
    if order is not None:
        cause = order_cause(order, op, semantic)
        return Cause(cause.kind, _said(words, cause.words), 0.0)
    order = clues.column_order(pair.shipped, pair.right, 0.02)
    if order is not None and _moves_heads(order, op, semantic):
        return Cause("head layout", _said(words, "its columns stand in another order of heads"), 0.0)
    if pair.shipped.shape[0] == pair.shipped.shape[1] and clues.same(pair.shipped, pair.right.T, 0.02):
        return Cause("weight bytes", _said(words, "it is transposed"), 0.0)
    if (a := clues.factor(pair.shipped, pair.right, 0.02)) is not None:
        return Cause("weight bytes", _said(words, f"all of it is {a:.4g} times what it should be"), 0.0)
    return Cause("weight bytes", words, 0.0)


def _said(words: str, more: str) -> str:
    return f"{words}; {more}" if more else words


def _shift(pair: TensorPair) -> str:
    for words, wanted in (
        ("the one that should be added is missing", pair.right - 1),
        ("one is added to it", pair.right + 1),
        ("it is zero", pair.right * 0),
        ("it is negated", -pair.right),
        ("it is all ones", np.ones_like(pair.right)),
    ):
        if clues.same(pair.shipped, wanted, 0.01) or (not wanted.any() and not pair.shipped.any()):
            return words
    return ""


def _table(pair: TensorPair) -> str:
    if (a := clues.factor(pair.shipped, pair.right, 0.01)) is not None:
        return f"all of it is {a:.4g} times what it should be: an attention factor"
    for shift in (1, -1):
        if clues.same(pair.shipped, np.roll(pair.right, -shift, axis=0), 0.05):
            return f"its rows stand {abs(shift)} position {'early' if shift > 0 else 'late'}"
    return ""


def _experts(pair: TensorPair, op: Op, words: str) -> Cause:
    """Look whether the experts' blocks stand in another order."""
    count = int(op.attributes["experts"])
    if pair.shipped.shape[0] % count == 0:
        shipped, right = (a.reshape(count, -1) for a in (pair.shipped, pair.right))
        order = clues.column_order(shipped.T, right.T, 0.02)
        if order is not None:
            return Cause("routing", _said(words, f"the experts stand in the order {', '.join(map(str, order))}"), 0.0)
    return Cause("weight bytes", words, 0.0)


def _moves_heads(order: list[int], op: Op, semantic: Semantic) -> bool:
    parent = op.module.rsplit(".", 1)[0]
    widths = {
        int(o.attributes.get("value_dim", o.attributes["head_dim"]))
        for o in semantic.ops
        if o.type == "Attention" and o.module == parent
    }
    return any(clues.moves_blocks(order, width) for width in widths)
