"""A type for every float of a graph: what is computed in the body's type, what in float32, and the Casts between them.

TensorRT takes a strongly typed graph at its word, so nothing is left to be guessed. Products are computed in the type
of their weights, or in the body's where these are codes or where there are none; what moves values keeps their type;
all else (norms, softmax, rotations, the residual stream, recurrences) is float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np
import onnx_ir as ir

from edgewright.graph import Stage, TensorSpec
from edgewright.graph.builder import EW, make_node
from edgewright.graph.weights import FloatProducer

FLOAT = ir.DataType.FLOAT
FLOATS = {FLOAT: "float32", ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
#: Ops of the vocabulary whose arithmetic has the type of what it reads; that of the others is float32.
_BODY = frozenset({"Linear", "Embedding", "Activation", "GatedActivation", "Experts", "Moved"})
#: Ops of the vocabulary whose products are float32: states that are carried from token to token.
_EXACT = frozenset({"StateSpace", "GatedDelta", "CausalConv"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
_MOVES = frozenset(
    {"Concat", "Expand", "Gather", "GatherElements", "Identity", "Pad", "Reshape", "ScatterElements", "Slice", "Split"}
    | {"Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Flatten"}
)
#: Of these the first input says the type: a cache keeps the one it has.
_INTO = frozenset({"TensorScatter", "ScatterElements"})
_NUMPY = {
    FLOAT: np.dtype(np.float32),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


class Typing:
    """Types of a stage's floats in the making; `origins` says of which op of the vocabulary a node is a part."""

    def __init__(self, stage: Stage, body: ir.DataType, origins: dict[ir.Node, str]) -> None:
        self._stage, self._body, self._origins = stage, body, origins
        self._types: dict[ir.Value, ir.DataType] = {}
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._made: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        """Type every node, in place, and give the graph's outputs the types they are declared with."""
        graph = self._stage.graph
        graph.sort()
        for value in graph.inputs:
            self._note(value, value.dtype)
        for node in list(graph):
            self._node(node)
        for place, value in enumerate(graph.outputs):
            self._output(place, value)
        self._stage.drop_unused()

    def _note(self, value: ir.Value, kind: ir.DataType | None) -> None:
        if kind in FLOATS:
            self._types[value] = kind

    def _of(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the type of a float, None of what is none."""
        if value is None:
            return None
        if value in self._types:
            return self._types[value]
        kind = value.dtype if value.is_initializer() else None
        return kind if kind in FLOATS else None

    def _constant(self, value: ir.Value) -> bool:
        """Tell whether a value is a float of the graph's own, which has the type that its reader wants."""
        producer = value.producer()
        return value.is_initializer() or (producer is not None and producer.op_type == "Constant")

    def _node(self, node: ir.Node) -> None:
        if node.op_type == "Constant":
            self._note(node.outputs[0], _constant_type(node))
            return
        origin = self._origins.get(node, "")
        floats = [value for value in node.inputs if value is not None and self._of(value) is not None]
        if node.op_type == "Cast":
            kind = ir.DataType(node.attributes["to"].as_int())
            self._note(node.outputs[0], kind)
            if floats and kind == FLOAT:
                self._made[node.outputs[0]] = floats[0]
            return
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            self._quantize(node)
            return
        if node.domain != "":
            self._vendor(node)
            return
        if not floats:
            self._from_integers(node)
            return
        wanted = self._wanted(node, origin, floats)
        if wanted is None:  # it asks for shapes alone
            return
        for place, value in enumerate(node.inputs):
            if value is not None and self._of(value) is not None:
                node.replace_input_with(place, self.as_type(value, wanted))
        if node.op_type not in _TRUTHS:
            for index, output in enumerate(node.outputs):
                if not (node.op_type == "TopK" and index == 1):
                    self._types[output] = wanted

    def _wanted(self, node: ir.Node, origin: str, floats: list[ir.Value]) -> ir.DataType | None:
        """Return the type a node computes in."""
        if node.op_type in ("Shape", "Size"):
            return None
        if node.op_type in _PRODUCTS:
            return FLOAT if origin in _EXACT else self._product(floats)
        if node.op_type in _INTO:
            return self._of(node.inputs[0])
        if node.op_type in _MOVES or origin in _BODY:
            return self._promoted(floats)
        return FLOAT

    def _promoted(self, floats: list[ir.Value]) -> ir.DataType:
        found = {self._of(value) for value in floats if not self._constant(value)} or {self._of(v) for v in floats}
        kinds = {kind for kind in found if kind is not None}
        return kinds.pop() if len(kinds) == 1 else FLOAT

    def _product(self, floats: list[ir.Value]) -> ir.DataType:
        """Return the type of a product: its weight's, where that is stored as a float, or the body's."""
        stored = [kind for value in floats if (kind := self._stored(value)) is not None]
        return stored[0] if stored else self._body

    def _stored(self, value: ir.Value) -> ir.DataType | None:
        """Return the type of the stored tensor that a value is, transposed or reshaped."""
        while not value.is_initializer():
            producer = value.producer()
            if producer is None or producer.op_type not in ("Transpose", "Reshape", "Identity", "Slice"):
                return None
            first = producer.inputs[0]
            assert first is not None
            value = first
        return self._of(value) if value.name in self._stage.producers or value.name in self._stage.aliases else None

    def _quantize(self, node: ir.Node) -> None:
        """Let QuantizeLinear read the type of its scale; what DequantizeLinear gives has that type."""
        scale = node.inputs[1]
        kind = self._of(scale)
        if node.op_type == "DequantizeLinear":
            self._note(node.outputs[0], kind)
        elif kind is not None and node.inputs[0] is not None:
            node.replace_input_with(0, self.as_type(node.inputs[0], kind))

    def _vendor(self, node: ir.Node) -> None:
        """Let TensorRT's own ops read the body's type, and note what they say they give."""
        first = node.inputs[0]
        if node.op_type.endswith("DynamicQuantize"):
            if first is not None:
                node.replace_input_with(0, self.as_type(first, self._body))
        else:
            self._note(node.outputs[0], ir.DataType(node.attributes["output_dtype"].as_int()))

    def _from_integers(self, node: ir.Node) -> None:
        """Note the floats that are made of no floats: there are none but constants of a shape."""
        if node.op_type == "ConstantOfShape":
            value = node.attributes.get("value")
            self._note(node.outputs[0], value.as_tensor().dtype if value is not None else FLOAT)

    def as_type(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """Return a float in another type; constants are written in it, all else goes through a Cast."""
        if self._of(value) == kind:
            return value
        key = (value, kind)
        if key not in self._casts:
            before = self._made.get(value)
            if before is not None and self._of(before) == kind:
                self._casts[key] = before  # widened before: nothing is lost on the way back
            elif self._constant(value):
                self._casts[key] = self._typed(value, kind) or self._cast(value, kind)
            else:
                self._casts[key] = self._cast(value, kind)
            self._types[self._casts[key]] = kind
        return self._casts[key]

    def _cast(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        producer = value.producer()
        path = producer.name if producer is not None else value.name
        name = f"{path}/as_{FLOATS[kind]}"
        if producer is not None and len(producer.outputs) > 1:
            name += f"_{value.index()}"
        node = make_node("", "Cast", [value], {"to": int(kind)}, name=name)
        graph = self._stage.graph
        if producer is not None:
            graph.insert_after(producer, [node])
        else:
            graph.insert_before(next(iter(graph)), [node])
        if kind == FLOAT:
            self._made[node.outputs[0]] = value
        return node.outputs[0]

    def _typed(self, value: ir.Value, kind: ir.DataType) -> ir.Value | None:
        """Return a constant in another type as an initializer of its own, None where only a Cast makes one."""
        stage = self._stage
        producer, node = stage.producers.get(value.name or ""), value.producer()
        name = f"{value.name}.{FLOATS[kind]}"
        if producer is not None:
            if not isinstance(producer, FloatProducer) or self._of(value) != FLOAT:
                return None
            if name in stage.graph.initializers:
                return stage.graph.initializers[name]
            return stage.add_producer(_Narrowed(producer, name, FLOATS[kind]))[0]
        tensor = value.const_value if node is None else node.attributes["value"].as_tensor()
        if tensor is None or value.name in stage.aliases:
            return None
        with np.errstate(over="ignore"):
            array = tensor.numpy().astype(_NUMPY[kind])
        if not np.isfinite(array.astype(np.float32)).all():
            return None
        made = ir.tensor(array, dtype=kind, name=name)
        typed = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(kind), const_value=made)
        stage.graph.register_initializer(typed)
        return typed

    def _output(self, place: int, value: ir.Value) -> None:
        """Let an output of the graph have the type that it is declared with."""
        wanted, found = value.dtype, self._of(value)
        if found is None or wanted is None or found == wanted:
            return
        name, shape = value.name, value.shape
        value.name = f"{name}:{FLOATS[found]}"
        value.type = ir.TensorType(found)
        cast = make_node("", "Cast", [value], {"to": int(wanted)}, outputs=[str(name)], name=f"{name}/Cast")
        output = cast.outputs[0]
        output.shape, output.type = shape, ir.TensorType(wanted)
        self._stage.graph.append(cast)
        self._stage.graph.outputs[place] = output


#: What compares floats gives truths.
_TRUTHS = frozenset({"Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "ArgMax"})


class _Narrowed(FloatProducer):
    """A weight that is stored in another float type, under another name."""

    def __init__(self, before: FloatProducer, name: str, dtype: str) -> None:
        super().__init__(before.weight, dtype)
        self.specs = (TensorSpec(name, dtype, before.weight.shape),)


def _constant_type(node: ir.Node) -> ir.DataType | None:
    value = node.attributes.get("value")
    if value is not None:
        return value.as_tensor().dtype
    return FLOAT if any(name in node.attributes for name in ("value_float", "value_floats")) else None


def body_type(nodes: Iterable[ir.Node]) -> ir.DataType:
    """Return the type a stage computes in, before it is lowered: what its float weights are stored as.

    bfloat16 where any is; float16 where any is, or where weights are codes; float32 where all are.
    """
    found: set[ir.DataType | None] = set()
    for node in nodes:
        if node.domain != EW:
            continue
        if node.op_type in _CODES:
            found.add(ir.DataType.FLOAT16)
        elif node.op_type in ("Linear", "Embedding", "Experts"):
            for value in node.inputs:
                maker = value.producer() if value is not None else None
                stored = maker.inputs[0] if maker is not None and maker.op_type == "Cast" else value
                if stored is not None and stored.is_initializer():
                    found.add(stored.dtype)
    for kind in (ir.DataType.BFLOAT16, ir.DataType.FLOAT16):
        if kind in found:
            return kind
    return FLOAT


_CODES = frozenset({"QuantLinear", "QuantEmbedding", "Dequantize", "Decode", "DecodeRows", "RoundInput"})
