"""Key/value caches as TensorRT has them: of a fixed length, in the body's type, written where they stand.

TensorScatter is TensorRT's own update of a cache of floats, which must be an input of the graph; codes are scattered by
their places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx
import onnx.parser
import onnx_ir as ir

from edgewright.contract import TensorContract
from edgewright.dialects.onnx_qdq import inline
from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import scalar_constant
from edgewright.graph.stage import IR_DTYPES, OPSET
from edgewright.ops import OPS
from edgewright.ops._body import ints
from edgewright.ops.cache_codes import CACHE_DTYPES


def fix_caches(stage: Stage, body: str) -> None:
    """Give the caches their length and type, in contract and graph, in place."""
    contract = stage.contract
    if not contract.kv:
        return
    length = contract.bounds["capacity"][1]
    names = {name for kv in contract.kv for name in (kv.past_key, kv.past_value, kv.present_key, kv.present_value)}
    dtype = body if contract.kv_dtype == "float32" else contract.kv_dtype

    def changed(tensors: Sequence[TensorContract]) -> tuple[TensorContract, ...]:
        return tuple(dataclasses.replace(t, dtype=dtype) if t.name in names else t for t in tensors)

    for value in (*stage.graph.inputs, *stage.graph.outputs):
        if value.name in names:
            assert value.shape is not None
            value.shape = ir.Shape([length if index == 2 else dim for index, dim in enumerate(value.shape)])
            value.type = ir.TensorType(IR_DTYPES[dtype])
    stage.contract = dataclasses.replace(
        contract,
        inputs=changed(contract.inputs),
        outputs=changed(contract.outputs),
        bounds={**contract.bounds, "capacity": (length, length)},
        kv_dtype=dtype,
        kv_in_place=True,
    )


def read_codes(stage: Stage, node: ir.Node) -> None:
    """Let an `Attention` over codes read floats that a DequantizeLinear makes of them, in place."""
    inputs = [*node.inputs, *[None] * (10 - len(node.inputs))]
    if inputs[8] is None:
        return
    for place, scale in ((3, inputs[8]), (4, inputs[9])):
        codes = inputs[place]
        assert scale is not None
        value, how = _scale(stage, scale)
        read = make_node("", "DequantizeLinear", [codes, value], how, name=f"{node.name}/read_{place}")
        stage.graph.insert_before(node, [read])
        node.replace_input_with(place, read.outputs[0])
    node.resize_inputs(8)


def write_codes(stage: Stage, node: ir.Node) -> list[ir.Node]:
    """Put the nodes of a `CacheWrite` in its place; returns them."""
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    how = ""
    for place in (5, 6):
        scale = node.inputs[place]
        assert scale is not None
        value, attributes = _scale(stage, scale)
        node.replace_input_with(place, value)
        how = "axis = 1" if attributes else ""
    op = OPS["CacheWrite"]
    kind = f"output_dtype = {CACHE_DTYPES[a['cache']]}"
    rounded = f"QuantizeLinear<{', '.join(filter(None, (how, kind)))}>"
    read = f"DequantizeLinear<{how}>" if how else "DequantizeLinear"
    text = "i0 = Constant<value = int64 {0}>()\ni1 = Constant<value = int64 {1}>()\n" + ints("one", 1) + ints("last", 3)
    text += "seq_v = Shape<start = 1, end = 2>(k)\nseq = Squeeze(seq_v)\nsteps = Range(i0, seq, i1)\n"
    text += "base = Unsqueeze(past_lengths, one)\nplaces = Add(base, steps)\n" + ints("around", 1, 3)
    text += "slots = Unsqueeze(places, around)\n"
    for name, size in (("key", "head_dim"), ("value", "value_dim")):
        text += ints(f"{name}_heads", 0, 0, a["kv_heads"], a[size]) + f"{name}_4 = Reshape({name[0]}, {name}_heads)\n"
        text += f"{name}_t = Transpose<perm = [0, 2, 1, 3]>({name}_4)\n"
        text += f"{name}_shape = Shape({name}_t)\n{name}_slots = Expand(slots, {name}_shape)\n"
        by = f"{name[0]}_scale"
        if a["cache"] == "int8":
            text += f"{name}_q = {rounded}({name}_t, {by})\n"
            text += f"present_{name} = ScatterElements<axis = 2>(past_{name}, {name}_slots, {name}_q)\n"
            continue
        # No op moves FP8: floats are scattered. Rounding them again gives every code that was there before.
        text += f"{name}_old = {read}(past_{name}, {by})\n"
        text += f"{name}_all = ScatterElements<axis = 2>({name}_old, {name}_slots, {name}_t)\n"
        text += f"present_{name} = {rounded}({name}_all, {by})\n"
    head = f'<opset_import: ["" : {OPSET}], domain: "{EW}">\n'
    signature = f"CacheWrite ({', '.join(op.inputs)}) => ({', '.join(op.outputs)})"
    return inline(stage, node, onnx.parser.parse_function(f"{head}{signature} {{\n{text}}}"))


def _scale(stage: Stage, scale: ir.Value) -> tuple[ir.Value, dict[str, int]]:
    """Return the scale of a cache as Q/DQ takes it, and the axis it is for: none where the tensor has one."""
    assert scale.shape is not None
    if tuple(scale.shape) == (1,):
        return stage.alias(scale, lambda _: ()), {}
    return scale, {"axis": 1}


def scale_queries(stage: Stage, node: ir.Node) -> None:
    """Multiply the queries, in float32, and not their products with keys, which could be too large for float16."""
    scale = float(node.attributes["scale"].value)
    if scale == 1.0:
        return
    q = node.inputs[0]
    number = scalar_constant(stage, scale, "float32", f"scale_{scale!r}")
    scaled = make_node("", "Mul", [q, number], {}, name=f"{node.name}/scaled")
    stage.graph.insert_before(node, [scaled])
    node.replace_input_with(0, scaled.outputs[0])
    node.attributes["scale"] = ir.AttrFloat32("scale", 1.0)
