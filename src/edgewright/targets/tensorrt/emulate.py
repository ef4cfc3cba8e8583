"""What computes a TensorRT stage on the CPU: the shipped graph and weights, with what ONNX Runtime lacks spelled out.

Numbers of 16 bits are widened before an op computes and rounded after it, as tensor cores do. E2M1 codes become int8 of
twice their value. TensorRT's own ops become the arithmetic that its documentation gives for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference

from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.errors import BundleError, first_line
from edgewright.files import inside
from edgewright.quiet_ort import ort
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine, session_options

Proto = onnx.TensorProto
_HALVES = (Proto.FLOAT16, Proto.BFLOAT16)
#: Ops of which ONNX Runtime has kernels for every type of 16 bits, or that compute nothing.
_KEPT = frozenset(
    {"Cast", "Concat", "Expand", "Gather", "Identity", "Reshape", "Shape", "Slice", "Split", "Squeeze", "TensorScatter"}
    | {"Transpose", "Unsqueeze", "Constant"}
)
#: Twice the values of E2M1's codes.
_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
#: The domain of the bodies that are attached to the emulated graph.
_LOCAL = "edgewright.trt"

_FUNCTIONS = """
TRT_FP4DynamicQuantize (x, whole) => (codes, scales) {
  wide = Cast <to = 1> (x)
  shape = Shape (wide)
  blocks = Constant <value = int64[2] {-1, 16}> ()
  last = Constant <value = int64[1] {-1}> ()
  rows = Reshape (wide, blocks)
  size = Abs (rows)
  top = ReduceMax <keepdims = 1> (size, last)
  six = Constant <value = float {6.0}> ()
  least = Constant <value = float {0.001953125}> ()
  none = Constant <value = float {0.0}> ()
  one = Constant <value = float {1.0}> ()
  unit = Mul (whole, six)
  share = Div (top, unit)
  kept = Max (share, least)
  some = Greater (share, none)
  safe = Where (some, kept, one)
  narrow = Cast <to = 17, saturate = 1> (safe)
  back = Cast <to = 1> (narrow)
  step = Mul (back, whole)
  v = Div (rows, step)
  low = Constant <value = float {-6.0}> ()
  clipped = Clip (v, low, six)
  two = Constant <value = float {2.0}> ()
  four = Constant <value = float {4.0}> ()
  half = Constant <value = float {0.5}> ()
  a = Abs (clipped)
  below_2 = Less (a, two)
  below_4 = Less (a, four)
  upper = Where (below_4, one, two)
  grain = Where (below_2, half, upper)
  counted = Div (clipped, grain)
  steps = Round (counted)
  grid = Mul (steps, grain)
  doubled = Mul (grid, two)
  whole_codes = Cast <to = 3> (doubled)
  codes = Reshape <allowzero = 1> (whole_codes, shape)
  lead = Shape <end = -1> (wide)
  width = Shape <start = -1> (wide)
  block = Constant <value = int64[1] {16}> ()
  count = Div (width, block)
  by_block = Concat <axis = 0> (lead, count)
  flat = Reshape <allowzero = 1> (back, by_block)
  scales = Cast <to = 17> (flat)
}
TRT_MXFP8DynamicQuantize (x) => (codes, scales) {
  wide = Cast <to = 1> (x)
  blocks = Constant <value = int64[2] {-1, 32}> ()
  last = Constant <value = int64[1] {-1}> ()
  rows = Reshape (wide, blocks)
  size = Abs (rows)
  top = ReduceMax <keepdims = 1> (size, last)
  down = Cast <to = 24, round_mode = "down"> (top)
  power = Cast <to = 1> (down)
  own = Constant <value = float {0.00390625}> ()
  least = Constant <value = float {5.877471754111438e-39}> ()
  none = Constant <value = float {0.0}> ()
  one = Constant <value = float {1.0}> ()
  share = Mul (power, own)
  kept = Max (share, least)
  some = Greater (top, none)
  step = Where (some, kept, one)
  v = Div (rows, step)
  shape = Shape (wide)
  flat = Reshape <allowzero = 1> (v, shape)
  codes = Cast <to = 17, saturate = 1> (flat)
  lead = Shape <end = -1> (wide)
  width = Shape <start = -1> (wide)
  block = Constant <value = int64[1] {32}> ()
  count = Div (width, block)
  by_block = Concat <axis = 0> (lead, count)
  log2 = Constant <value = float {0.6931471805599453}> ()
  natural = Log (step)
  exponent = Div (natural, log2)
  rounded = Round (exponent)
  bias = Constant <value = float {127.0}> ()
  shifted = Add (rounded, bias)
  bytes = Cast <to = 2> (shifted)
  scales = Reshape <allowzero = 1> (bytes, by_block)
}
"""


class EmulatedEngine(OnnxRuntimeEngine):
    """A TensorRT stage on the CPU, over the bytes that are shipped; see the module.

    Raises BundleError when the graph can't be loaded.
    """

    def __init__(self, graph: Path, contract: StageContract, *, threads: int | None = None) -> None:
        try:
            model = onnx.load(graph, load_external_data=False)
            made = emulated(model, graph.parent)
            options = session_options(EngineSettings("all"), threads)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
            if made:
                # The options don't keep the arrays alive.
                self._values = [ort.OrtValue.ortvalue_from_numpy(array) for array in made.values()]
                options.add_external_initializers(list(made), self._values)
            self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except BundleError:
            raise
        except Exception as error:
            raise BundleError(
                f"The graph for TensorRT can't be computed on the CPU ({first_line(error)}): please report it."
            ) from None
        self.contract = contract
        self._check()


def emulated(model: onnx.ModelProto, folder: Path) -> dict[str, np.ndarray]:
    """Change a graph into one that ONNX Runtime's CPU provider computes, in place.

    Returns the arrays of initializers that are no longer those of the weight file, by name.
    """
    arrays = _codes_as_integers(model, folder)
    _vendor_ops(model, set(arrays))
    _widen(model)
    return arrays


def _codes_as_integers(model: onnx.ModelProto, folder: Path) -> dict[str, np.ndarray]:
    """Turn every E2M1 initializer into int8 of twice its values."""
    arrays = {}
    for tensor in model.graph.initializer:
        if tensor.data_type != Proto.FLOAT4E2M1:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        size = int(np.prod(tensor.dims)) // 2
        packed = np.fromfile(inside(folder, place["location"]), np.uint8, size, offset=int(place.get("offset", 0)))
        array = np.empty(2 * size, np.int8)
        array[0::2], array[1::2] = _DOUBLED[packed & 15], _DOUBLED[packed >> 4]
        arrays[tensor.name] = array.reshape(tuple(tensor.dims))
        tensor.data_type = Proto.INT8
        for entry in tensor.external_data:
            if entry.key == "length":
                entry.value = str(2 * size)
    return arrays


def _vendor_ops(model: onnx.ModelProto, doubled: set[str]) -> None:
    """Give TensorRT's own ops bodies, and let what reads E2M1 codes, of which `doubled` are, halve their scales."""
    used: set[str] = set()
    if _spelled(model.graph, doubled, used):
        half = onnx.numpy_helper.from_array(np.array(0.5, np.float32), _HALF_NAME)
        model.graph.initializer.append(half)
    if used:
        model.opset_import.append(onnx.helper.make_opsetid(_LOCAL, 1))
        model.functions.extend(function for function in _functions() if function.name in used)
    kept = [entry for entry in model.opset_import if entry.domain != "trt"]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _spelled(graph: onnx.GraphProto, doubled: set[str], used: set[str]) -> bool:
    """Spell a graph's nodes, and those of graphs inside of them; tells whether scales are halved there."""
    nodes: list[onnx.NodeProto] = []
    halved = False
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                halved |= _spelled(attribute.g, doubled, used)
        if node.domain == "trt":
            node.domain = _LOCAL
            if node.op_type == "TRT_MXFP8DequantizeLinear":
                nodes += _mx_nodes(node)
                continue
            used.add(node.op_type)
            del node.attribute[:]
            if node.op_type == "TRT_FP4DynamicQuantize":
                doubled.add(node.output[0])
        elif node.op_type == "DequantizeLinear" and node.input[0] in doubled:
            half = f"{node.name}:half"
            nodes.append(_node("Mul", [node.input[1], _HALF_NAME], half))
            node.input[1], halved = half, True
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return halved


_HALF_NAME = "edgewright.trt.half"


def _functions() -> Iterator[onnx.FunctionProto]:
    head = f'<opset_import: ["" : 24], domain: "{_LOCAL}">\n'
    for text in _FUNCTIONS.strip().split("}\nTRT"):
        whole = text if text.startswith("TRT") else "TRT" + text
        yield onnx.parser.parse_function(head + (whole if whole.endswith("}") else whole + "}"))


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return onnx.helper.make_node(kind, list(inputs), [output], name=output, **attributes)


def _mx_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes that decode MXFP8: the scales' bytes are exponents with a bias of 127."""
    a = {entry.name: entry.i for entry in node.attribute}
    name, (codes, scales) = node.output[0], node.input
    blocks = {"axis": a["axis"], "block_size": a["block_size"]}
    return [
        _node("Cast", [scales], f"{name}:bytes", to=Proto.FLOAT),
        onnx.helper.make_node("Constant", [], [f"{name}:bias"], value_float=127.0),
        onnx.helper.make_node("Constant", [], [f"{name}:two"], value_float=2.0),
        _node("Sub", [f"{name}:bytes", f"{name}:bias"], f"{name}:exponent"),
        _node("Pow", [f"{name}:two", f"{name}:exponent"], f"{name}:steps"),
        _node("DequantizeLinear", [codes, f"{name}:steps"], f"{name}:decoded", **blocks),
        _node("Cast", [f"{name}:decoded"], name, to=a["output_dtype"]),
    ]


def _widen(model: onnx.ModelProto) -> None:
    """Let every op that computes in 16 bits compute in float32 and round what it gives."""
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model)
    model.CopyFrom(inferred)  # in which the graphs inside of nodes have their types, too
    known = {t.name: t.data_type for t in inferred.graph.initializer}
    for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output):
        known[value.name] = value.type.tensor_type.elem_type
    _widen_nodes(model.graph, known)
    del model.graph.value_info[:]


def _widen_nodes(graph: onnx.GraphProto, known: dict[str, int]) -> None:
    nodes: list[onnx.NodeProto] = []
    wide: dict[str, str] = {}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _widen_nodes(attribute.g, known | _types_inside(attribute.g))
                del attribute.g.value_info[:]
        halves = [name for name in node.input if known.get(name) in _HALVES]
        given = [name for name in node.output if known.get(name) in _HALVES]
        if node.op_type in _KEPT or node.domain == _LOCAL or not (halves or given):
            nodes.append(node)
            continue
        for place, name in enumerate(node.input):
            if known.get(name) in _HALVES:
                if name not in wide:
                    wide[name] = f"{name}:wide"
                    nodes.append(_node("Cast", [name], wide[name], to=Proto.FLOAT))
                node.input[place] = wide[name]
        nodes.append(node)
        for place, name in enumerate(node.output):
            if known.get(name) in _HALVES:
                node.output[place] = f"{name}:unrounded"
                nodes.append(_node("Cast", [node.output[place]], name, to=known[name]))
    del graph.node[:]
    graph.node.extend(nodes)


def _types_inside(graph: onnx.GraphProto) -> dict[str, int]:
    values = (*graph.value_info, *graph.input, *graph.output)
    return {value.name: value.type.tensor_type.elem_type for value in values}
