"""Checks every node of a graph before it is shipped: its form, and, since TensorRT is strongly typed, its types."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto

from edgewright.errors import UnsupportedFormatError, first_line
from edgewright.targets.edgellm.schema import FORMS, OpForm

#: How a standard op's output gets its type: of these the inputs have one type, which is the output's.
_ALIKE = frozenset({"Add", "Mul", "Pow", "MatMul", "Gemm", "Concat", "Sqrt", "Reciprocal", "Sigmoid", "Transpose"})
#: Of these it is that of the first input.
_FIRST = frozenset({"Unsqueeze", "Reshape", "Gather", "ReduceMean", "ReduceSum"})
#: What a scale of a standard DequantizeLinear may be.
_SCALES = frozenset({TensorProto.FLOAT16, TensorProto.FLOAT})


def check_nodes(model: onnx.ModelProto) -> None:
    """Raise UnsupportedFormatError, naming it, for a node that TensorRT Edge-LLM or ONNX don't allow."""
    _Check(model).run()


class _Check:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._context = onnx.checker.C.CheckerContext()
        self._context.ir_version = model.ir_version
        self._context.opset_imports = {entry.domain: entry.version for entry in model.opset_import}
        self._types: dict[str, int] = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
        self._types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}

    def run(self) -> None:
        for node in self._graph.node:
            form = FORMS.get((node.domain, node.op_type))
            if form is not None:
                self._plugin(node, form)
            elif node.domain:
                raise UnsupportedFormatError(f"{node.name}: TensorRT Edge-LLM has no op {node.domain}::{node.op_type}.")
            else:
                self._standard(node)
        for value in self._graph.output:
            if self._types.get(value.name) != value.type.tensor_type.elem_type:
                raise UnsupportedFormatError(f"The output {value.name} is of another type than the graph says.")

    def _plugin(self, node: onnx.NodeProto, form: OpForm) -> None:
        found = {attribute.name: attribute.type for attribute in node.attribute}
        odd, missing = sorted(found.keys() - form.attributes), sorted(set(form.given) - found.keys())
        for wrong, what in (
            (not form.needed <= len(node.input) <= len(form.inputs), f"{len(node.input)} inputs"),
            (not all(node.input), "an input left out"),
            (len(node.output) != len(form.outputs), f"{len(node.output)} outputs"),
            (odd, f"the attribute {', '.join(odd)}"),
            (missing, f"no attribute {', '.join(missing)}"),
            (any(form.attributes.get(name) != kind for name, kind in found.items()), "an attribute of another type"),
        ):
            if wrong:
                raise UnsupportedFormatError(f"{node.name}: {node.op_type} of TensorRT Edge-LLM can't have {what}.")
        # Inputs that are left out are so in the exporter's graphs, too: the plug-in finds the others by their number.
        allowed = list(form.inputs.values())
        for place, name in enumerate(node.input):
            kinds = allowed[place] if place < form.needed else frozenset().union(*allowed[form.needed :])
            self._need(node, name, kinds)
        for name, kind in zip(node.output, form.outputs, strict=True):
            self._types[name] = self._types[node.input[1]] if kind is None else kind

    def _standard(self, node: onnx.NodeProto) -> None:
        try:
            onnx.checker.check_node(node, self._context)
        except onnx.checker.ValidationError as error:
            raise UnsupportedFormatError(f"{node.name}: no valid {node.op_type} ({first_line(error)}).") from None
        rule = _RULES.get(node.op_type)
        if node.op_type in _ALIKE:
            kinds = {self._type(node, name) for name in node.input if name}
            if len(kinds) != 1:
                raise UnsupportedFormatError(
                    f"{node.name}: {node.op_type} of two types, which TensorRT doesn't convert."
                )
            kind = kinds.pop()
        elif node.op_type in _FIRST:
            kind = self._type(node, node.input[0])
        elif rule is not None:
            kind = rule(self, node)
        else:
            raise UnsupportedFormatError(f"{node.name}: {node.op_type} is no op that this dialect writes.")
        self._types[node.output[0]] = kind

    def _type(self, node: onnx.NodeProto, name: str) -> int:
        if name not in self._types:
            raise UnsupportedFormatError(f"{node.name}: the value {name} is made nowhere before it.")
        return self._types[name]

    def _need(self, node: onnx.NodeProto, name: str, kinds: frozenset[int]) -> int:
        found = self._type(node, name)
        if found not in kinds:
            word = TensorProto.DataType.Name(found)
            raise UnsupportedFormatError(f"{node.name}: {node.op_type} can't read {name}, which is {word}.")
        return found

    def _shape(self, node: onnx.NodeProto) -> int:
        return int(TensorProto.INT64)

    def _cast(self, node: onnx.NodeProto) -> int:
        return int(onnx.helper.get_node_attr_value(node, "to"))

    def _quantize(self, node: onnx.NodeProto) -> int:
        self._need(node, node.input[0], frozenset({TensorProto.FLOAT16}))
        self._need(node, node.input[1], _SCALES)
        return int(onnx.helper.get_node_attr_value(node, "output_dtype"))

    def _dequantize(self, node: onnx.NodeProto) -> int:
        return self._need(node, node.input[1], _SCALES)


_RULES: dict[str, Callable[[_Check, onnx.NodeProto], int]] = {
    "Shape": _Check._shape,
    "Cast": _Check._cast,
    "QuantizeLinear": _Check._quantize,
    "DequantizeLinear": _Check._dequantize,
}
