"""Quantized weights as OpenVINO likes them: codes as a constant of their own type, decoded by the nodes it knows.

(code - zero point) * scale, with codes `[rows, blocks, group]`; the bytes are those of the weight file, which is
mapped: none is copied. Offsets, which
OpenVINO's kernels haven't, are a product of their own, as zero points that are no whole numbers would keep it from
rounding inputs, which makes products half as fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.frontend import NodeContext

from edgewright.formats import pack, unpack
from edgewright.targets.openvino.nodes import Out, constant_of, ints, number, scalar

_TYPES = {4: ov.Type.u4, 8: ov.Type.u8}


@dataclass
class Compressed:
    """The quantized weights of a graph, each made once; `groups` are the block sizes of those that allow rounding."""

    groups: set[int] = field(default_factory=set)
    #: Whether inputs of every product of a quantized weight may be rounded.
    rounds: bool = True
    #: The memory that constants share: they don't keep it alive.
    memory: list[object] = field(default_factory=list)
    _weights: dict[str, Out] = field(default_factory=dict)
    _sums: dict[tuple[str, int], Out] = field(default_factory=dict)

    def product(
        self,
        context: NodeContext,
        x: Out,
        codes: Out,
        scales: Out,
        zero_points: Out | None,
        offsets: Out | None,
        *,
        rounded: bool = False,
    ) -> Out:
        """Return x times the transposed weight; `rounded` says that a recipe rounds x to int8."""
        group, width = context.get_attribute("group"), context.get_attribute("in_features")
        if rounded or context.get_attribute("int8_activations"):
            self.groups.add(group)
        else:
            self.rounds = False
        name, surplus = x.get_node().get_name(), -width % group
        if surplus:
            x = ops.pad(x, ints(0, 0, 0), ints(0, 0, surplus), "constant", scalar(0.0))
        y = ops.matmul(x, self._weight(context, codes, scales, zero_points), False, True)
        if offsets is None:
            return y
        # The offset of a block multiplies the sum of its inputs; linears of one input share the sums.
        if (name, group) not in self._sums:
            self._sums[name, group] = ops.reduce_sum(ops.reshape(x, ints(0, 0, -1, group), True), number(-1), False)
        return ops.add(y, ops.matmul(self._sums[name, group], offsets, False, True))

    def rows(
        self, context: NodeContext, ids: Out, codes: Out, scales: Out, zero_points: Out | None, offsets: Out | None
    ) -> Out:
        """Return the weight's rows of ids."""
        group, width = context.get_attribute("group"), context.get_attribute("in_features")
        rows = ops.gather(self._weight(context, codes, scales, zero_points), ids, number(0))
        if offsets is not None:
            blocked = ops.reshape(rows, ints(0, 0, -1, group), True)
            shift = ops.unsqueeze(ops.gather(offsets, ids, number(0)), number(-1))
            rows = ops.reshape(ops.add(blocked, shift), ints(0, 0, -1), True)
        return ops.slice(rows, ints(0), ints(width), ints(1), ints(-1)) if width % group else rows

    def whole(self, context: NodeContext, codes: Out, scales: Out, zero_points: Out | None, offsets: Out | None) -> Out:
        """Return the weight itself, float32 `[rows, width]`."""
        group, width = context.get_attribute("group"), context.get_attribute("in_features")
        weight = self._weight(context, codes, scales, zero_points)
        if offsets is not None:
            rows, blocks = (int(size.get_length()) for size in offsets.get_partial_shape())
            blocked = ops.reshape(weight, ints(rows, blocks, group), False)
            weight = ops.reshape(ops.add(blocked, ops.unsqueeze(offsets, number(-1))), ints(rows, -1), False)
        return ops.slice(weight, ints(0), ints(width), ints(1), ints(1)) if width % group else weight

    def _weight(self, context: NodeContext, codes: Out, scales: Out, zero_points: Out | None) -> Out:
        """Return float32 `[rows, blocks * group]`, offsets not added."""
        name = codes.get_node().get_friendly_name()
        if name not in self._weights:
            bits, group = context.get_attribute("bits"), context.get_attribute("group")
            rows, blocks = (int(size.get_length()) for size in list(codes.get_partial_shape())[:2])
            whole = ops.convert(self._seen(codes, _TYPES[bits], (rows, blocks, group)), "f32")
            centred = ops.subtract(whole, ops.convert(self._zeros(name, bits, zero_points, rows, blocks), "f32"))
            weight = ops.multiply(centred, self._steps(scales, rows, blocks))
            self._weights[name] = ops.reshape(weight, ints(rows, blocks * group), False)
        return self._weights[name]

    def _steps(self, scales: Out, rows: int, blocks: int) -> Out:
        """Return scales as float32 `[rows, blocks, 1]`."""
        half = scales.get_element_type() == ov.Type.f16
        kept = self._seen(scales, ov.Type.f16 if half else ov.Type.f32, (rows, blocks, 1))
        return ops.convert(kept, "f32") if half else kept

    def _zeros(self, name: str, bits: int, zero_points: Out | None, rows: int, blocks: int) -> Out:
        """Return zero points `[rows, blocks, 1]` of the codes' type, or one for all."""
        if zero_points is None:
            middle = np.array([0x88 if bits == 4 else 0x80], np.uint8)
            return constant_of(middle, _TYPES[bits], (1, 1, 1))
        if bits == 4 and blocks % 2:  # a row ends with half a byte, which has no place in a constant
            flat = unpack(zero_points.get_node().data, 4)[:, :blocks].reshape(-1)
            dense = pack(np.pad(flat, (0, flat.size % 2)), 4)
            return _named(constant_of(dense, ov.Type.u4, (rows, blocks, 1)), f"{name}.zeros")
        return self._seen(zero_points, _TYPES[bits], (rows, blocks, 1))

    def _seen(self, value: Out, kind: ov.Type, shape: tuple[int, ...]) -> ov.Node:
        """Return a constant over the very bytes of another one, seen as `kind` of that shape, with its name."""
        node = value.get_node()
        data = node.data
        self.memory += [node, data]
        made = ops.constant(ov.Tensor(data, ov.Shape(list(shape)), kind), shared_memory=True)
        return _named(made, node.get_friendly_name())


def _named(node: ov.Node, name: str) -> ov.Node:
    node.set_friendly_name(name)
    return node
