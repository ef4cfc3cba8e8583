"""Quantized weights and inputs in standard ONNX: DequantizeLinear over typed initializers at the level of the graph.

Codes, scales and zero points keep their bytes in the weight file and get the types that say what they are. Where a
runtime has no kernels for 4-bit floats, `emulate` gives it the same bytes as uint8, and arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.formats import pack, unpack
from edgewright.graph import Producer, Stage, TensorSpec
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import int64_constant, number_of, replace, scalar_constant
from edgewright.graph.weights import ComputedWeight, FloatProducer
from edgewright.ops.cache_codes import CACHE_DTYPES
from edgewright.ops.decode import BLOCK, BLOCKS, FP4

#: Places of codes, scales, zero points and offsets among the inputs of the integer ops.
_INTEGER = {"QuantLinear": 1, "QuantEmbedding": 1, "Dequantize": 0}
#: Places of codes, scales and the global scale among the inputs of the other formats' ops.
_NARROW = {"Decode": 0, "DecodeRows": 1}
_TYPES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class DenseZeroPoints(Producer):
    """A producer's tensors and, besides, its 4-bit zero points without the gap that ends a row of an odd number."""

    def __init__(self, inner: Producer, name: str, blocks: int) -> None:
        self.inner, self.parts = inner, (inner,)
        self._index = next(i for i, spec in enumerate(inner.specs) if spec.name == name)
        self._blocks = blocks
        rows = inner.specs[self._index].shape[0]
        self.specs = (*inner.specs, TensorSpec(f"{name}.dense", "uint8", (-(-rows * blocks // 2),)))

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        # Two chunks of the same number of rows have an even number, which ends with a whole byte.
        makers = self.inner.chunks()
        while pair := tuple(itertools.islice(makers, 2)):
            yield lambda p=pair: self._joined([make() for make in p])  # type: ignore[misc]

    def _joined(self, chunks: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        arrays = tuple(np.concatenate(column) for column in zip(*chunks, strict=True))
        zero_points = unpack(arrays[self._index], 4)[:, : self._blocks]
        return (*arrays, pack(zero_points.reshape(-1), 4))


def dense_rows(data: np.ndarray, spec: TensorSpec, start: int, stop: int) -> np.ndarray:
    """Undo `DenseZeroPoints` for rows `[start, stop)` of the tensor `spec`, which has an odd number of blocks.

    `data` are the bytes of the dense tensor. What ends a row is zero. Raises ValueError when there are too few.
    """
    rows, width = spec.shape
    # An odd number of rows leaves half a byte, which is less than a row.
    blocks = 2 * width - 1
    zero_points = unpack(data, 4)[: rows * blocks].reshape(rows, blocks)
    return pack(zero_points[start:stop], 4)


def lower_integers(stage: Stage, *, tables: bool) -> None:
    """Replace `QuantLinear` and `Dequantize` by DequantizeLinear, followed by `Linear`, in place.

    `QuantEmbedding` too where `tables`: standard ops then dequantize a whole table before they pick its rows.
    Nodes whose weight is no initializer stay.
    """
    for node in list(stage.graph):
        if node.domain != EW or node.op_type not in _INTEGER or (node.op_type == "QuantEmbedding" and not tables):
            continue
        place = _INTEGER[node.op_type]
        codes, scales, zero_points, offsets = (*node.inputs[place:], None, None)[:4]
        if codes is None or codes.name not in stage.producers:
            continue
        nodes = _Nodes(stage, node)
        weight = _integer(nodes, codes, scales, zero_points, offsets)
        if node.op_type == "QuantLinear":
            bias = node.inputs[5] if len(node.inputs) > 5 else None
            nodes.add("Linear", [node.inputs[0], weight, bias], EW)
        elif node.op_type == "QuantEmbedding":
            nodes.add("Gather", [weight, node.inputs[0]], axis=0)
        nodes.replace()
    stage.drop_unused()


def lower_narrow(stage: Stage) -> None:
    """Replace `Decode`, `DecodeRows` and `RoundInput` with a static scale by the nodes of their bodies, in place.

    Scales get the shapes that DequantizeLinear wants. Nodes whose weight or scale is no initializer stay.
    """
    for node in list(stage.graph):
        if node.domain != EW:
            continue
        nodes = _Nodes(stage, node)
        if node.op_type == "RoundInput" and nodes.a["static"] and nodes.a["format"] in ("int8", "fp8"):
            _static_input(nodes, *(*node.inputs, None)[:3])
        elif node.op_type in _NARROW:
            codes, scales, whole = (*node.inputs[_NARROW[node.op_type] :], None)[:3]
            if codes is None or codes.name not in stage.producers:
                continue
            weight = _narrow(nodes, codes, scales, whole)
            if node.op_type == "DecodeRows":
                nodes.add("Gather", [weight, node.inputs[0]], axis=0)
        nodes.replace()
    stage.drop_unused()


def lower_handed_over(stage: Stage) -> None:
    """Replace `CacheRound` and `CacheRead` by one QuantizeLinear or DequantizeLinear each, in place."""
    for node in list(stage.graph):
        if node.domain != EW or node.op_type not in ("CacheRound", "CacheRead"):
            continue
        nodes = _Nodes(stage, node)
        x, scale = node.inputs
        assert scale is not None
        one = _sizes(scale) == (1,)
        inputs = [x, nodes.shaped(scale) if one else scale]
        axis = None if one else 1
        if node.op_type == "CacheRound":
            nodes.add("QuantizeLinear", inputs, axis=axis, output_dtype=CACHE_DTYPES[nodes.a["cache"]])
        else:
            nodes.add("DequantizeLinear", inputs, axis=axis)
        nodes.replace()
    stage.drop_unused()


def emulate(stage: Stage) -> None:
    """Give `Decode`, `DecodeRows` and `RoundInput` the bodies that need no kernels for 4-bit floats, in place."""
    for node in list(ir.traversal.RecursiveGraphIterator(stage.graph)):
        if node.domain != EW or node.op_type not in (*_NARROW, "RoundInput"):
            continue
        node.attributes["emulate"] = ir.AttrInt64("emulate", 1)
        if node.op_type in _NARROW:
            _as_bytes(stage, node)
    stage.drop_unused()


def _as_bytes(stage: Stage, node: ir.Node) -> None:
    """Let a node read the bytes of what its body takes as bytes."""
    kind, place = node.attributes["format"].value, _NARROW[node.op_type]
    wanted = [place] if kind in FP4 else []
    if node.op_type == "DecodeRows" and kind != "int8":
        wanted = [place, place + 1] if kind in BLOCKS else [place]
    for index in wanted:
        value = node.inputs[index]
        if value is None or value.name not in stage.producers or value.dtype == ir.DataType.UINT8:
            continue
        half = value.dtype == ir.DataType.FLOAT4E2M1
        shape = (lambda s: (*s[:-1], s[-1] // 2)) if half else (lambda s: s)
        node.replace_input_with(index, stage.alias(value, shape, ir.DataType.UINT8))


class _Nodes:
    """The nodes that take a node's place, in the making."""

    def __init__(self, stage: Stage, node: ir.Node) -> None:
        self.stage, self._node = stage, node
        self.a: dict[str, Any] = {name: attribute.value for name, attribute in node.attributes.items()}
        self._path = (node.name or "").rsplit("/", 1)[0]
        self._made: list[ir.Node] = []

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: Any) -> ir.Value:
        """Append a node; returns its output."""
        kind = self._node.op_type
        name = f"{self._path}/{kind}/{op_type}" + (f"_{len(self._made)}" if self._made else "")
        self._made.append(make_node(domain, op_type, inputs, attributes, name=name))
        return self._made[-1].outputs[0]

    def shaped(self, value: ir.Value, *shape: int) -> ir.Value:
        """Return a weight or scale with another shape over the same bytes."""
        return self.stage.alias(value, lambda _: shape)

    def cut(self, value: ir.Value, columns: int) -> ir.Value:
        """Cut the padding of rows off, if there is any."""
        width = self.a["in_features"]
        if columns == width:
            return value
        ends = [int64_constant(self.stage, [n], f"slice_{n}") for n in (0, width, 1)]
        return self.add("Slice", [value, *ends])

    def replace(self) -> None:
        """Put the nodes, if there are any, in the node's place; the last one's output stands for its output."""
        if self._made:
            replace(self.stage, self._node, self._made, self._made[-1].outputs)


def _sizes(value: ir.Value | None) -> tuple[int, ...]:
    assert value is not None
    assert value.shape is not None
    return tuple(int(d) for d in value.shape)  # type: ignore[arg-type]


def _integer(
    nodes: _Nodes, codes: ir.Value, scales: ir.Value | None, zero_points: ir.Value | None, offsets: ir.Value | None
) -> ir.Value:
    """Add the nodes that dequantize an integer weight; returns float32 `[rows, width]`."""
    bits, group = nodes.a["bits"], nodes.a["group"]
    rows, blocks = _sizes(scales)
    flat = nodes.stage.alias(codes, lambda _: (rows, blocks * group), _TYPES[bits])
    zeros = _zero_points(nodes.stage, zero_points, rows, blocks, bits)
    if nodes.a.get("scales") == "float16":
        scales = nodes.add("Cast", [scales], to=int(ir.DataType.FLOAT))
    weight = nodes.add("DequantizeLinear", [flat, scales, zeros], axis=1, block_size=group)
    if offsets is not None:
        blocked = int64_constant(nodes.stage, [0, blocks, group], f"blocks_{blocks}_{group}")
        by_block = nodes.add("Reshape", [weight, blocked])
        total = nodes.add("Add", [by_block, nodes.shaped(offsets, rows, blocks, 1)])
        weight = nodes.add("Reshape", [total, int64_constant(nodes.stage, [0, -1], "rows_of_2")])
    return nodes.cut(weight, blocks * group)


def _zero_points(stage: Stage, value: ir.Value | None, rows: int, blocks: int, bits: int) -> ir.Value:
    """Return zero points `[rows, blocks]` of the codes' type."""
    if value is None:
        return _default_zero_points(stage, rows, blocks, bits)
    assert value.name is not None
    shape = (rows, blocks)
    if bits == 4 and blocks % 2:
        dense = f"{value.name}.dense"
        if dense not in stage.graph.initializers:
            producer = DenseZeroPoints(stage.producers[value.name], value.name, blocks)
            others = {spec.name for spec in producer.inner.specs if spec.name in stage.producers}
            stage.producers.update(dict.fromkeys(others, producer))
            stage.add_tensor(producer, producer.specs[-1])
        value = stage.graph.initializers[dense]
    return stage.alias(value, lambda _: shape, _TYPES[bits])


def _default_zero_points(stage: Stage, rows: int, blocks: int, bits: int) -> ir.Value:
    """Return zero points in the middle of the codes, one initializer for all weights of a size."""
    middle = 0x88 if bits == 4 else 0x80
    size = -(-rows * blocks * bits // 8)
    table = _table(stage, f"zero_points_{bits}_{rows}x{blocks}", size, "uint8", lambda at: np.full_like(at, middle))
    return stage.alias(table, lambda _: (rows, blocks), _TYPES[bits])


def _table(stage: Stage, name: str, size: int, dtype: str, make: Callable[[np.ndarray], np.ndarray]) -> ir.Value:
    """Return a vector of whole numbers, made of its indices, in the weight file; one initializer a name."""
    if name not in stage.graph.initializers:
        weight = ComputedWeight(name, (size,), lambda first, stop: make(np.arange(first, stop)))
        stage.add_producer(FloatProducer(weight, dtype))
    return stage.graph.initializers[name]


def _narrow(nodes: _Nodes, codes: ir.Value, scales: ir.Value | None, whole: ir.Value | None) -> ir.Value:
    """Add the nodes that decode a weight of 8-bit numbers or 4-bit floats; returns float32 `[rows, width]`."""
    kind, scope = nodes.a["format"], nodes.a.get("scope")
    rows, columns = _sizes(codes)
    assert scales is not None
    if kind == "nvfp4":
        assert whole is not None
        steps = nodes.add("DequantizeLinear", [scales, nodes.shaped(whole)])
    elif kind in BLOCKS:
        steps = nodes.add("Cast", [scales], to=int(ir.DataType.FLOAT))
    elif scope == "tensor":
        return nodes.add("DequantizeLinear", [codes, nodes.shaped(scales)])
    elif scope == "channel":
        return nodes.add("DequantizeLinear", [codes, nodes.shaped(scales, rows)], axis=0)
    elif scope == "block":
        tiles = _table(nodes.stage, f"tiles_{rows}", rows, "int64", lambda row: row // BLOCK)
        steps = nodes.add("Gather", [scales, tiles], axis=0)
    else:
        steps = scales
    block = BLOCKS.get(kind, BLOCK)
    return nodes.cut(nodes.add("DequantizeLinear", [codes, steps], axis=1, block_size=block), columns)


def _static_input(nodes: _Nodes, x: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None) -> None:
    """Add QuantizeLinear and DequantizeLinear with a scale that was found by calibration."""
    if scale is None or scale.name not in nodes.stage.producers:
        return
    scalars = [nodes.shaped(scale)]
    dtype = ir.DataType.INT8 if nodes.a["format"] == "int8" else ir.DataType.FLOAT8E4M3FN
    typed: dict[str, Any] = {"output_dtype": int(dtype)}
    if zero_point is not None:
        number = number_of(nodes.stage, zero_point)
        if number is None:
            return
        scalars.append(scalar_constant(nodes.stage, number, np.int8, f"int8_{number}"))
        # It says the type; ONNX Runtime moves both to uint8 where it likes, but not an attribute beside it.
        typed = {}
    codes = nodes.add("QuantizeLinear", [x, *scalars], **typed)
    nodes.add("DequantizeLinear", [codes, *scalars])
