"""Appends nodes to the graph in the making, as TensorRT Edge-LLM 0.11 spells what a layer is made of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.builder import make_node
from edgewright.graph.rewrite import int64_constant, scalar_constant

#: The domains of the plug-ins, and of what TensorRT itself knows under names of its own.
PLUGINS, TENSORRT = "trt_edgellm", "trt"
HALF, FLOAT = int(ir.DataType.FLOAT16), int(ir.DataType.FLOAT)


class Spelling:
    """Appends nodes to `stage.graph`, named after modules; every name is given once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._names: set[str] = set()

    def node(
        self,
        module: str,
        op_type: str,
        *inputs: ir.Value | None,
        domain: str = "",
        outputs: int | Sequence[str] = 1,
        **attributes: Any,
    ) -> ir.Value:
        """Append a node; returns its first output."""
        base = f"{module}/{op_type}"
        names = itertools.chain((base,), (f"{base}_{number}" for number in itertools.count(2)))
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        node = make_node(domain, op_type, inputs, attributes, outputs=outputs, name=name)
        self.stage.graph.append(node)
        return node.outputs[0]

    def ints(self, *values: int) -> ir.Value:
        """Return an int64 vector."""
        return int64_constant(self.stage, values, f"ints_{'_'.join(map(str, values))}".replace("-", "m"))

    def number(self, value: float) -> ir.Value:
        """Return a float32 scalar."""
        return scalar_constant(self.stage, value, np.float32, f"number_{float(np.float32(value)):.9g}")

    def cast(self, module: str, x: ir.Value, dtype: int) -> ir.Value:
        """Return x as another type."""
        return self.node(module, "Cast", x, to=dtype)

    def reshape(self, module: str, x: ir.Value, *shape: int, allowzero: int = 1) -> ir.Value:
        """Return x in another shape of numbers."""
        return self.node(module, "Reshape", x, self.ints(*shape), allowzero=allowzero)

    def rms_norm(self, module: str, x: ir.Value, weight: ir.Value, epsilon: float) -> ir.Value:
        """Return the norm of float16 x, which is computed in float32 and weighted in float16."""
        wide = self.cast(module, x, FLOAT)
        square = self.node(module, "Pow", wide, self.number(2.0))
        mean = self.node(module, "ReduceMean", square, self.ints(-1), noop_with_empty_axes=0, keepdims=1)
        shifted = self.node(module, "Add", mean, self.number(epsilon))
        inverse = self.node(module, "Reciprocal", self.node(module, "Sqrt", shifted))
        unit = self.cast(module, self.node(module, "Mul", wide, inverse), HALF)
        return self.node(module, "Mul", weight, unit)

    def silu_product(self, module: str, gate: ir.Value, up: ir.Value) -> ir.Value:
        """Return silu(gate) * up."""
        active = self.node(module, "Mul", gate, self.node(module, "Sigmoid", gate))
        return self.node(module, "Mul", active, up)
