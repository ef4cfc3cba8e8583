"""The portable dialect: the semantic graph as it is, every op with its reference body as a model-local function.

Quantized weights are dequantized by standard ops over initializers of their own types. Any ONNX runtime of opset 24
runs it. It is the golden for every other dialect.
"""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir

from edgewright.dialects import _qdq
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.stage import OPSET
from edgewright.graph.step_loop import close_loop
from edgewright.ops import OPS, Call


def lower(stage: Stage, *, emulate: bool = False) -> Stage:
    """Spell integer weights with DequantizeLinear and attach the function bodies.

    With `emulate` the bodies need no kernels for 4-bit floats, which ONNX Runtime's CPU provider lacks.
    """
    _qdq.lower_integers(stage, tables=False)
    return attach_bodies(stage, emulate=emulate)


def attach_bodies(stage: Stage, *, emulate: bool = False) -> Stage:
    """Attach the function bodies and close the loop; see `lower` for `emulate`."""
    if emulate:
        _qdq.emulate(stage)
    close_loop(stage)
    return attach_functions(stage)


def attach_functions(stage: Stage, *, keep_attributes: bool = False) -> Stage:
    """Attach a body for each distinct use of an op (attributes, given inputs), which is one overload.

    A body has an op's attributes in its nodes. With `keep_attributes` the op's node keeps them as well, and the body
    declares them.
    """
    overloads: dict[tuple[object, ...], str] = {}
    for node in ir.traversal.RecursiveGraphIterator(stage.graph):
        if node.domain != EW:
            continue
        call, inside = call_of(node), node.graph is not stage.graph
        key = (node.op_type, tuple(sorted(call.attributes.items())), call.given, call.results, inside)
        if key not in overloads:
            overload = overloads[key] = f"v{sum(k[0] == node.op_type for k in overloads) + 1}"
            proto = function_of(node.op_type, call, overload)
            if keep_attributes:
                proto.attribute.extend(sorted(call.attributes))
            if inside:
                rename_values(proto)
            function = ir.serde.deserialize_function(proto)
            stage.functions[function.identifier()] = function
        node.overload = overloads[key]
        if not keep_attributes:
            node.attributes.clear()
    stage.opset_imports[EW] = 1
    return stage


def rename_values(function: onnx.FunctionProto) -> None:
    """Give the values inside a body names of their own.

    ONNX Runtime names the values of a body after op and value where it puts the body in a node's place. Names are then
    unique in a graph, but those of the graph around a Loop are seen inside of it, where none may be defined again.
    """
    formal = {"", *function.input, *function.output}
    for node in function.node:
        for names in (node.input, node.output):
            names[:] = [name if name in formal else f"inner_{name}" for name in names]


def call_of(node: ir.Node) -> Call:
    """Return how a node uses its op."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return Call(attributes, tuple(value is not None for value in node.inputs), len(node.outputs))


def function_of(name: str, call: Call, overload: str) -> onnx.FunctionProto:
    """Return the reference body of an op for one use."""
    op = OPS[name]
    formal = op.inputs[: len(call.given)]
    text = (
        f'<opset_import: ["" : {OPSET}], domain: "{EW}">\n'
        f"{name} ({', '.join(formal)}) => ({', '.join(op.outputs[: call.results])}) {{\n{op.body(call)}}}"
    )
    function = onnx.parser.parse_function(text)
    function.overload = overload
    return function
