"""Makes ONNX Runtime's CPU provider run a graph of TensorRT Edge-LLM from its own bytes: functions for the plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from edgewright.errors import BundleError, UnsupportedFormatError, first_line
from edgewright.files import inside
from edgewright.graph.stage import OPSET
from edgewright.quiet_ort import ort
from edgewright.targets.edgellm import bodies
from edgewright.targets.edgellm.unpacking import e2m1_values, from_fragments, from_stripes, mx_values

Array = np.ndarray
_MICROSOFT = "com.microsoft"
_FLOAT, _HALF = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
#: Types that are read as bytes.
_BYTES = dict.fromkeys((TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E4M3FN), np.uint8)


def load(path: Path, threads: int | None) -> ort.InferenceSession:
    """Load a graph; raises BundleError where it isn't what the dialect writes."""
    try:
        graph = _Rewritten(path)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        options.add_external_initializers(list(graph.made), list(graph.made.values()))
        return ort.InferenceSession(graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except (UnsupportedFormatError, BundleError):
        raise
    except Exception as error:
        raise BundleError(
            f"{path.name} is no graph of TensorRT Edge-LLM that can be run here: {first_line(error)} Build it again."
        ) from None


class _Rewritten:
    """A graph with functions in the place of plug-ins, and unpacked weights, `made`, by name."""

    def __init__(self, path: Path) -> None:
        self.model = onnx.load(path, load_external_data=False)
        self._folder = path.parent
        self.made: dict[str, ort.OrtValue] = {}
        self._weights = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self._functions: dict[tuple[object, ...], str] = {}
        self._replaced: set[str] = set()
        nodes = list(self.model.graph.node)
        del self.model.graph.node[:]
        for node in nodes:
            rule = _RULES.get((node.domain, node.op_type))
            if rule is not None:
                rule(self, node)
            elif not node.domain:
                self._add(node)
            else:
                raise UnsupportedFormatError(f"{node.name}: {node.domain}::{node.op_type} can't be run here.")
        self._finish()

    def _finish(self) -> None:
        kept = [tensor for tensor in self.model.graph.initializer if tensor.name not in self._replaced]
        del self.model.graph.initializer[:]
        self.model.graph.initializer.extend(kept)
        del self.model.opset_import[:]
        for domain, version in (("", OPSET), (bodies.DOMAIN, 1), (_MICROSOFT, 1)):
            self.model.opset_import.append(onnx.helper.make_opsetid(domain, version))

    def _add(self, *nodes: onnx.NodeProto) -> None:
        self.model.graph.node.extend(nodes)

    def _call(self, node: onnx.NodeProto, key: tuple[object, ...], make: Callable[[str], onnx.FunctionProto]) -> None:
        """Put a call of a function in a node's place; one function for each key."""
        if key not in self._functions:
            self._functions[key] = f"f{len(self._functions)}"
            self.model.functions.append(make(self._functions[key]))
        inputs, outputs = list(node.input), list(node.output)
        self._add(onnx.helper.make_node(self._functions[key], inputs, outputs, name=node.name, domain=bodies.DOMAIN))

    def _read(self, name: str) -> Array:
        """Return a weight's bytes, as it is in the file."""
        tensor = self._weights.get(name)
        if tensor is None:
            raise BundleError(f"The weight {name} is missing in the graph: build it again.")
        if tensor.data_location != TensorProto.EXTERNAL:
            array: Array = onnx.numpy_helper.to_array(tensor)
            return array
        entries = {entry.key: entry.value for entry in tensor.external_data}
        start, length = int(entries.get("offset", 0)), int(entries["length"])
        with inside(self._folder, entries["location"]).open("rb") as file:
            file.seek(start)
            data = file.read(length)
        kind = _BYTES.get(tensor.data_type)
        if kind is not None:
            return np.frombuffer(data, kind)
        return np.frombuffer(data, onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(tuple(tensor.dims))

    def _give(self, name: str, array: Array, old: str) -> None:
        """Add a weight that was made of another one."""
        self._replaced.add(old)
        tensor = self.model.graph.initializer.add()
        tensor.name, tensor.data_type = name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.dims.extend(array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "memory"
        self.made[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

    def attention(self, node: onnx.NodeProto) -> None:
        a = attributes_of(node)
        key = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(a.items()))
        self._call(node, ("attention", *key), lambda name: bodies.attention(name, a))

    def int4(self, node: onnx.NodeProto) -> None:
        """A product with 4-bit codes, unpacked to the order of ONNX Runtime's own kernel."""
        a, (x, packed, scales) = attributes_of(node), node.input
        rows, width, group = a["gemm_n"], a["gemm_k"], a["group_size"]
        unpack = from_fragments if node.op_type.endswith("V2") else from_stripes
        codes = unpack(self._read(packed), rows, width)
        pairs = (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(rows, width // group, group // 2)
        name = node.output[0]
        self._give(f"{name}/codes", pairs, packed)
        self._give(f"{name}/scales", self._read(scales).T.astype(np.float32), scales)
        product = {"K": width, "N": rows, "bits": 4, "block_size": group, "accuracy_level": 1}
        inputs = [f"{name}/x", f"{name}/codes", f"{name}/scales"]
        self._add(
            onnx.helper.make_node("Cast", [x], [f"{name}/x"], to=_FLOAT),
            onnx.helper.make_node("MatMulNBits", inputs, [f"{name}/y"], domain=_MICROSOFT, **product),
            onnx.helper.make_node("Cast", [f"{name}/y"], [name], to=_HALF),
        )

    def concat(self, node: onnx.NodeProto) -> None:
        self._add(onnx.helper.make_node("Concat", list(node.input), list(node.output), axis=-1))

    def fp4_quantize(self, node: onnx.NodeProto) -> None:
        self._call(node, ("fp4",), bodies.fp4_quantize)

    def mx_quantize(self, node: onnx.NodeProto) -> None:
        self._call(node, ("mx",), bodies.mx_quantize)

    def scale(self, node: onnx.NodeProto) -> None:
        """The dequantization of inputs: by blocks, or by one scale."""
        block = attributes_of(node).get("block_size")
        if block is None:
            self._call(node, ("all",), bodies.scale_all)
        else:
            self._call(node, ("blocks", block), lambda name: bodies.scale_blocks(name, block, _HALF))

    def mx_dequantize(self, node: onnx.NodeProto) -> None:
        """Weights are decoded ahead, inputs by a function."""
        if node.input[0] not in self._weights:
            self.scale(node)
            return
        codes, exponents = node.input
        shape = tuple(self._weights[codes].dims)
        self._replaced.add(exponents)
        self._give(node.output[0], mx_values(self._read(codes).reshape(shape), self._read(exponents)), codes)

    def dequantize(self, node: onnx.NodeProto) -> None:
        """4-bit floats, for which there are no kernels, become float16 with the same values."""
        tensor = self._weights.get(node.input[0])
        if tensor is None or tensor.data_type != TensorProto.FLOAT4E2M1:
            self._add(node)
            return
        rows, width = tensor.dims
        block = attributes_of(node)["block_size"]
        name = f"{node.output[0]}/values"
        self._give(name, e2m1_values(self._read(tensor.name).tobytes(), rows, width), tensor.name)
        node.input[0] = name
        self._call(node, ("steps", block), lambda name: bodies.scale_blocks(name, block, _FLOAT))


_Rule = Callable[[_Rewritten, onnx.NodeProto], None]
_RULES: dict[tuple[str, str], _Rule] = {
    ("trt_edgellm", "AttentionPlugin"): _Rewritten.attention,
    ("trt_edgellm", "Int4GroupwiseGemmPlugin"): _Rewritten.int4,
    ("trt_edgellm", "Int4GroupwiseGemmPluginV2"): _Rewritten.int4,
    ("trt_edgellm", "QkvConcatPlugin"): _Rewritten.concat,
    ("trt", "TRT_FP4DynamicQuantize"): _Rewritten.fp4_quantize,
    ("trt", "TRT_MXFP8DynamicQuantize"): _Rewritten.mx_quantize,
    ("trt", "TRT_MXFP8DequantizeLinear"): _Rewritten.mx_dequantize,
    ("trt", "DequantizeLinear"): _Rewritten.scale,
    ("", "DequantizeLinear"): _Rewritten.dequantize,
}


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
