"""The portable dialect: the semantic graph as it is, every op with its reference body as a model-local function.

Any ONNX runtime of opset 24 runs it. It is the golden for every other dialect.
"""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir

from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.stage import OPSET
from edgewright.ops import OPS, Call


def lower(stage: Stage) -> Stage:
    """Attach the function bodies; each distinct use of an op (attributes, given inputs) is one overload."""
    overloads: dict[tuple[object, ...], str] = {}
    for node in stage.graph:
        if node.domain != EW:
            continue
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        given = tuple(value is not None for value in node.inputs)
        key = (node.op_type, tuple(sorted(attributes.items())), given)
        if key not in overloads:
            overload = overloads[key] = f"v{sum(k[0] == node.op_type for k in overloads) + 1}"
            function = _function(node.op_type, Call(attributes, given), overload)
            stage.functions[function.identifier()] = function
        node.overload = overloads[key]
        node.attributes.clear()
    stage.opset_imports[EW] = 1
    return stage


def _function(name: str, call: Call, overload: str) -> ir.Function:
    op = OPS[name]
    formal = op.inputs[: len(call.given)]
    text = (
        f'<opset_import: ["" : {OPSET}], domain: "{EW}">\n'
        f"{name} ({', '.join(formal)}) => ({', '.join(op.outputs)}) {{\n{op.body(call)}}}"
    )
    function = onnx.parser.parse_function(text)
    function.overload = overload
    return ir.serde.deserialize_function(function)
