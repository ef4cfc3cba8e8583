"""A stage: one graph, the producers of its weights, and its contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from edgewright.contract import StageContract
from edgewright.graph.weights import FloatProducer, Producer, TensorSpec, Weight

if TYPE_CHECKING:
    from edgewright.graph.step_loop import StepLoop

IR_DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "uint8": ir.DataType.UINT8,
    "int8": ir.DataType.INT8,
    "int32": ir.DataType.INT32,
    "int64": ir.DataType.INT64,
    "bool": ir.DataType.BOOL,
    "int4": ir.DataType.INT4,
    "uint4": ir.DataType.UINT4,
    "float4_e2m1": ir.DataType.FLOAT4E2M1,
    "float8_e4m3fn": ir.DataType.FLOAT8E4M3FN,
    "float8_e8m0fnu": ir.DataType.FLOAT8E8M0,
}


@dataclass(frozen=True)
class OutsideTable:
    """The embedding table of a stage that takes rows of embeddings: what makes the tensors of its own file.

    `module` is the table's, `value` the graph's value that the input stands for, `multiplier` what every row is
    multiplied by after it was decoded, or None.
    """

    module: str
    value: str
    producer: Producer
    multiplier: float | None


@dataclass
class Stage:
    """A graph whose large initializers have no value yet: `producers` makes them, by initializer name.

    A producer of several tensors stands under each of their names. `weights` holds the float weights as the
    checkpoint gave them, by name, for passes that quantize and for verification. `notes` collects, in words, what was
    decided on the way (tied heads, left-out tensors, a bounded context); the manifest carries them. `aliases` names
    initializers that are another initializer's bytes under another shape or type. `layers` counts the model's layers,
    `cache` is the record of a quantized key/value cache.
    `vocabulary` is what the manifest says of a reduced vocabulary, empty for a full one. `outside` is the embedding
    table where it isn't in the graph. `fuse_linears` allows a lowering to join linears that read one input. `loop`,
    of one step of a loop, is what lowering makes of it. `config` is a language model's own, for dialects whose builders
    read one.
    """

    name: str
    graph: ir.Graph
    contract: StageContract
    weights: dict[str, Weight] = field(default_factory=dict)
    producers: dict[str, Producer] = field(default_factory=dict)
    functions: dict[ir.OperatorIdentifier, ir.Function] = field(default_factory=dict)
    opset_imports: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    layers: int = 0
    cache: dict[str, Any] | None = None
    vocabulary: dict[str, Any] = field(default_factory=dict)
    outside: OutsideTable | None = None
    fuse_linears: bool = True
    loop: StepLoop | None = None
    config: dict[str, Any] = field(default_factory=dict)

    def add_weight(self, weight: Weight, dtype: str = "float32") -> None:
        """Register `weight` with a plain float producer."""
        self.weights[weight.name] = weight
        self.producers[weight.name] = FloatProducer(weight, dtype)

    def float_value(self, weight: Weight) -> ir.Value:
        """Return the float32 initializer of `weight`, registering it on first use."""
        if weight.name not in self.graph.initializers:
            self.add_weight(weight)
            value = ir.Value(name=weight.name, shape=ir.Shape(weight.shape), type=ir.TensorType(ir.DataType.FLOAT))
            self.graph.register_initializer(placeholder(value))
        return self.graph.initializers[weight.name]

    def add_producer(self, producer: Producer) -> tuple[ir.Value, ...]:
        """Register `producer` and return new initializer values for its tensors, in order."""
        return tuple(self.add_tensor(producer, spec) for spec in producer.specs)

    def add_tensor(self, producer: Producer, spec: TensorSpec) -> ir.Value:
        """Register one of `producer`'s tensors and return a new initializer value for it."""
        self.producers[spec.name] = producer
        value = ir.Value(name=spec.name, shape=ir.Shape(spec.shape), type=ir.TensorType(IR_DTYPES[spec.dtype]))
        self.graph.register_initializer(placeholder(value))
        return value

    def alias(
        self,
        value: ir.Value,
        reshape: Callable[[tuple[int, ...]], tuple[int, ...]],
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Return an initializer of another shape, or another type too, over the same bytes of the weight file."""
        assert value.name is not None
        assert value.shape is not None
        shape = reshape(tuple(int(d) for d in value.shape))  # type: ignore[arg-type]
        kind = ir.TensorType(dtype) if dtype is not None else value.type
        for count in itertools.count(1):
            name = f"{value.name}.flat" + (f".{count}" if count > 1 else "")
            if name not in self.graph.initializers:
                alias = ir.Value(name=name, shape=ir.Shape(shape), type=kind)
                self.graph.register_initializer(placeholder(alias))
                self.aliases[name] = value.name
            found = self.graph.initializers[name]
            if found.shape == ir.Shape(shape) and found.type == kind:
                return found
        raise AssertionError

    def model(self) -> ir.Model:
        """Return the ONNX model around the graph (weights still without values)."""
        self.graph.opset_imports.clear()
        self.graph.opset_imports.update({"": OPSET, **self.opset_imports})
        return ir.Model(self.graph, ir_version=10, producer_name="edgewright", functions=list(self.functions.values()))

    def drop_unused(self) -> None:
        """Remove nodes whose outputs nobody reads, then initializers and producers nobody reads."""
        for node in reversed(list(self.graph)):
            if all(not out.uses() and not out.is_graph_output() for out in node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses():
                del self.graph.initializers[name]
        needed = set(self.graph.initializers) | {self.aliases[n] for n in self.aliases if n in self.graph.initializers}
        self.producers = {name: p for name, p in self.producers.items() if name in needed}


#: The opset of every graph: 24 has TensorScatter and Attention with a cache.
OPSET = 24


class _Pending(ir.LazyTensor):
    """Stands in for a weight until it is written; reading it is a programming error."""


def placeholder(value: ir.Value) -> ir.Value:
    """Give an initializer value a tensor that carries shape and dtype but no data."""

    def fail() -> ir.TensorProtocol:
        raise AssertionError(f"weight {value.name} was read outside the writer")

    assert value.shape is not None
    assert value.dtype is not None
    value.const_value = _Pending(fail, dtype=value.dtype, shape=ir.Shape(value.shape), name=value.name)
    return value
