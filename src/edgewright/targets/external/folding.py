"""Where all sizes are fixed, what only computes shapes is computed now: many compilers read no shapes from a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from edgewright.errors import UnsupportedFormatError, first_line
from edgewright.quiet_ort import ort
from edgewright.targets.external.older import graphs_in

Array = npt.NDArray[np.generic]
#: Constants of more elements are weights, and are left as they are.
_MOST_ELEMENTS = 1 << 16
#: Ops that stay although their inputs are constants: quantized weights are to be seen as such.
_KEPT = frozenset({"QuantizeLinear", "DequantizeLinear", "RandomNormal", "RandomUniform", "Multinomial", "Bernoulli"})
_MOST_ROUNDS = 64


def fold_shapes(model: onnx.ModelProto, stage: str) -> None:
    """Replace every node that depends on shapes and small constants only by its value, in place.

    Shapes are what ONNX infers from the fixed sizes of the inputs; nothing of the weights is read. Afterwards the graph
    says the shapes of its values. Raises UnsupportedFormatError when the graph can't be inferred or computed.
    """
    for _ in range(_MOST_ROUNDS):
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            done = _fold_once(model, _static_shapes(inferred.graph))
        except Exception as error:
            raise UnsupportedFormatError(
                f"The shapes of the stage {stage} can't be computed ahead of time ({first_line(error)}): use a target "
                "that takes free sizes, or report it."
            ) from None
        if not done:
            break
    del model.graph.value_info[:]
    model.graph.value_info.extend(inferred.graph.value_info)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Drop constants that nothing reads."""
    read = {name for node in graph.node for name in _names_read(node)} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    nodes = [node for node in graph.node if node.op_type != "Constant" or node.output[0] in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.node[:]
    graph.node.extend(nodes)


def _static_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return found


def _fold_once(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Fold what can be seen now; tells whether anything was."""
    graph = model.graph
    known = {tensor.name: tensor for tensor in graph.initializer if _is_small(tensor)}
    values: dict[str, Array] = {}
    computed: list[onnx.NodeProto] = []
    constants = set(known)
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Shape" and node.input[0] in shapes:
            values[node.output[0]] = _shape_of(node, shapes[node.input[0]])
        elif _is_foldable(node, constants | values.keys(), shapes):
            computed.append(node)
        else:
            kept.append(node)
            continue
        constants |= {name for name in node.output if name}
    if not any(node.op_type != "Constant" for node in computed) and not values:
        return False
    values |= _computed(computed, known, values, model)
    read = {name for node in kept for name in _names_read(node)} | {value.name for value in graph.output}
    made = [
        helper.make_node("Constant", [], [name], name=f"{name}/Constant", value=numpy_helper.from_array(array))
        for name, array in values.items()
        if name in read
    ]
    del graph.node[:]
    graph.node.extend([*made, *kept])
    return True


def _is_small(tensor: onnx.TensorProto) -> bool:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    return not external and math.prod(tensor.dims) <= _MOST_ELEMENTS


def _is_foldable(node: onnx.NodeProto, constants: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    if node.op_type in _KEPT or node.domain not in ("", "ai.onnx") or any(True for _ in graphs_in(node)):
        return False
    if not all(name in constants for name in node.input if name):
        return False
    return all(math.prod(shapes.get(name, ())) <= _MOST_ELEMENTS for name in node.output)


def _shape_of(node: onnx.NodeProto, shape: tuple[int, ...]) -> Array:
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    return np.array(shape[attributes.get("start", 0) : attributes.get("end", len(shape))], dtype=np.int64)


def _computed(
    nodes: list[onnx.NodeProto],
    known: Mapping[str, onnx.TensorProto],
    values: Mapping[str, Array],
    model: onnx.ModelProto,
) -> dict[str, Array]:
    """Return the outputs of nodes whose inputs are all among the constants."""
    if not nodes:
        return {}
    names = [name for node in nodes for name in node.output if name]
    read = {name for node in nodes for name in node.input}
    given = [tensor for name, tensor in known.items() if name in read]
    given += [numpy_helper.from_array(array, name) for name, array in values.items() if name in read]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph(nodes, "constants", [], outputs, given)
    piece = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(piece.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, {}), strict=True))


def _names_read(node: onnx.NodeProto) -> Iterable[str]:
    yield from node.input
    for graph in graphs_in(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from _names_read(inner)
