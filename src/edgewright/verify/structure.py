"""Level `graph`: the shipped graph against the one that checkpoint and recipe give anew, node by node.

What no scenario is long enough to show, a window of thousands of tokens, still stands in a node's attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgewright.files import os_errors, scratch_folder
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, plan_layout, write_graph
from edgewright.verify.cause import Cause
from edgewright.verify.locate import layer_of
from edgewright.verify.report import Localisation

#: The class of a difference, by the attribute that differs; any other is one of wiring.
_CLASSES = {
    "window": ("local_window_size", "window"),
    "rope": ("do_rotary", "rotary_interleaved", "interleaved", "rotary_dim"),
    "scale": ("scale",),
    "soft cap": ("softcap", "cap"),
    "norm": ("epsilon", "group"),
    "activation": ("activation", "activation_type", "alpha", "approximate", "limit"),
    "head layout": ("num_heads", "kv_num_heads", "heads", "kv_heads", "head_dim", "value_dim"),
    "cache": ("k_quant_type", "v_quant_type", "kv_cache_bit_width", "cache"),
    "routing": ("k", "top_k", "experts", "normalize_routing_weights"),
}


@dataclass(frozen=True)
class GraphReport:
    """The first node that differs, and how; a graph that is the same gives no report."""

    node: str
    op: str
    words: str
    kind: str

    @property
    def faults(self) -> list[str]:
        """Return the difference in words."""
        return [self.words]

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        return {"status": "failed", "summary": self.words, "node": self.node}

    def localisation(self, origin: str) -> Localisation:
        """Return the place, for a difference that no scenario shows."""
        module = self.node.rsplit("/", 1)[0]
        layer = layer_of(module)
        inner = module.split(f".{layer}", 1)[1].removeprefix(".") if layer is not None else module
        place = f"layer {layer} {inner}".strip() if layer is not None else inner.removeprefix("model.") or self.node
        notes = ("no result differs by more than its bound: the graphs themselves were compared",)
        cause = Cause(self.kind, self.words)
        return Localisation(place, layer, module, self.op, "", "", (), cause, origin=origin, notes=notes)


def check_graph(lowered: Stage, shipped: Path) -> GraphReport | None:
    """Compare the graph of a stage that was lowered anew with a file; None when they are the same."""
    with scratch_folder() as folder, os_errors("the graph to compare with"):
        write_graph(lowered, plan_layout(lowered), folder)
        path = folder / MODEL_FILE
        if path.read_bytes() == shipped.read_bytes():
            return None
        fresh = onnx.load(path, load_external_data=False)
    found = onnx.load(shipped, load_external_data=False)
    for wanted, given in zip_longest(fresh.graph.node, found.graph.node):
        difference = _difference(wanted, given)
        if difference is not None:
            node = wanted if wanted is not None else given
            return GraphReport(node.name, node.op_type, f"{node.name}: {difference[0]}", difference[1])
    # The portable dialect says an op's attributes in the body of its function.
    bodies = [{(f.name, f.overload): f.SerializeToString() for f in model.functions} for model in (fresh, found)]
    for node in found.graph.node:
        if len({body.get((node.op_type, node.overload)) for body in bodies}) > 1:
            return GraphReport(node.name, node.op_type, f"{node.name}: its body is another one", "wiring")
    return GraphReport("", "graph", "inputs, outputs, initializers or versions differ", "wiring")


def _difference(wanted: onnx.NodeProto | None, given: onnx.NodeProto | None) -> tuple[str, str] | None:
    """Return how two nodes differ in words, and the class; None when they don't."""
    if wanted is None or given is None:
        return ("one node too many" if wanted is None else "the node is missing"), "wiring"
    for part in ("name", "domain", "op_type", "input", "output"):
        a, b = getattr(wanted, part), getattr(given, part)
        if a != b:
            return f"{part} is {_shown(b)} where {_shown(a)} is expected", "wiring"
    ours, theirs = ({a.name: a for a in node.attribute} for node in (wanted, given))
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None or a.SerializeToString() != b.SerializeToString():
            kind = next((kind for kind, names in _CLASSES.items() if name in names), "wiring")
            return f"{name} is {_value(b)} where {_value(a)} is expected", kind
    return None


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str) else ", ".join(value)


def _value(attribute: onnx.AttributeProto | None) -> str:
    if attribute is None:
        return "absent"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{np.float32(value):g}" if isinstance(value, float) else str(value)[:60]
