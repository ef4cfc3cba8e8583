"""Products of int8 weights and int8 inputs in OpenVINO.

Inputs whose scale is made of them are rounded by OpenVINO itself, in groups of a row, wherever the weights are codes:
measured on OpenVINO 2026.4.1, two cores with AVX-512 VNNI, 816 x 1024 x 4096 takes 131 ms in float32, 65 ms with one
scale a row and 40 ms with groups of 128. Such groups round less than the one scale that a recipe asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.frontend import NodeContext

from edgewright.targets.openvino.compressed import Compressed
from edgewright.targets.openvino.nodes import Out, constant_of, ints, scalar

#: Inputs that OpenVINO rounds by one scale.
GROUP = 128
_LEVELS, _LOW, _HIGH = 256, -128, 127


@dataclass
class Rounded:
    """The rules for one graph; `weights` is told which products may round their inputs."""

    weights: Compressed
    _static: set[str] = field(default_factory=set)
    _dynamic: set[str] = field(default_factory=set)
    _codes: set[str] = field(default_factory=set)

    def round_input(self, context: NodeContext) -> list[Out]:
        """Round by a scale that was found by calibration; what has none is left to OpenVINO's own rounding."""
        x = context.get_input(0)
        if context.get_attribute("static"):
            scale = float(_numbers(context.get_input(1))[0])
            zero = int(_numbers(context.get_input(2))[0]) if context.get_input_size() > 2 else 0
            low, high = (scalar(scale * (end - zero)) for end in (_LOW, _HIGH))
            y = ops.fake_quantize(x, low, high, low, high, _LEVELS)
            self._static.add(y.get_name())
        else:
            y = ops.convert(x, "f32")  # a node of its own, which OpenVINO drops
            self._dynamic.add(y.get_name())
        return [y.output(0)]

    def decode(self, context: NodeContext) -> list[Out]:
        """Return int8 codes as the constant that OpenVINO keeps, times a scale for each channel or for all."""
        codes, scales = context.get_input(0), context.get_input(1)
        numbers = _numbers(scales)
        steps = constant_of(numbers, ov.Type.f32, (numbers.size, 1))
        steps.set_friendly_name(scales.get_node().get_friendly_name())
        made = ops.multiply(ops.convert(codes, "f32"), steps)
        width = context.get_attribute("in_features")
        stored = int(codes.get_partial_shape()[1].get_length())
        if stored != width:
            made = ops.slice(made, ints(0), ints(width), ints(1), ints(1))
        self._codes.add(made.get_name())
        return [made.output(0)]

    def leaves(self, x: Out) -> bool:
        """Tell whether a recipe rounds an input by a scale that is made of it, which is left to OpenVINO."""
        return x.get_node().get_name() in self._dynamic

    def multiplied(self, x: Out, weight: Out) -> None:
        """Note a product: int8 weights with an input that a recipe leaves as it is forbid OpenVINO's rounding."""
        if weight.get_node().get_name() not in self._codes or x.get_node().get_name() in self._static:
            return
        if self.leaves(x):
            self.weights.groups.add(GROUP)
        else:
            self.weights.rounds = False


def _numbers(value: Out) -> np.ndarray:
    node: ov.Node = value.get_node()
    array: np.ndarray = np.asarray(node.data).reshape(-1)
    return array
