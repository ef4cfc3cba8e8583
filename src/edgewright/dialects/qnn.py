"""The qnn dialect: the semantic graph, where all ops have a form on Qualcomm's HTP, with what that form is made of.

The graph keeps the stage's contract, so that it runs and is verified anywhere: every op has its reference body, as in
the portable dialect. What the HTP takes is spelled from it when it is compiled, for fixed numbers of rows and a fixed
context: see `qnn_static`. Attributes of ops, which a body swallows, stand as JSON in each node's metadata.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import onnx_ir as ir

from edgewright.dialects.portable import attach_bodies, call_of
from edgewright.errors import UnsupportedFormatError
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of

#: Where a node's attributes are kept.
ATTRIBUTES = "edgewright.attributes"
#: Ops of ONNX's own that may stand in a graph; those over whole numbers make positions.
_PLAIN = frozenset(
    ["Add", "Sub", "Mul", "Div", "Gather", "Split", "Tanh", "Sigmoid", "Cast", "Shape", "Squeeze", "Unsqueeze", "Range"]
)


def lower(stage: Stage) -> Stage:
    """Attach reference bodies and attributes, in place; returns the stage.

    Raises UnsupportedFormatError with op and layer for what has no form on the HTP.
    """
    if stage.contract.rope_switch is not None:
        raise _refused("the rotation whose frequencies change with the length", stage.name)
    for node in stage.graph:
        if node.domain == EW:
            _check(node)
            node.metadata_props[ATTRIBUTES] = json.dumps(dict(call_of(node).attributes), sort_keys=True)
    for node in stage.graph:
        if node.domain == EW:
            continue
        if node.domain or node.op_type not in _PLAIN:
            raise _refused(f"the op {node.op_type}", module_of(node))
    # The body of Attention scatters into a cache that past and present share, as the engine's caches are.
    stage.contract = dataclasses.replace(stage.contract, kv_in_place=True)
    return attach_bodies(stage, emulate=True)


def _check(node: ir.Node) -> None:
    if node.op_type not in _CHECKS:
        raise _refused(f"the op {node.op_type}", module_of(node))
    if (reason := _CHECKS[node.op_type](node)) is not None:
        raise _refused(reason, module_of(node))


def _refused(what: str, where: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"Qualcomm's HTP can't be compiled for: {what} ({where}) has no form there; use another target, such as cpu."
    )


def _given(node: ir.Node, place: int) -> bool:
    return len(node.inputs) > place and node.inputs[place] is not None


def _attention(node: ir.Node) -> str | None:
    if not _given(node, 1):
        return "attention that reads another layer's cache, or a quantized one"
    if _given(node, 6):
        return "attention with sinks"
    if _given(node, 7):
        return "attention with a table that is added to the scores"
    return None


def _norm(node: ir.Node) -> str | None:
    weight = node.inputs[1] if _given(node, 1) else None
    whole = weight is None or weight.shape is None or len(weight.shape) == 1
    return None if whole else "a norm with a weight of its own for each head"


def _decode(node: ir.Node) -> str | None:
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    if a["format"] != "int8" or a.get("scope") not in ("channel", "tensor"):
        return f"a weight in {a['format']}" + (f" scaled by {a['scope']}" if a.get("scope") else "")
    return _embedding(node) if node.op_type == "DecodeRows" else None


def _embedding(node: ir.Node) -> str | None:
    ids = node.inputs[0]
    return None if ids is not None and ids.is_graph_input() else "a table of positions"


def _none(node: ir.Node) -> None:
    return None


_CHECKS: dict[str, Callable[[ir.Node], str | None]] = {
    "Activation": _none,
    "Attention": _attention,
    "Decode": _decode,
    "DecodeRows": _decode,
    "Embedding": _embedding,
    "GatedActivation": _none,
    "LayerNorm": _norm,
    "Linear": _none,
    "QuantEmbedding": _embedding,
    "QuantLinear": _none,
    "RMSNorm": _norm,
    "Rope": _none,
    "RoundInput": _none,
    "Softcap": _none,
}
