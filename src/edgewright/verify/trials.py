"""What may be wrong with an op, as changes of the reference.

Each change is run, and the one that gives what the candidate gave is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from edgewright.ops import ACTIVATIONS
from edgewright.verify.graphs import Array
from edgewright.verify.semantic import Op, Piece, Semantic

#: What an optional input is, by the op's formal name for it.
_OPTIONAL = {
    "bias": "bias",
    "weight": "norm",
    "sinks": "bias",
    "gate_bias": "bias",
    "up_bias": "bias",
    "down_bias": "bias",
}
#: The cause class of an attribute.
ATTRIBUTE_CLASSES = {
    "window": "window",
    "softcap": "soft cap",
    "cap": "soft cap",
    "scale": "scale",
    "epsilon": "norm",
    "group": "norm",
    "activation": "activation",
    "alpha": "activation",
    "limit": "activation",
    "interleaved": "rope",
    "rotary_dim": "rope",
    "heads": "head layout",
    "kv_heads": "head layout",
    "key_heads": "head layout",
    "groups": "head layout",
    "top_k": "routing",
}
#: Attributes that an op may lack.
_MAY_BE_NONE = ("window", "softcap", "group", "activation")
_FACTORS = (2.0, 0.5, 4.0, 0.25, 2**0.5, 0.5**0.5, 8.0, 0.125, -1.0)


class Runs(Protocol):
    """What gives outputs by name; ValueError when it makes no sense."""

    def run(self) -> dict[str, Array]: ...


@dataclass(frozen=True)
class Trial:
    """One change of the reference: the cause class it stands for, what it is in words, and the changed ops.

    `op` is the one that is changed, where that is not the one that differs.
    """

    kind: str
    words: str
    piece: Runs
    op: Op | None = None


def op_trials(op: Op, piece: Piece, semantic: Semantic, first: int) -> Iterator[Trial]:
    """Yield the changes of one op of a piece; `first` is the first position that differs."""
    yield from _attributes(op, piece, semantic, first)
    yield from _left_out(op, piece)
    yield from _norm_weights(op, piece)
    yield from _other_weights(op, piece, semantic)


def _with(op: Op, piece: Piece, **attributes: Any) -> Piece:
    """Return the piece with attributes of an op set, or removed where they are None."""
    merged = {k: v for k, v in {**op.attributes, **attributes}.items() if v is not None}
    return piece.swapped(op, replace(op, attributes=merged))


def _attributes(op: Op, piece: Piece, semantic: Semantic, first: int) -> Iterator[Trial]:
    for name, old in op.attributes.items():
        kind = ATTRIBUTE_CLASSES.get(name)
        if kind is None:
            continue
        for value in _values(op, name, old, semantic, first):
            if value != old and not (value is None and name not in _MAY_BE_NONE):
                words = f"{name} {_spelled(value)} instead of {_spelled(old)}"
                yield Trial(kind, words, _with(op, piece, **{name: value}))
    if op.type == "Attention":
        for name in ("window", "softcap"):
            if name not in op.attributes:
                for value in _values(op, name, None, semantic, first):
                    if value is not None:
                        words = f"{name} {_spelled(value)} where there is none"
                        yield Trial(name.replace("softcap", "soft cap"), words, _with(op, piece, **{name: value}))


def _spelled(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _values(op: Op, name: str, old: Any, semantic: Semantic, first: int) -> list[Any]:
    """Return what an attribute could be instead: what other ops of the graph say, neighbours, usual values."""
    others = list(dict.fromkeys(o.attributes[name] for o in semantic.ops if name in o.attributes and o.type == op.type))
    if name == "window":
        near = [first] if first > 0 else []
        if old:
            near += [old - 1, old + 1, first + 1, 2 * old, old // 2]
        values = [None, *others, *near]
        return [v for v in dict.fromkeys(values) if v is None or v > 0]
    if name in ("softcap", "cap"):
        caps = [o.attributes[n] for o in semantic.ops for n in ("softcap", "cap") if n in o.attributes]
        return [None, *dict.fromkeys([*others, *caps, *([old * f for f in _FACTORS[:4]] if old else []), 30.0, 50.0])]
    if name == "scale":
        width = op.attributes.get("head_dim", 1)
        usual = [1.0, width**-0.5, 1.0 / width, old * old, abs(old) ** 0.5]
        return list(dict.fromkeys([*others, *usual, *(old * f for f in _FACTORS)]))
    if name == "epsilon":
        return [*others, 1e-5, 1e-6, 1e-12, 1e-8, 1e-3, 1e-2, 0.0, 0.1, 1.0]
    if name == "activation":
        return [None, old] if op.type == "CausalConv" else list(dict.fromkeys(ACTIVATIONS.values()))
    if name == "interleaved":
        return [1 - int(old)]
    if name == "top_k":
        return [old - 1, old + 1, 1] if old > 1 else [old + 1]
    if name in ("alpha", "limit") and old is not None:
        return [1.0, 1.702, old * 2, old / 2, 1e9]
    if name == "group":
        return [None]
    return []


def _left_out(op: Op, piece: Piece) -> Iterator[Trial]:
    """Yield the op without each of its optional inputs, with it negated, and with it twice."""
    from edgewright.ops import OPS

    if op.domain != "ew" or op.type not in OPS:
        return
    formal = OPS[op.type].inputs
    for place, name in enumerate(op.inputs):
        role = formal[place]
        if name is None or role not in _OPTIONAL or (role == "weight" and "Norm" not in op.type):
            continue
        kind = "norm" if "Norm" in op.type else _OPTIONAL[role]
        inputs = tuple(None if i == place else n for i, n in enumerate(op.inputs))
        yield Trial(kind, f"no {role.replace('_', ' ')}", piece.swapped(op, replace(op, inputs=inputs)))
        if name in piece.values and name in op.inputs:
            array = piece.values[name]
            yield Trial(kind, f"the {role} negated", piece.changed(name, -array))
            yield Trial(kind, f"the {role} twice", piece.changed(name, array + array))


def _norm_weights(op: Op, piece: Piece) -> Iterator[Trial]:
    if "Norm" not in op.type:
        return
    if op.inputs[0]:
        yield Trial("norm", "no norm at all", _passed(op, piece))
    if len(op.inputs) < 2 or op.inputs[1] not in piece.values:
        return
    weight = piece.values[str(op.inputs[1])]
    yield Trial("norm", "the weight without the one that is added", piece.changed(str(op.inputs[1]), weight - 1))
    yield Trial("norm", "the weight with one added", piece.changed(str(op.inputs[1]), weight + 1))
    other = "LayerNorm" if op.type == "RMSNorm" else "RMSNorm"
    if op.type == "RMSNorm" or len([i for i in op.inputs if i]) <= 2:
        yield Trial("norm", f"{other} instead of {op.type}", piece.swapped(op, replace(op, type=other)))


def _passed(op: Op, piece: Piece) -> Piece:
    """Return the piece with an op that only hands its first input on."""
    return piece.swapped(op, Op(op.name, "", "Identity", {}, op.inputs[:1], op.outputs[:1]))


def _other_weights(op: Op, piece: Piece, semantic: Semantic) -> Iterator[Trial]:
    """Yield the op with weights of the same kind of other layers, or of the same shape of its own layer."""
    if not ("Linear" in op.type or "Norm" in op.type or op.type == "Embedding"):
        return
    kind = "norm" if "Norm" in op.type else "weight bytes"
    for place, name in enumerate(op.inputs):
        if place == 0 or name is None or name not in semantic.initializers or name not in piece.values:
            continue
        shape, tail = piece.values[name].shape, name.rsplit(".", 2)[-2:]
        alike = [o for o in sorted(semantic.initializers) if o != name and semantic.shape(o) == shape and "." in o]
        close = [o for o in alike if o.rsplit(".", 2)[-2:] == tail]
        beside = [o for o in alike if o not in close and o.rsplit(".", 3)[0] == name.rsplit(".", 3)[0]]
        for other in [*close[:6], *beside[:6]]:
            words = f"{other.removesuffix('.float')} instead of {name.removesuffix('.float')}"
            what = "bias" if name.endswith("bias") and "Norm" not in op.type else kind
            yield Trial(what, words, piece.changed(name, semantic.initializer(other)))
        if len(shape) == 2 and shape[0] == shape[1]:
            yield Trial(kind, "the weight transposed", piece.changed(name, np.ascontiguousarray(piece.values[name].T)))


def wiring_trials(op: Op, piece: Piece, feeds: Mapping[str, Array], semantic: Semantic) -> Iterator[Trial]:
    """Yield the op with another value of its surroundings as input, or with one input handed on."""
    place = semantic.order[op.outputs[0]]
    for index, name in enumerate(op.inputs):
        if name is None or name not in piece.values or name in semantic.initializers or name not in feeds:
            continue
        shape, dtype = feeds[name].shape, feeds[name].dtype
        names = [n for o in semantic.ops[max(0, place - 40) : place] for n in o.outputs]
        if name not in semantic.made:  # a cache or a state
            names = [n for n in feeds if n not in semantic.made]
        near = [n for n in names if n != name and n in feeds and (feeds[n].shape, feeds[n].dtype) == (shape, dtype)]
        for other in reversed(near[-12:]):
            inputs = tuple(other if i == index else n for i, n in enumerate(op.inputs))
            changed = piece.swapped(op, replace(op, inputs=inputs)).changed(other, feeds[other])
            source = semantic.made.get(name)
            kind = "cache" if source is None else "norm" if "Norm" in source.type else "wiring"
            yield Trial(kind, f"{other} is read instead of {name}", changed)
    if op.type == "GatedActivation":
        swapped = replace(op, inputs=(op.inputs[1], op.inputs[0]))
        yield Trial("head layout", "gate and up exchanged", piece.swapped(op, swapped))
    yield from handed_on(op, piece)


def handed_on(op: Op, piece: Piece) -> Iterator[Trial]:
    """Yield a sum or product that gives one of its inputs only."""
    if op.type in ("Add", "Mul", "Div", "Sub") and len(op.inputs) == 2:
        for name in op.inputs:
            if name not in piece.values or piece.values[str(name)].size > 1:
                only = Op(op.name, "", "Identity", {}, (name,), op.outputs)
                kind = "wiring" if op.type in ("Add", "Sub") else "scale"
                yield Trial(kind, f"only {name} is handed on", piece.swapped(op, only))
