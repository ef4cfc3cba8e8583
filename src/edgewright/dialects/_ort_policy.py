"""Rules of the onnxruntime dialect for the ops of robot policies.

`MixedAttention` becomes two products around a softmax, or `Attention` where there is no mask and no prefix, as in a
vision tower. Measured on onnxruntime 1.32, one thread: 256 patches of three views in 16 heads of 72 take 9.9 ms as
`Attention`, 10.5 as `MultiHeadAttention` and 11.5 as products; 50 actions over 600 prefix tokens in 8 heads of 256 take
2.4 ms as `Attention` and 2.1 as products, where the query heads of one key head are rows of one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import int64_constant, merge_decoded, merge_linears, replace, scalar_constant
from edgewright.ops._body import HIDDEN_SCORE

MICROSOFT = "com.microsoft"


def is_policy(stage: Stage) -> bool:
    """Tell whether a stage is one of a robot policy."""
    return any(node.domain == EW and node.op_type == "MixedAttention" for node in stage.graph)


def pack_mixed_qkv(stage: Stage) -> int:
    """Join the q, k and v products of attention without a cache, where they read one input.

    Returns how many could not be joined.
    """
    apart = 0
    for node in list(stage.graph):
        if node.domain != EW or node.op_type != "MixedAttention":
            continue
        linears = [_linear_of(value) for value in _first_three(node)]
        found = [linear for linear in linears if linear is not None]
        if len(found) == 3 and len({id(linear.inputs[0]) for linear in found}) == 1:
            apart += not (merge_linears(stage, found) or merge_decoded(stage, found))
    return apart


def note_apart(stage: Stage, apart: int) -> None:
    """Note, for the stage of a policy, how many groups of linears of one input stay as they are."""
    if apart and is_policy(stage):
        stage.notes.append(
            f"fused-projections: {apart} groups of linears that read one input stay apart, because their formats can't "
            "be joined row by row"
        )


def lower_policy(stage: Stage) -> None:
    """Lower the ops of robot policies, and the rope beside them, in place."""
    nodes = [node for node in stage.graph if node.domain == EW]
    mixed = [node for node in nodes if node.op_type == "MixedAttention"]
    if mixed:
        for node in nodes:
            if node.op_type == "Rope":
                _rope(stage, node)
    masks: dict[tuple[ir.Value, int], ir.Value] = {}
    for node in nodes:
        if node.op_type == "AdaRMSNorm":
            _ada_rms_norm(stage, node)
    for node in mixed:
        _mixed_attention(stage, node, masks)


def _first_three(node: ir.Node) -> list[ir.Value | None]:
    """Return the query, keys and values that an attention reads, a prefix's where it has no own ones."""
    q, k, v, prefix_key, prefix_value = (*node.inputs, *[None] * 5)[:5]
    return [q, prefix_key if k is None else k, prefix_value if v is None else v]


def _linear_of(value: ir.Value | None) -> ir.Node | None:
    """Return the product behind a rope and a change of layout."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in ("Rope", "Transpose", "Reshape"):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in ("Linear", "QuantLinear") else None


def _rope(stage: Stage, node: ir.Node) -> None:
    x, positions, cos, sin = node.inputs
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    if a["head_dim"] != a["rotary_dim"]:
        return
    attributes = {"interleaved": a["interleaved"]}
    new = make_node(MICROSOFT, "RotaryEmbedding", [x, positions, cos, sin], attributes, name=node.name or "")
    replace(stage, node, [new], new.outputs)


def _ada_rms_norm(stage: Stage, node: ir.Node) -> None:
    """The kernel of the plain norm takes a scale for each row, or one for all rows of a sequence."""
    x, scale, shift = node.inputs
    attributes = {"axis": -1, "epsilon": node.attributes["epsilon"].value, "stash_type": 1}
    norm = make_node("", "SimplifiedLayerNormalization", [x, scale], attributes, name=f"{node.name}/norm")
    moved = make_node("", "Add", [norm.outputs[0], shift], {}, name=node.name or "")
    replace(stage, node, [norm, moved], moved.outputs)


class _Nodes:
    """Nodes in the making, named after the node they stand for."""

    def __init__(self, stage: Stage, node: ir.Node) -> None:
        self.stage, self._path = stage, node.name or ""
        self.a = {name: attribute.value for name, attribute in node.attributes.items()}
        self.made: list[ir.Node] = []

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: Any) -> ir.Value:
        """Append a node; returns its output."""
        name = f"{self._path}/{op_type}_{len(self.made)}"
        self.made.append(make_node(domain, op_type, inputs, attributes, name=name))
        return self.made[-1].outputs[0]

    def ints(self, *values: int) -> ir.Value:
        """Return a constant vector, shared by its numbers."""
        return int64_constant(self.stage, values, "ints_" + "_".join(map(str, values)))

    def shaped(self, x: ir.Value | None, *shape: int) -> ir.Value:
        """Return x in a shape of constants, 0 for what stays and -1 for the rest."""
        return self.add("Reshape", [x, self.ints(*shape)])


def _mixed_attention(stage: Stage, node: ir.Node, masks: dict[tuple[ir.Value, int], ir.Value]) -> None:
    nodes = _Nodes(stage, node)
    q, mask = node.inputs[0], (*node.inputs, *[None] * 5)[5]
    heads, kv_heads, dim = (nodes.a[name] for name in ("heads", "kv_heads", "head_dim"))
    if len(node.inputs) == 3 and nodes.a["scale"] > 0:  # the kernel takes no other
        attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads, "scale": float(nodes.a["scale"])}
        replace(stage, node, nodes.made, [nodes.add("Attention", node.inputs, **attributes)])
        return
    group = heads // kv_heads
    keys, values = _keys_values(nodes, node)
    transposed = keys.transposed
    if kv_heads == 1:  # rows of all heads, one below the other, are how q lies
        rows = nodes.shaped(q, 0, 1, -1, dim)
    elif group == 1:
        rows = nodes.add("Transpose", [nodes.shaped(q, 0, 0, heads, dim)], perm=[0, 2, 1, 3])
    else:
        grouped = nodes.add("Transpose", [nodes.shaped(q, 0, 0, kv_heads, group, dim)], perm=[0, 2, 1, 3, 4])
        rows = nodes.shaped(grouped, 0, kv_heads, -1, dim)
    scores = nodes.add(
        "FusedMatMul", [rows, keys.value], MICROSOFT, alpha=float(nodes.a["scale"]), transB=int(not transposed)
    )
    if mask is not None:
        scores = nodes.add("Add", [scores, _bias(nodes, mask, group, masks)])
    mixed = nodes.add("MatMul", [nodes.add("Softmax", [scores], axis=-1), values])
    if kv_heads == 1:
        y = nodes.shaped(mixed, 0, -1, heads * dim)
    else:
        order = [0, 2, 1, 3] if group == 1 else [0, 2, 1, 3, 4]
        apart = mixed if group == 1 else nodes.shaped(mixed, 0, 0, -1, group, dim)
        y = nodes.shaped(nodes.add("Transpose", [apart], perm=order), 0, 0, heads * dim)
    replace(stage, node, nodes.made, [y])


class _Keys:
    """Keys `[batch, kv_heads, keys, head_dim]`, the last two axes swapped where `transposed`."""

    def __init__(self, value: ir.Value, *, transposed: bool) -> None:
        self.value, self.transposed = value, transposed


def _keys_values(nodes: _Nodes, node: ir.Node) -> tuple[_Keys, ir.Value]:
    """Return the prefix's keys and values with the own ones behind them."""
    _, k, v, prefix_key, prefix_value = (*node.inputs, *[None] * 5)[:5]
    kv_heads, dim = nodes.a["kv_heads"], nodes.a["head_dim"]
    transposed = bool(nodes.a["keys_transposed"]) and prefix_key is not None

    def by_head(x: ir.Value, order: list[int]) -> ir.Value:
        if kv_heads == 1 and order == [0, 2, 1, 3]:
            return nodes.shaped(x, 0, 1, -1, dim)
        return nodes.add("Transpose", [nodes.shaped(x, 0, 0, kv_heads, dim)], perm=order)

    if k is None or v is None:
        assert prefix_key is not None
        assert prefix_value is not None
        return _Keys(prefix_key, transposed=transposed), prefix_value
    own_key, own_value = by_head(k, [0, 2, 3, 1] if transposed else [0, 2, 1, 3]), by_head(v, [0, 2, 1, 3])
    if prefix_key is None:
        return _Keys(own_key, transposed=False), own_value
    keys = nodes.add("Concat", [prefix_key, own_key], axis=3 if transposed else 2)
    return _Keys(keys, transposed=transposed), nodes.add("Concat", [prefix_value, own_value], axis=2)


def _bias(nodes: _Nodes, mask: ir.Value, group: int, masks: dict[tuple[ir.Value, int], ir.Value]) -> ir.Value:
    """Return what is added to the scores, `[batch, 1, 1 or seq * group, keys]`, made once a mask."""
    by_row = bool(nodes.a["by_row"])
    key = (mask, group if by_row else 0)
    if key not in masks:
        none, hidden = (
            scalar_constant(nodes.stage, value, np.float32, name)
            for value, name in ((0.0, "float_0"), (HIDDEN_SCORE, "hidden_score"))
        )
        scores = nodes.add("Where", [nodes.add("Cast", [mask], to=int(ir.DataType.BOOL)), none, hidden])
        if by_row:
            keys = nodes.add("Shape", [mask], start=2, end=3)
            each = nodes.add("Tile", [nodes.add("Unsqueeze", [scores, nodes.ints(2)]), nodes.ints(1, 1, group, 1)])
            shape = nodes.add("Concat", [nodes.ints(0, 1, -1), keys], axis=0)
            masks[key] = nodes.add("Reshape", [each, shape])
        else:
            masks[key] = nodes.add("Unsqueeze", [scores, nodes.ints(1, 2)])
    return masks[key]
