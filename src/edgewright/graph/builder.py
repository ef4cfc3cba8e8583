"""Builds a stage's graph: standard ONNX nodes, semantic `ew` nodes, small constants, weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.contract import TensorContract
from edgewright.graph.stage import IR_DTYPES, Stage
from edgewright.graph.weights import Weight

#: The domain of the semantic ops.
EW = "ew"


class GraphBuilder:
    """Appends nodes to `stage.graph`; node names follow the module path of `scope`."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.graph = stage.graph
        self._path = ""
        self._count: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    @contextmanager
    def scope(self, path: str) -> Iterator[None]:
        """Name the nodes made inside after `path`."""
        outer, self._path = self._path, path
        try:
            yield
        finally:
            self._path = outer

    def _name(self, op_type: str) -> str:
        base = f"{self._path}/{op_type}" if self._path else op_type
        count = self._count[base] = self._count.get(base, 0) + 1
        return base if count == 1 else f"{base}_{count}"

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        outputs: int | Sequence[str] = 1,
        domain: str = "",
        name: str | None = None,
        **attributes: Any,
    ) -> Any:
        """Append one node; returns its output value, or a tuple of them when there are several.

        Attributes that are None are left out; trailing None inputs are dropped.
        """
        node = make_node(domain, op_type, inputs, attributes, outputs=outputs, name=name or self._name(op_type))
        self.graph.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    def ew(self, op_type: str, *inputs: ir.Value | None, **kwargs: Any) -> Any:
        """Append one semantic node."""
        return self.op(op_type, *inputs, domain=EW, **kwargs)

    def constant(self, value: Any, dtype: Any) -> ir.Value:
        """Return a small constant as an initializer; equal constants are shared."""
        array = np.asarray(value, dtype=dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = f"const_{len(self._constants)}"
            tensor = ir.tensor(array, name=name)
            result = ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            self.graph.register_initializer(result)
            self._constants[key] = result
        return self._constants[key]

    def weight(self, weight: Weight) -> ir.Value:
        """Return the initializer of `weight`, registering it on first use."""
        return self.stage.float_value(weight)

    def input(self, tensor: TensorContract) -> ir.Value:
        """Add a graph input."""
        value = ir.Value(name=tensor.name, shape=ir.Shape(tensor.shape), type=ir.TensorType(IR_DTYPES[tensor.dtype]))
        self.graph.inputs.append(value)
        return value

    def output(self, value: ir.Value, tensor: TensorContract) -> None:
        """Name `value` after `tensor` and make it a graph output."""
        value.name = tensor.name
        value.shape = ir.Shape(tensor.shape)
        value.type = ir.TensorType(IR_DTYPES[tensor.dtype])
        self.graph.outputs.append(value)


def make_node(
    domain: str,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    *,
    outputs: int | Sequence[str] = 1,
    name: str = "",
) -> ir.Node:
    """Make one node without attaching it; see `GraphBuilder.op`."""
    kept = list(inputs)
    while kept and kept[-1] is None:
        kept.pop()
    names = [f"{name}:{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
    present = {key: value for key, value in attributes.items() if value is not None}
    return ir.Node(
        domain,
        op_type,
        kept,
        ir.convenience.convert_attributes(present),
        outputs=[ir.Value(name=output) for output in names],
        name=name,
    )
