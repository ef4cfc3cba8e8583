"""Semantic ops that a dialect keeps because its back end runs each as one: their shapes and multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Callable

from edgewright.graph.builder import EW
from edgewright.plan.shapes import Fact, Rule, View
from edgewright.plan.work import SEMANTIC, visible

#: The dialects whose graphs are run so; the bodies that stand beside such ops are what other runtimes run.
DIALECTS = frozenset({"openvino"})


def _quant_linear(view: View) -> list[Fact]:
    return [Fact((*view.shape(0)[:-1], view.attribute("out_features")))]


def _quant_embedding(view: View) -> list[Fact]:
    return [Fact((*view.shape(0), view.attribute("in_features")))]


def _decode(view: View) -> list[Fact]:
    return [Fact((view.attribute("out_features"), view.attribute("in_features")))]


def _cache_write(view: View) -> list[Fact]:
    return [Fact(view.shape(2)), Fact(view.shape(3))]


#: The shapes of the results of ops that are kept.
SHAPES: dict[str, Rule] = {
    **{name: SEMANTIC[EW, name] for name in ("Attention", "Embedding", "Linear", "RMSNorm", "Rope", "RoundInput")},
    "CacheWrite": _cache_write,
    "Decode": _decode,
    "QuantEmbedding": _quant_embedding,
    "QuantLinear": _quant_linear,
}


def _linear(view: View, past: int) -> tuple[int, str]:
    """The numbers are int8 where the inputs are rounded to it, as in ONNX Runtime's kernels."""
    x = view.shape(0)
    rows = view.attribute("out_features") or view.shape(1)[0]
    rounded = bool(view.attribute("int8_activations", 0)) or _rounded(view)
    return math.prod(x) * rows, "int8" if rounded else "float"


def _rounded(view: View) -> bool:
    x = view.node.inputs[0]
    maker = None if x is None else x.producer()
    return maker is not None and maker.domain == EW and maker.op_type == "RoundInput"


def _attention(view: View, past: int) -> tuple[int, str]:
    batch, seq, _ = view.shape(0)
    pairs, _ = visible(past, seq, view.attribute("window"))
    return batch * view.attribute("heads") * pairs * _wide(view), "float"


def _wide(view: View) -> int:
    """Return the numbers of a key and a value of one head; a value is as wide as a key unless it says otherwise."""
    head_dim = int(view.attribute("head_dim"))
    return head_dim + int(view.attribute("value_dim") or head_dim)


#: Multiply-adds of ops that are kept, and the numbers that are multiplied; of a view and the tokens held before.
MACS: dict[str, Callable[[View, int], tuple[int, str]]] = {
    "Attention": _attention,
    "Linear": _linear,
    "QuantLinear": _linear,
}


def cached_numbers(view: View, past: int) -> int:
    """Return how many numbers of its cache an attention reads and writes."""
    batch, seq, _ = view.shape(0)
    _, slots = visible(past, seq, view.attribute("window"))
    row = batch * view.attribute("kv_heads") * _wide(view)
    return int(row * (slots + (seq if view.given(1) else 0)))
