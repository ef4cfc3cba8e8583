"""From the first op that differs to the likely cause: what the two results have to do with each other, then trials."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from edgewright.verify import clues
from edgewright.verify.cause import Cause
from edgewright.verify.graphs import Array
from edgewright.verify.locate import Divergence
from edgewright.verify.orders import order_cause
from edgewright.verify.routing import is_routing, routing_ops, routing_trials
from edgewright.verify.rows import row_errors
from edgewright.verify.semantic import Op, Piece, Semantic
from edgewright.verify.tensors import TensorPair, tensor_cause
from edgewright.verify.trials import ATTRIBUTE_CLASSES, Trial, handed_on, op_trials, wiring_trials
from edgewright.verify.trials_attention import attention_trials, both_ropes, rope_trials
from edgewright.verify.trials_cache import cache_trials, scale_clue, scales_of
from edgewright.verify.trials_mask import mask_trials

#: A change of the reference is the cause when it leaves at most this share of the error.
_EXPLAINED = 0.02
#: Attributes that are searched for the number that explains an error.
_NUMBERS = ("scale", "softcap", "cap", "epsilon", "alpha", "limit")
#: Most changes that are tried, and for how many seconds.
_MOST, _SECONDS = 240, 20.0


def explain(
    found: Divergence, semantic: Semantic, wrong: Callable[[str], TensorPair | None]
) -> tuple[Cause, list[Cause]]:
    """Return the likely cause of a divergence, and the changes that came nearest, best first.

    `wrong` gives the shipped and the right values of a weight whose shipped bytes are known to be wrong.
    """
    piece = semantic.piece(found.failed[0].value, found.feeds)
    for op in reversed(piece.ops):
        for name in op.inputs:
            pair = wrong(name) if name else None
            if pair is not None:
                cause = tensor_cause(pair, op, semantic)
                return cause, [cause]
    clue = _clue(found, semantic)
    if clue is not None:
        return clue, [clue]
    tried = _try(found, piece, semantic)
    if tried and _explains(tried[0], found):
        return tried[0], tried[:8]
    return _pattern(found, semantic), tried[:8]


def _explains(cause: Cause, found: Divergence) -> bool:
    worst = max(check.worst for check in found.failed)
    bound = max(check.bound for check in found.failed)
    left = math.inf if cause.left is None else cause.left
    return left <= max(bound, _EXPLAINED * min(worst, 1.0)) and left < 0.5 * worst


def _clue(found: Divergence, semantic: Semantic) -> Cause | None:
    """Look for a plain relation between the two results: an offset, a factor, another order."""
    check = found.failed[0]
    given, wanted = found.candidate(check.value), found.again[check.value]
    op = found.op
    if given.shape != wanted.shape:
        words = f"the shape is {list(given.shape)} instead of {list(wanted.shape)}"
        return replace(_pattern(found, semantic), words=words)
    if not np.issubdtype(given.dtype, np.floating) or not np.isfinite(given).all():
        return None
    g, w = given.reshape(-1, given.shape[-1]), wanted.reshape(-1, wanted.shape[-1])
    bound = max(clues.SAME, check.bound / 2)
    if "Linear" in op.type:
        return _linear_clue(found, g, w, bound, semantic)
    a = clues.factor(g, w, bound)
    if a is not None and op.type in ("Mul", "Div", "Embedding", "Add"):
        return Cause("scale", f"the result is {a:.6g} times what it should be", _left(a * w, g))
    if a is not None and op.type == "Rope":
        return Cause("rope", f"the rotated vectors are {a:.6g} times as long as they should be", _left(a * w, g))
    return None


def _linear_clue(found: Divergence, g: Array, w: Array, bound: float, semantic: Semantic) -> Cause | None:
    op = found.op
    offset = clues.row_offset(g, w, bound)
    if offset is not None:
        bias = semantic.initializer(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else None
        words = "a constant vector is added to every row"
        if bias is not None and clues.same(offset, -bias, 0.02):
            words = "the bias is missing"
        elif bias is not None and clues.same(offset, bias, 0.02):
            words = "the bias is added twice"
        return Cause("bias", words, _left(w + offset, g))
    if (a := clues.factor(g, w, bound)) is not None:
        return Cause("scale", f"the result is {a:.6g} times what it should be", _left(a * w, g))
    order = clues.column_order(g, w, bound)
    if order is not None:
        return order_cause(order, found.op, semantic, _left(w[:, order], g))
    for other in found.checks:
        twin = found.again.get(other.value)
        same_node = other.op.inputs[0] == op.inputs[0] and "Linear" in other.op.type
        if other.value != found.failed[0].value and twin is not None and same_node:
            flat = twin.reshape(-1, twin.shape[-1])
            if flat.shape == g.shape and clues.same(g, flat, bound):
                return Cause("head layout", f"it gives what {other.op.module} should give", _left(flat, g))
    return _packed_clue(found, bound)


def _packed_clue(found: Divergence, bound: float) -> Cause | None:
    """Look whether the parts of one packed product stand in another order than they should."""
    source = found.op.inputs[0]
    group = [c for c in found.checks if "Linear" in c.op.type and c.op.inputs[0] == source]
    if len(group) < 2:
        return None
    parts = [(found.candidate(c.value), found.again[c.value]) for c in group]
    rows = [(g.reshape(-1, g.shape[-1]), w.reshape(-1, w.shape[-1])) for g, w in parts]
    if len({len(g) for g, _ in rows}) != 1:
        return None
    g, w = (np.concatenate(side, axis=1) for side in zip(*rows, strict=True))
    order = clues.column_order(g, w, bound)
    if order is None:
        return None
    return Cause("head layout", "the parts of the packed product stand in another order", _left(w[:, order], g))


def _left(explained: Array, given: Array) -> float:
    return float(row_errors(given[None], explained[None], mean=False).max())


def _try(found: Divergence, piece: Piece, semantic: Semantic) -> list[Cause]:
    """Run changes of the reference until one gives the candidate's results; returns all, best first."""
    results: list[Cause] = []
    if not semantic.has_attributes:  # a finished graph: its ops' attributes are in their bodies
        return results
    end = time.monotonic() + _SECONDS
    for count, trial in enumerate(_trials(found, piece, semantic)):
        if count > _MOST or time.monotonic() > end:
            break
        try:
            left = _remaining(found, trial.piece.run())
        except (ValueError, KeyError, IndexError):
            continue
        results.append(Cause(trial.kind, trial.words, left, trial.op))
        if left <= max(check.bound for check in found.failed):
            break
    results.sort(key=_left_of)
    if (not results or not _explains(results[0], found)) and time.monotonic() < end:
        results += _searches(found, piece)
        results.sort(key=_left_of)
    return results


def _left_of(cause: Cause) -> float:
    return math.inf if cause.left is None else cause.left


def _trials(found: Divergence, piece: Piece, semantic: Semantic) -> Iterator[Trial]:
    first = min(position for check in found.failed for position in check.positions())
    ordered = [found.op, *(op for op in reversed(piece.ops) if op is not found.op)]
    routes = routing_ops(semantic)

    def of(op: Op, trials: Iterator[Trial]) -> Iterator[Trial]:
        for trial in trials:
            kind = "routing" if op.name in routes else trial.kind
            yield replace(trial, kind=kind, op=None if op is found.op or op.type == "Rope" else op)

    for op in ordered:
        yield from of(op, op_trials(op, piece, semantic, first))
        yield from of(op, rope_trials(op, piece, semantic))
    yield from both_ropes(piece)
    for op in ordered:
        yield from of(op, attention_trials(op, piece))
        yield from of(op, cache_trials(op, piece, semantic))
        yield from of(op, mask_trials(op, piece))
        yield from of(op, routing_trials(op, piece))
        if op is not found.op:
            yield from of(op, handed_on(op, piece))
    yield from of(found.op, wiring_trials(found.op, piece, found.feeds, semantic))


def _remaining(found: Divergence, outputs: Mapping[str, Array]) -> float:
    """Return the largest error that is left at the values of the op when the reference gives `outputs`."""
    worst = 0.0
    values = {check.value: check for check in found.checks if check.op is found.op and check.value in outputs}
    for value, check in values.items():
        given, twin = found.candidate(value), outputs[value]
        if given.shape != twin.shape:
            return math.inf
        worst = max(worst, float(check.judge(given, twin).max(initial=0.0)))
    return worst if values else math.inf


def _searches(found: Divergence, piece: Piece) -> list[Cause]:
    """Look for the number that leaves the least error, in place of each number of the piece."""
    results = []
    for op in piece.ops:
        makers = []
        for name in _NUMBERS:
            if op.attributes.get(name):
                old = float(op.attributes[name])
                kind = ATTRIBUTE_CLASSES[name]
                makers.append((kind, name, old, partial(_with_attribute, piece, op, name, old)))
        if op.type == "Attention" and not op.attributes.get("softcap"):
            makers.append(("soft cap", "softcap", 4.0, partial(_with_attribute, piece, op, "softcap", 4.0)))
        for name, what in zip(scales_of(op) or (), ("key", "value"), strict=False):
            make = partial(_with_factor, piece, name)
            makers.append(("scale", f"the {what} scale times", 1.0, make))
        if op.type in ("Mul", "Div") and (value := _number(op, piece)) is not None:
            old = float(piece.values[value].ravel()[0])
            makers.append(("scale", "a factor", old, partial(_with_number, piece, value, old)))
        for kind, name, old, make in makers:
            reach = (-12, 20) if name == "epsilon" else (-4, 4)
            power, left = _search(lambda p, make=make: _remaining(found, make(p).run()), *reach)  # type: ignore[misc]
            there = f"instead of {old:.4g}" if name in op.attributes or kind == "scale" else "where there is none"
            words = f"{name} {old * 2.0**power:.4g} {there}"
            results.append(Cause(kind, words, left, None if op is found.op else op))
    return results


def _number(op: Op, piece: Piece) -> str | None:
    names = [n for n in op.inputs if n in piece.values and piece.values[str(n)].size == 1]
    return str(names[0]) if names else None


def _with_attribute(piece: Piece, op: Op, name: str, old: float, power: float) -> Piece:
    return piece.swapped(op, replace(op, attributes={**op.attributes, name: old * 2.0**power}))


def _with_number(piece: Piece, name: str, old: float, power: float) -> Piece:
    return piece.changed(name, np.full_like(piece.values[name], old * 2.0**power))


def _with_factor(piece: Piece, name: str, power: float) -> Piece:
    return piece.changed(name, (piece.values[name] * 2.0**power).astype(np.float32))


def _search(left: Callable[[float], float], low: int, high: int) -> tuple[float, float]:
    """Return the power of two between `low` and `high` that makes `left` smallest, and what is left then."""

    def safe(power: float) -> float:
        try:
            return left(power)
        except ValueError:
            return math.inf

    points = [float(p) for p in np.arange(low, high + 0.5, 0.5)]
    errors = [safe(p) for p in points]
    best, error, step = points[int(np.argmin(errors))], min(errors), 0.25
    for _ in range(16):
        for option in (best - step, best + step):
            if (new := safe(option)) < error:
                best, error = option, new
        step /= 2
    return best, error


def _pattern(found: Divergence, semantic: Semantic) -> Cause:
    """Return the class that the kind of op and the place of the error speak for, when no change explains it."""
    op, check = found.op, found.failed[0]
    if op.type == "CacheWrite":
        return scale_clue(found) or Cause("cache", "other codes are kept for later")
    if all(c.value.startswith("present") for c in found.failed) and len(op.outputs) > len(found.failed):
        return Cause("cache", "the result is right but what is kept for later is not")
    if is_routing(op, semantic):
        return Cause("routing", "the choice or the weights of the experts differ")
    if op.module.startswith("positions") or op.type == "Rope":
        return Cause("rope", "the positions or rotations differ")
    if "Norm" in op.type:
        return Cause("norm", "the normalised values differ")
    if "Activation" in op.type or op.type in ("Sigmoid", "Tanh", "Softplus", "Relu", "Exp"):
        return Cause("activation", "the activation differs")
    if op.type == "Softcap":
        return Cause("soft cap", "the soft cap differs")
    if op.type in ("Mul", "Div"):
        return Cause("scale", "the factor differs")
    if "Attention" in op.type:
        stored = {c.value for c in found.failed if c.value in op.outputs[1:2]}
        if stored and not found.call.starts.any() and op.outputs[2] not in {c.value for c in found.failed}:
            return Cause("rope", "the keys that are stored are turned by other angles")
        return _attention_pattern(found, check.positions())
    if op.type in ("StateSpace", "GatedDelta", "CausalConv"):
        late = bool(found.call.starts.any())
        return Cause("cache" if late else "weight bytes", "the recurrence differs")
    if "Linear" in op.type or "MatMul" in op.type or op.type in ("Embedding", "Experts", "Gather", "QMoE", "MoE"):
        return Cause("weight bytes", "the product is one with other weights")
    if op.type == "Clip":
        return Cause("activation", "the bounds differ")
    return Cause("wiring", "the op reads or computes something else")


def _attention_pattern(found: Divergence, positions: list[int]) -> Cause:
    if found.call.starts.any():
        return Cause("cache", "only calls that continue a cache differ")
    if positions and positions[0] > 0 and positions[-1] == found.call.tokens - 1:
        return Cause("window", f"positions from {positions[0]} on differ, those before are right")
    return Cause("mask", "what the tokens see differs")
