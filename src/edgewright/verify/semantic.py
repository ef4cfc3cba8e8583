"""A stage before it is lowered, kept for the verifier: its ops with their attributes, and the values of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.contract import StageContract
from edgewright.dialects import portable
from edgewright.errors import first_line
from edgewright.graph import Stage
from edgewright.graph.builder import make_node
from edgewright.quiet_ort import ort
from edgewright.verify.graphs import Array, run


@dataclass(frozen=True)
class Op:
    """One node: its name is its module path, a slash, and its type."""

    name: str
    domain: str
    type: str
    attributes: Mapping[str, Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]

    @property
    def module(self) -> str:
        """The path of the module it was made for; empty for what belongs to the whole model."""
        return self.name.rsplit("/", 1)[0] if "/" in self.name else ""


class Semantic:
    """The ops of a stage in order, and who makes each value. Made before lowering, which takes attributes away."""

    #: Whether the ops have their attributes, so that pieces of them can be run.
    has_attributes = True

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.ops = [_op(node) for node in stage.graph]
        self._index(set(stage.graph.initializers))
        self._constants = {
            name: value.const_value.numpy()
            for name, value in stage.graph.initializers.items()
            if name not in stage.producers and value.const_value is not None
        }
        self._shapes = {spec.name: spec.shape for p in stage.producers.values() for spec in p.specs}
        self._cache: dict[str, Array] = {}

    def _index(self, initializers: set[str]) -> None:
        self.made = {name: op for op in self.ops for name in op.outputs}
        self.order = {name: index for index, op in enumerate(self.ops) for name in op.outputs}
        self.initializers = initializers
        #: Values that depend on weights and constants only.
        self.fixed = set(initializers)
        for op in self.ops:
            if all(name in self.fixed for name in op.inputs if name):
                self.fixed.update(op.outputs)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight or constant."""
        return self._shapes.get(name) or self._constants[name].shape

    def initializer(self, name: str) -> Array:
        """Return a weight or constant as it is stored."""
        if name in self._constants:
            return self._constants[name]
        if name not in self._cache:
            producer = self._stage.producers[name]
            index = next(i for i, spec in enumerate(producer.specs) if spec.name == name)
            parts = [chunk()[index] for chunk in producer.chunks()]
            self._cache[name] = np.concatenate(parts).reshape(producer.specs[index].shape)
        return self._cache[name]

    def width(self, value: str) -> int | None:
        """Return the last dimension of a linear's output, or None for other values."""
        op = self.made.get(value)
        if op is None or "Linear" not in op.type:
            return None
        weight = op.inputs[1]
        while weight in self.made:  # a cast
            weight = self.made[str(weight)].inputs[0]
        return self.shape(str(weight))[0] if weight in self.initializers else None

    def piece(self, value: str, feeds: Mapping[str, Array]) -> Piece:
        """Return the ops between the values in `feeds` and `value`, with what they read."""
        needed: list[Op] = []
        waiting, seen = [value], set[str]()
        while waiting:
            name = waiting.pop()
            op = self.made.get(name)
            if op is None or op.name in seen:
                continue
            seen.add(op.name)
            needed.append(op)
            waiting += [i for i in op.inputs if i and (i not in feeds) and i not in self.initializers]
        needed.sort(key=lambda op: self.order[op.outputs[0]])
        made = {name for op in needed for name in op.outputs}
        read = {name for op in needed for name in op.inputs if name and (name not in made or name in feeds)}
        values = {name: self.initializer(name) if name in self.initializers else feeds[name] for name in read}
        return Piece(tuple(needed), values, self.made[value].outputs)


@dataclass(frozen=True)
class Piece:
    """A few ops with the values they read; running them gives `outputs`."""

    ops: tuple[Op, ...]
    values: dict[str, Array] = field(repr=False)
    outputs: tuple[str, ...]

    def changed(self, name: str, value: Array) -> Piece:
        """Return the piece with another value."""
        return replace(self, values={**self.values, name: value})

    def swapped(self, old: Op, new: Op) -> Piece:
        """Return the piece with an op replaced, by its name."""
        return replace(self, ops=tuple(new if op.name == old.name else op for op in self.ops))

    def run(self) -> dict[str, Array]:
        """Compute the outputs with the reference bodies; raises ValueError when the piece makes no sense."""
        stage = Stage("piece", ir.Graph([], [], nodes=[], name="piece"), StageContract((), ()))
        known: dict[str, ir.Value] = {}
        made = {name for op in self.ops for name in op.outputs}
        feeds = {}
        for name, array in self.values.items():
            fed = f"{name}/fed" if name in made else name
            kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            known[name] = ir.Value(name=fed, shape=ir.Shape(array.shape), type=kind)
            feeds[fed] = np.ascontiguousarray(array)
        stage.graph.inputs.extend(known.values())
        results: dict[str, ir.Value] = {}
        for op in self.ops:
            inputs = [known[name] if name else None for name in op.inputs]
            node = make_node(op.domain, op.type, inputs, op.attributes, outputs=op.outputs, name=op.name)
            stage.graph.append(node)
            for value in node.outputs:
                results[str(value.name)] = value
                known.setdefault(str(value.name), value)
        stage.graph.outputs.extend(results[name] for name in self.outputs)
        try:
            model = ir.to_proto(portable.lower(stage, emulate=True).model())
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return run(session, feeds)
        except Exception as error:
            raise ValueError(first_line(error)) from None


def _op(node: ir.Node) -> Op:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    inputs = tuple(value.name if value is not None else None for value in node.inputs)
    outputs = tuple(str(value.name) for value in node.outputs if value.name)
    return Op(node.name or "", node.domain, node.op_type, attributes, inputs, outputs)
