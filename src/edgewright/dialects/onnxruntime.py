"""The onnxruntime dialect: fused kernels of ONNX Runtime's CPU provider, key/value cache updated in place.

`Attention` with its rope, and with what writes its int8 cache, becomes `GroupQueryAttention`, `QuantLinear`
`MatMulNBits` with int8 activations, residual additions join the norm that follows. What has no rule keeps its
reference body.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from edgewright.dialects._ort_cache import kernel_formats, kernel_scales, own_write, query_key_value
from edgewright.dialects._ort_experts import lower_experts
from edgewright.dialects._ort_int8 import lower_int8
from edgewright.dialects._ort_policy import is_policy, lower_policy, note_apart, pack_mixed_qkv
from edgewright.dialects._ort_state import STATE_RULES
from edgewright.dialects._qdq import lower_handed_over
from edgewright.dialects.portable import attach_bodies
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.outside import EMBEDDINGS
from edgewright.graph.rewrite import int64_constant, made_by, merge_decoded, merge_linears, replace
from edgewright.graph.weights import ComputedWeight

MICROSOFT = "com.microsoft"

#: MatMulNBits' `accuracy_level`: inputs rounded to int8 per block, or kept in float32.
_INT8_INPUTS, _FLOAT32_INPUTS = 4, 1


def lower(stage: Stage) -> Stage:
    """Lower every node there is a rule for, in place; returns the stage with its contract adapted."""
    if stage.fuse_linears:
        apart = _merge_gate_and_up(stage) + pack_mixed_qkv(stage)
        note_apart(stage, apart)
    _fuse_residual_norms(stage)
    lengths = _Lengths(stage)
    kept = set()
    for node in [node for node in stage.graph if node.domain == EW and node.op_type == "Attention"]:
        if reason := _keeps_body(node):
            kept.add(reason)
            continue
        _pack_qkv(stage, node)
        _attention(stage, node, lengths)
    stage.notes += [f"attention keeps its reference body: {reason}" for reason in sorted(kept)]
    lower_int8(stage)
    lower_policy(stage)
    lower_handed_over(stage)
    stage.drop_unused()
    for node in list(stage.graph):
        rule = _RULES.get(node.op_type) if node.domain == EW else None
        if rule is not None:
            rule(stage, node)
    stage.opset_imports[MICROSOFT] = 1
    stage.drop_unused()
    stage.graph.sort()
    # Both the kernel and the reference body's TensorScatter write into a cache that past and present share.
    stage.contract = dataclasses.replace(stage.contract, kv_in_place=True)
    return attach_bodies(stage, emulate=True)


def _keeps_body(node: ir.Node) -> str | None:
    """Return why the attention kernel can't take a node, or None."""
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    inputs = (*node.inputs, None, None)
    write = own_write(node)
    if a["head_dim"] % 8:
        return "the head size is no multiple of 8"
    if a["value_dim"] != a["head_dim"]:
        return "keys and values have different widths"
    if inputs[1] is None and write is None:
        return "it reads another layer's cache"
    if write is not None and write.attributes["cache"].value != "int8":
        return "the kernel has no FP8 cache"
    if inputs[7] is not None:
        return "a table is added to the scores"
    return None


class _Lengths:
    """The int32 values GroupQueryAttention counts with, made once a graph: last position per row, longest total."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._values: tuple[ir.Value, ir.Value] | None = None

    def get(self) -> tuple[ir.Value, ir.Value]:
        """Return seqlens_k `[batch]` (total length - 1) and the longest total as a scalar."""
        if self._values is None:
            inputs = {value.name: value for value in self._stage.graph.inputs}
            g = GraphBuilder(self._stage)
            before = list(self._stage.graph)
            with g.scope("lengths"):
                one = int64_constant(self._stage, [1], "one")
                fed = inputs.get("input_ids", inputs.get(EMBEDDINGS))
                seq = g.op("Shape", fed, start=1, end=2)
                last = g.op("Sub", g.op("Add", inputs["past_lengths"], seq), one)
                seqlens = g.op("Cast", last, to=int(ir.DataType.INT32))
                longest = g.op("Add", g.op("ReduceMax", last, keepdims=0), one)
                scalar = int64_constant(self._stage, [], "scalar_shape")
                total = g.op("Cast", g.op("Reshape", longest, scalar), to=int(ir.DataType.INT32))
            new = [node for node in self._stage.graph if node not in before]
            for node in new:
                self._stage.graph.remove(node)
            self._stage.graph.insert_before(before[0], new)
            self._values = seqlens, total
        return self._values


def _merge_gate_and_up(stage: Stage) -> int:
    """Join the gate and up products: one launch less a layer, measured 4 to 10 % of a decode step.

    Returns how many could not be joined.
    """
    apart, policy = 0, is_policy(stage)
    for node in list(stage.graph):
        if node.domain == EW and node.op_type == "GatedActivation":
            linears = [value.producer() for value in node.inputs if value is not None]
            if len(linears) == 2 and all(linear is not None for linear in linears):
                found = [linear for linear in linears if linear is not None]
                apart += not (merge_linears(stage, found) or (policy and merge_decoded(stage, found)))
    return apart


def _pack_qkv(stage: Stage, attention: ir.Node) -> None:
    """Join the q, k and v products where the kernel takes their result as it is.

    With a norm in between, the pieces would have to be copied apart again.
    """
    values = []
    for value in query_key_value(attention):
        rope = made_by(value, "Rope")
        values.append(rope.inputs[0] if rope is not None else value)
    linears = [value.producer() for value in values if value is not None]
    if len(linears) == 3 and all(linear is not None for linear in linears):
        merge_linears(stage, [linear for linear in linears if linear is not None])


def _attention(stage: Stage, node: ir.Node, lengths: _Lengths) -> None:
    """GroupQueryAttention, with rope taken in, and q/k/v packed where one split made all three."""
    write = own_write(node)
    past_key, past_value = node.inputs[3:5] if write is None else write.inputs[2:4]
    sinks = (*node.inputs, None)[6]
    q, k, v = query_key_value(node)
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    rope, k_rope = made_by(q, "Rope"), made_by(k, "Rope")
    # The kernel counts positions itself; where the rope table has two parts they are not the table's rows.
    two_parts = any(value.name == "total_lengths" for value in stage.graph.inputs)
    if rope is not None and k_rope is not None and not two_parts and _kernel_takes(rope, k_rope):
        q, k = rope.inputs[0], k_rope.inputs[0]
        cos, sin = rope.inputs[2:4]
        interleaved = rope.attributes["interleaved"].value
    else:
        cos = sin = interleaved = None
    split = made_by(q, "Split", "")
    if split is not None and list(split.outputs) == [q, k, v]:
        q, k, v = split.inputs[0], None, None
    seqlens, total = lengths.get()
    new = make_node(
        MICROSOFT,
        "GroupQueryAttention",
        [q, k, v, past_key, past_value, seqlens, total, cos, sin, None, None, sinks, *kernel_scales(stage, write)],
        {
            "num_heads": a["heads"],
            "kv_num_heads": a["kv_heads"],
            "scale": a["scale"],
            "softcap": a.get("softcap"),
            "local_window_size": a.get("window") or -1,
            "do_rotary": int(cos is not None),
            "rotary_interleaved": interleaved,
            **kernel_formats(write),
        },
        outputs=3,
        name=node.name or "",
    )
    if write is None:
        replace(stage, node, [new], new.outputs)
    else:
        old = [node.outputs[0], *write.outputs]
        ir.convenience.replace_nodes_and_values(stage.graph, node, [node, write], [new], old, new.outputs)


def _kernel_takes(a: ir.Node, b: ir.Node) -> bool:
    """Tell whether the attention kernel can apply the ropes of q and k: one rope, its table a multiple of 8 wide."""
    same = all(a.attributes[k].value == b.attributes[k].value for k in ("rotary_dim", "interleaved"))
    return same and a.inputs[1:] == b.inputs[1:] and a.attributes["rotary_dim"].value % 16 == 0


def _fuse_residual_norms(stage: Stage) -> None:
    """Add followed by RMSNorm of the whole width is one SkipSimplifiedLayerNormalization that also gives the sum."""
    for norm in list(stage.graph):
        if norm.domain != EW or norm.op_type != "RMSNorm" or norm.attributes.get("group") is not None:
            continue
        if len(norm.inputs) < 2:  # no weight
            continue
        add = made_by(norm.inputs[0], "Add", "")
        if add is None or any(value is None or value.is_initializer() for value in add.inputs):
            continue
        if norm.outputs[0].is_graph_output() or add.outputs[0].is_graph_output():
            continue
        name = norm.name or ""
        skip = make_node(
            MICROSOFT,
            "SkipSimplifiedLayerNormalization",
            [add.inputs[0], add.inputs[1], norm.inputs[1]],
            {"epsilon": norm.attributes["epsilon"].value},
            outputs=[f"{name}:normed", "", "", f"{name}:sum"],
            name=name,
        )
        stage.graph.insert_before(add, [skip])
        ir.convenience.replace_all_uses_with(norm.outputs[0], skip.outputs[0])
        ir.convenience.replace_all_uses_with(add.outputs[0], skip.outputs[3])
        stage.graph.remove([norm], safe=True)
        stage.graph.remove([add], safe=True)


def _norm(stage: Stage, node: ir.Node) -> None:
    """RMSNorm and LayerNorm, by groups between two reshapes; without weight, or with one a group, the body stays."""
    x, weight, bias = (*node.inputs, None, None)[:3]
    if weight is None or weight.shape is None or len(weight.shape) != 1:
        return
    group = node.attributes.get("group")
    attributes = {"axis": -1, "epsilon": node.attributes["epsilon"].value, "stash_type": 1}
    name = node.name or ""
    kind = "SimplifiedLayerNormalization" if node.op_type == "RMSNorm" else "LayerNormalization"
    if group is None:
        new = [make_node("", kind, [x, weight, bias], attributes, name=name)]
    else:
        heads = int64_constant(stage, [0, 0, -1, group.value], f"heads_{group.value}")
        flat = int64_constant(stage, [0, 0, -1], "flat")
        split = make_node("", "Reshape", [x, heads], {}, name=f"{name}/split")
        norm = make_node("", kind, [split.outputs[0], weight, bias], attributes, name=name)
        new = [split, norm, make_node("", "Reshape", [norm.outputs[0], flat], {}, name=f"{name}/join")]
    replace(stage, node, new, new[-1].outputs)


def _linear(stage: Stage, node: ir.Node) -> None:
    x, weight, bias = (*node.inputs, None)[:3]
    new = [make_node(MICROSOFT, "FusedMatMul", [x, weight], {"transB": 1}, name=node.name or "")]
    if bias is not None:
        new.append(make_node("", "Add", [new[0].outputs[0], bias], {}, name=f"{node.name}/bias"))
    replace(stage, node, new, new[-1].outputs)


def _embedding(stage: Stage, node: ir.Node) -> None:
    ids, table = node.inputs
    new = make_node("", "Gather", [table, ids], {"axis": 0}, name=node.name or "")
    replace(stage, node, [new], new.outputs)


def _gated_activation(stage: Stage, node: ir.Node) -> None:
    gate, up = node.inputs
    act = _kernel(node.attributes["activation"].value, gate, f"{node.name}/act")
    if act is not None:
        new = [act, make_node("", "Mul", [act.outputs[0], up], {}, name=node.name or "")]
        replace(stage, node, new, new[-1].outputs)


def _activation(stage: Stage, node: ir.Node) -> None:
    act = _kernel(node.attributes["activation"].value, node.inputs[0], node.name or "")
    if act is not None:
        replace(stage, node, [act], act.outputs)


def _kernel(kind: str, x: ir.Value | None, name: str) -> ir.Node | None:
    """Return the node of one kernel that computes an activation, or None."""
    if kind in ("silu", "quick_gelu"):
        return make_node(MICROSOFT, "QuickGelu", [x], {"alpha": 1.0 if kind == "silu" else 1.702}, name=name)
    if kind in ("gelu", "gelu_tanh"):
        approximate = "tanh" if kind == "gelu_tanh" else "none"
        return make_node("", "Gelu", [x], {"approximate": approximate}, name=name)
    return None


def _quant_linear(stage: Stage, node: ir.Node) -> None:
    x, codes, scales, zero_points, offsets, bias = (*node.inputs, None, None, None)[:6]
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    name = node.name or ""
    wide, scales = _wide_scales(node, scales)
    product = make_node(
        MICROSOFT,
        "MatMulNBits",
        [x, codes, scales, zero_points, None, bias],
        {
            "K": a["in_features"],
            "N": a["out_features"],
            "bits": a["bits"],
            "block_size": a["group"],
            "accuracy_level": _INT8_INPUTS if a["int8_activations"] else _FLOAT32_INPUTS,
        },
        name=name,
    )
    new = [*wide, product]
    if offsets is not None:
        # The offset of a block multiplies the sum of its inputs: a small product of its own.
        assert x is not None
        table = _block_sums(stage, a["in_features"], a["group"])
        sums = next(
            (use.node for use in x.uses() if use.node.op_type == "MatMul" and use.node.inputs[1] is table), None
        )
        if sums is None:  # linears of one input share its sums
            sums = make_node("", "MatMul", [x, table], {}, name=f"{name}/sums")
            new.append(sums)
        share = make_node(MICROSOFT, "FusedMatMul", [sums.outputs[0], offsets], {"transB": 1}, name=f"{name}/offsets")
        total = make_node("", "Add", [product.outputs[0], share.outputs[0]], {}, name=f"{name}/add")
        new += [share, total]
    replace(stage, node, new, new[-1].outputs)


def _wide_scales(node: ir.Node, scales: ir.Value | None) -> tuple[list[ir.Node], ir.Value | None]:
    """Return scales as float32, with the node that makes them so: kernels want the type of their other floats."""
    if node.attributes.get("scales") is None or node.attributes["scales"].value != "float16":
        return [], scales
    cast = make_node("", "Cast", [scales], {"to": int(ir.DataType.FLOAT)}, name=f"{node.name}/scales")
    return [cast], cast.outputs[0]


def _block_sums(stage: Stage, width: int, group: int) -> ir.Value:
    """A 0/1 matrix `[width, blocks]` that sums the elements of each block; shared by all linears of that width."""
    blocks = -(-width // group)
    table = ComputedWeight(
        f"block_sums_{width}_{group}",
        (width, blocks),
        lambda a, b: (np.arange(a, b)[:, None] // group == np.arange(blocks)).astype(np.float32),
    )
    return stage.float_value(table)


def _quant_embedding(stage: Stage, node: ir.Node) -> None:
    """GatherBlockQuantized over the codes as a matrix; it shares the bytes with a tied head."""
    ids, codes, scales, zero_points, offsets = (*node.inputs, None, None)[:5]
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    assert codes is not None
    flat = stage.alias(codes, lambda shape: (shape[0], shape[1] * shape[2]))
    name = node.name or ""
    wide, scales = _wide_scales(node, scales)
    gather = make_node(
        MICROSOFT,
        "GatherBlockQuantized",
        [flat, ids, scales, zero_points],
        {"bits": a["bits"], "block_size": a["group"], "gather_axis": 0, "quantize_axis": 1},
        name=name,
    )
    new = [*wide, gather]
    if offsets is not None:
        last = int64_constant(stage, [-1], "last_axis")
        blocked = int64_constant(stage, [0, 0, -1, a["group"]], f"heads_{a['group']}")
        rows = make_node("", "Reshape", [gather.outputs[0], blocked], {}, name=f"{name}/blocks")
        picked = make_node("", "Gather", [offsets, ids], {"axis": 0}, name=f"{name}/offsets")
        column = make_node("", "Unsqueeze", [picked.outputs[0], last], {}, name=f"{name}/wide")
        total = make_node("", "Add", [rows.outputs[0], column.outputs[0]], {}, name=f"{name}/add")
        flat_shape = int64_constant(stage, [0, 0, -1], "flat")
        new += [rows, picked, column, total]
        new.append(make_node("", "Reshape", [total.outputs[0], flat_shape], {}, name=f"{name}/join"))
    if a["in_features"] % a["group"]:
        ends = [int64_constant(stage, [n], f"slice_{n}") for n in (0, a["in_features"], -1)]
        new.append(make_node("", "Slice", [new[-1].outputs[0], *ends], {}, name=f"{name}/cut"))
    replace(stage, node, new, new[-1].outputs)


_RULES: dict[str, Callable[[Stage, ir.Node], None]] = {
    "RMSNorm": _norm,
    "LayerNorm": _norm,
    "Experts": lower_experts,
    "Linear": _linear,
    "Embedding": _embedding,
    "Activation": _activation,
    "GatedActivation": _gated_activation,
    "QuantLinear": _quant_linear,
    "QuantEmbedding": _quant_embedding,
    **STATE_RULES,
}
