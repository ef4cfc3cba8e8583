"""Weights and inputs of narrow types as TensorRT reads them: DequantizeLinear over signed codes, and its own ops.

Its integers have no zero points and no offsets: what a block lacks by that is a small product of its own, of the sums
of the inputs of each block. Scales of 4-bit and 8-bit blocks are narrowed to the body's type in the graph, which the
builder does once, so that decoding is a part of the product; scales of what is computed on codes stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from edgewright.dialects._qdq import lower_narrow
from edgewright.errors import UnsupportedFormatError
from edgewright.formats import unpack
from edgewright.graph import Producer, Stage, TensorSpec
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import int64_constant, module_of, number_of, replace
from edgewright.graph.stage import IR_DTYPES
from edgewright.graph.weights import ComputedWeight, FloatProducer
from edgewright.ops.decode import BLOCKS

#: The domain of the ops that only TensorRT's parser knows.
TRT = "trt"
_INTEGER = {"QuantLinear": 1, "QuantEmbedding": 1, "Dequantize": 0}
_TYPES = {4: ir.DataType.INT4, 8: ir.DataType.INT8}


class SignedProducer(Producer):
    """Integer codes as TensorRT has them, around zero, and their scales, which `dtype` must be able to hold.

    `corrections`, where codes have zero points or offsets, are what must be added to every value of a block.
    """

    def __init__(self, inner: Producer, bits: int, group: int, dtype: str, module: str) -> None:
        self.inner, self.parts = inner, (inner,)
        self._bits, self._group, self._module = bits, group, module
        kinds = [spec.name.rsplit(".", 1)[-1] for spec in inner.specs]
        self._places = {kind: place for place, kind in enumerate(kinds)}
        codes, scales = (inner.specs[self._places[kind]] for kind in ("codes", "scales"))
        rows, blocks = scales.shape
        self._kind = TensorSpec("", dtype, ()).numpy_dtype
        specs = [
            TensorSpec(f"{codes.name}.signed", f"int{bits}", (rows, blocks * group)),
            TensorSpec(f"{scales.name}.signed", scales.dtype, (rows, blocks)),
        ]
        if self._places.keys() & {"zero_points", "offsets"}:
            specs.append(TensorSpec(f"{codes.name}.corrections", "float32", (rows, blocks)))
        self.specs = tuple(specs)

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for chunk in self.inner.chunks():
            yield lambda make=chunk: self._made(make())  # type: ignore[misc]

    def _made(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        codes, scales = (arrays[self._places[kind]] for kind in ("codes", "scales"))
        rows, blocks = scales.shape
        signed = codes.reshape(rows, -1) ^ np.uint8(0x88 if self._bits == 4 else 0x80)
        made = [signed if self._bits == 4 else signed.view(np.int8), self._held(scales)]
        if len(self.specs) > 2:
            added = np.zeros((rows, blocks), np.float32)
            if "zero_points" in self._places:
                points = arrays[self._places["zero_points"]].reshape(rows, -1)
                points = unpack(points, 4)[:, :blocks] if self._bits == 4 else points
                middle = np.float32(1 << (self._bits - 1))
                added += (middle - points.astype(np.float32)) * scales.astype(np.float32)
            if "offsets" in self._places:
                added += arrays[self._places["offsets"]]
            made.append(self._held(added))
        return tuple(made)

    def _held(self, values: np.ndarray) -> np.ndarray:
        """Return the values, which the body's type must be able to hold."""
        with np.errstate(over="ignore"):
            narrow = values.astype(self._kind)
        if not np.isfinite(narrow.astype(np.float32)).all():
            raise UnsupportedFormatError(
                f"{self._module} has scales of {float(np.abs(values).max()):.4g}, which {self._kind} can't hold: keep "
                "it in float16 with a rule of the recipe."
            )
        return values


def lower_weights(stage: Stage, body: str) -> None:
    """Spell every quantized weight and input, in place; raises UnsupportedFormatError with the layer."""
    _refuse(stage)
    made: dict[int, tuple[ir.Value, ...]] = {}
    for node in list(stage.graph):
        if node.domain != EW:
            continue
        if node.op_type in _INTEGER:
            _integer(stage, node, body, made)
        elif node.op_type == "RoundInput":
            _vendor_input(stage, node, body)
        elif node.op_type in ("Decode", "DecodeRows") and node.attributes["format"].value == "mxe4m3":
            _mx_weight(stage, node, body)
    lower_narrow(stage)
    stage.drop_unused()


def _refuse(stage: Stage) -> None:
    """Raise UnsupportedFormatError, with the layer, for what TensorRT has no ops for."""
    for node in stage.graph:
        if node.domain != EW:
            continue
        what = None
        kind = node.attributes["format"].value if "format" in node.attributes else ""
        if node.op_type in ("Decode", "DecodeRows") and kind == "mxe2m1":
            what = "MXFP4 weights: use NVFP4"
        elif node.op_type == "RoundInput":
            what = _odd_input(stage, node, kind)
        if what is not None:
            raise UnsupportedFormatError(f"{module_of(node)} ({node.op_type}): TensorRT has no {what}.")


def _odd_input(stage: Stage, node: ir.Node, kind: str) -> str | None:
    """Return which inputs TensorRT can't round, and what can be used instead; None where it can."""
    static = bool(node.attributes["static"].value)
    if kind in ("int4", "mxfp4"):
        return f"{kind} activations: use fp8 or nvfp4"
    if kind != "mxfp8" and not static:
        return f"{kind} activations with scales that are found while it runs: use mode static"
    if kind in ("nvfp4", "mxfp8") and (width := _width(node)) is not None and width % _block(kind):
        return f"{kind} activations of {width} columns, no multiple of {_block(kind)}: keep the layer in float16"
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is not None and number_of(stage, zero) != 0:
        return f"{kind} activations with a zero point: use symmetric ones"
    return None


def _block(kind: str) -> int:
    return BLOCKS[{"nvfp4": "nvfp4", "mxfp8": "mxe4m3"}[kind]]


def _width(node: ir.Node) -> int | None:
    """Return the columns of what a rounding gives, as the linear that reads it knows them."""
    for use in node.outputs[0].uses():
        weight = use.node.inputs[1] if use.node.op_type in ("Linear", "QuantLinear") else None
        maker = weight.producer() if weight is not None else None
        if maker is not None and "in_features" in maker.attributes:
            return int(maker.attributes["in_features"].value)
        if weight is not None and weight.shape is not None and use.node.op_type == "Linear":
            return int(weight.shape[-1])  # type: ignore[arg-type]
    return None


def _integer(stage: Stage, node: ir.Node, body: str, made: dict[int, tuple[ir.Value, ...]]) -> None:
    """Spell an integer weight: DequantizeLinear, and a product with the sums of blocks where it has corrections."""
    place = _INTEGER[node.op_type]
    codes = node.inputs[place]
    assert codes is not None
    producer = stage.producers.get(codes.name or "")
    bits, group, width = (int(node.attributes[name].value) for name in ("bits", "group", "in_features"))
    module = module_of(node)
    if producer is None:
        raise UnsupportedFormatError(f"{module} ({node.op_type}): its codes are made by the graph; please report it.")
    if id(producer) not in made:
        made[id(producer)] = stage.add_producer(SignedProducer(producer, bits, group, body, module))
    signed, scales, *rest = made[id(producer)]
    name = node.name or node.op_type
    # The parser refuses int8 scales below zero, and of zero, where they are initializers: it reads the result of an op.
    kind = IR_DTYPES[body]
    op, how = ("Identity", {}) if scales.dtype == kind else ("Cast", {"to": int(kind)})
    new: list[ir.Node] = []
    if bits == 8 or op == "Cast":
        new.append(make_node("", op, [scales], how, name=f"{name}/scales"))
        scales = new[0].outputs[0]
    blocks = {"axis": 1, "block_size": group}
    new.append(make_node("", "DequantizeLinear", [signed, scales], blocks, name=f"{name}/decode"))
    weight = new[-1].outputs[0]
    if rest and node.op_type != "QuantLinear":
        new += _corrected(stage, weight, rest[0], group, name)
        weight = new[-1].outputs[0]
    assert signed.shape is not None
    if signed.shape[1] != width:
        ends = [int64_constant(stage, [n], f"slice_{n}") for n in (0, width, 1)]
        new.append(make_node("", "Slice", [weight, *ends], {}, name=f"{name}/cut"))
        weight = new[-1].outputs[0]
    if node.op_type == "QuantEmbedding":
        new.append(make_node("", "Gather", [weight, node.inputs[0]], {"axis": 0}, name=name))
    elif node.op_type == "QuantLinear":
        bias = node.inputs[5] if len(node.inputs) > 5 else None
        product = make_node(EW, "Linear", [node.inputs[0], weight, bias], {}, name=name)
        new.append(product)
        if rest:
            new += _share(stage, node, product, rest[0], group, body)
    replace(stage, node, new, new[-1].outputs)


def _corrected(stage: Stage, weight: ir.Value, rest: ir.Value, group: int, name: str) -> list[ir.Node]:
    """Return the nodes that add to every value of a block what it lacks."""
    by_block = int64_constant(stage, [0, -1, group], f"blocks_of_{group}")
    rows, last = int64_constant(stage, [0, -1], "rows_of_2"), int64_constant(stage, [2], "axis_2")
    apart = make_node("", "Reshape", [weight, by_block], {}, name=f"{name}/blocks")
    column = make_node("", "Unsqueeze", [rest, last], {}, name=f"{name}/corrections")
    total = make_node(EW, "Moved", [apart.outputs[0], column.outputs[0]], {}, name=f"{name}/corrected")
    return [apart, column, total, make_node("", "Reshape", [total.outputs[0], rows], {}, name=f"{name}/rows")]


def _share(stage: Stage, node: ir.Node, product: ir.Node, rest: ir.Value, group: int, body: str) -> list[ir.Node]:
    """Return the nodes that add the product of the inputs' sums by block and the corrections."""
    x, name = node.inputs[0], node.name or ""
    width = int(node.attributes["in_features"].value)
    table_name = f"block_sums_{width}_{group}"
    if table_name not in stage.graph.initializers:
        blocks = -(-width // group)
        table = ComputedWeight(
            table_name,
            (width, blocks),
            lambda a, b: (np.arange(a, b)[:, None] // group == np.arange(blocks)).astype(np.float32),
        )
        stage.add_producer(FloatProducer(table, body))
    sums = make_node("", "MatMul", [x, stage.graph.initializers[table_name]], {}, name=f"{name}/sums")
    part = make_node(EW, "Linear", [sums.outputs[0], rest], {}, name=f"{name}/share")
    total = make_node(EW, "Moved", [product.outputs[0], part.outputs[0]], {}, name=f"{name}/add")
    return [sums, part, total]


def _vendor_input(stage: Stage, node: ir.Node, body: str) -> None:
    """Spell the rounding of inputs in blocks, whose scales are found while it runs, with TensorRT's own ops."""
    kind, name = node.attributes["format"].value, node.name or ""
    x, scale = (*node.inputs, None)[:2]
    if kind == "nvfp4":
        assert scale is not None
        whole = stage.alias(scale, lambda _: ())
        how = {"axis": -1, "block_size": BLOCKS["nvfp4"], "scale_type": int(ir.DataType.FLOAT8E4M3FN)}
        codes = make_node(TRT, "TRT_FP4DynamicQuantize", [x, whole], how, outputs=2, name=f"{name}/quantize")
        steps = make_node("", "DequantizeLinear", [codes.outputs[1], whole], {}, name=f"{name}/scales")
        blocks = {"axis": -1, "block_size": BLOCKS["nvfp4"]}
        back = make_node("", "DequantizeLinear", [codes.outputs[0], steps.outputs[0]], blocks, name=name)
        new = [codes, steps, back]
    elif kind == "mxfp8":
        how = {"axis": -1, "block_size": BLOCKS["mxe4m3"]}
        more = {**how, "output_dtype": int(ir.DataType.FLOAT8E4M3FN)}
        codes = make_node(TRT, "TRT_MXFP8DynamicQuantize", [x], more, outputs=2, name=f"{name}/quantize")
        read = {**how, "output_dtype": int(IR_DTYPES[body])}
        new = [codes, make_node(TRT, "TRT_MXFP8DequantizeLinear", codes.outputs, read, name=name)]
    else:
        return
    stage.opset_imports[TRT] = 1
    replace(stage, node, new, new[-1].outputs)


def _mx_weight(stage: Stage, node: ir.Node, body: str) -> None:
    """Spell an MXFP8 weight, whose powers of two TensorRT takes as bytes."""
    place = int(node.op_type == "DecodeRows")
    codes, scales = node.inputs[place], node.inputs[place + 1]
    assert codes is not None
    assert codes.shape is not None
    assert scales is not None
    name, width = node.name or "", int(node.attributes["in_features"].value)
    exponents = stage.alias(scales, lambda shape: shape, ir.DataType.UINT8)
    how = {"axis": -1, "block_size": BLOCKS["mxe4m3"], "output_dtype": int(IR_DTYPES[body])}
    new = [make_node(TRT, "TRT_MXFP8DequantizeLinear", [codes, exponents], how, name=f"{name}/decode")]
    if codes.shape[1] != width:
        ends = [int64_constant(stage, [n], f"slice_{n}") for n in (0, width, 1)]
        new.append(make_node("", "Slice", [new[-1].outputs[0], *ends], {}, name=f"{name}/cut"))
    if node.op_type == "DecodeRows":
        new.append(make_node("", "Gather", [new[-1].outputs[0], node.inputs[0]], {"axis": 0}, name=name))
    stage.opset_imports[TRT] = 1
    replace(stage, node, new, new[-1].outputs)
