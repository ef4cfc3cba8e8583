"""Writes a static graph as ONNX: integer weights in one file that all graphs share, activations float or in codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgewright.dialects.qnn_graph import CONVERT, IDS, Source, StaticGraph
from edgewright.runtime.engines.qnn import Encoding
from edgewright.targets.qnn.encodings import encode
from edgewright.targets.qnn.weights import Weights

WEIGHTS = "weights.bin"
#: DequantizeLinear by blocks and in 16 bits is opset 21's, RMSNormalization 23's.
_OPSET = 23
_ALIGNMENT = 64
_TYPES = {"uint8": TensorProto.UINT8, "uint16": TensorProto.UINT16}


class WeightFile:
    """The weights of all graphs of a stage, written once; `tensors` are initializers that point into the file.

    `record` says of every linear what became of the recipe's weight, `ranges` what tables hold.
    """

    def __init__(self, weights: Weights, folder: Path, wanted: str) -> None:
        self._weights, self._wanted = weights, wanted
        self._path = folder / WEIGHTS
        self._cursor = 0
        self.tensors: dict[str, list[TensorProto]] = {}
        self.vectors: dict[str, npt.NDArray[np.float32]] = {}
        self.record: list[dict[str, object]] = []
        self.ranges: dict[str, tuple[float, float]] = {}
        self.encodings: dict[str, Encoding] = {}
        self.sizes: dict[str, int] = {}

    def write(self, sources: Mapping[str, Source]) -> None:
        """Write what the constants of a graph need; peak memory is about twice the largest weight in 8 bits."""
        with self._path.open("wb") as file:
            for name, source in sources.items():
                if source.kind == "vector":
                    self.vectors[name] = self._weights.vector(source)
                    continue
                before = self._cursor
                if source.kind == "table":
                    self._table(file, name, source)
                else:
                    self._linear(file, name, source)
                self.sizes[name] = self._cursor - before

    def _linear(self, file: BinaryIO, name: str, source: Source) -> None:
        weight = self._weights.linear(source, self._wanted)
        small = weight.bits == 4
        codes = weight.codes.astype(ml_dtypes.int4) if small else weight.codes
        tensors = [self._put(file, f"{name}.codes", codes), self._put(file, f"{name}.scales", weight.scales)]
        if weight.block is None:  # without it the HTP's 4-bit codes would be read as unsigned
            zeros = np.zeros(weight.scales.shape, dtype=codes.dtype)
            tensors.append(self._put(file, f"{name}.zeros", zeros))
        self.tensors[name] = tensors
        self.record.append({"module": source.module, "bits": weight.bits, "block": weight.block, "how": weight.how})

    def _table(self, file: BinaryIO, name: str, source: Source) -> None:
        """Write a table in 16 bits: a look-up on the HTP has one scale for all rows."""
        low = high = 0.0
        for rows in self._weights.blocks(source):
            low, high = min(low, float(rows.min())), max(high, float(rows.max()))
        self.ranges[name], self.encodings[name] = (low, high), encode(low, high, 16)
        parts = [self.encodings[name].codes(rows) for rows in self._weights.blocks(source)]
        self.tensors[name] = [self._put(file, f"{name}.codes", np.concatenate(parts))]
        self.record.append({"module": source.module, "bits": 16, "block": None, "how": "rounded"})

    def _put(self, file: BinaryIO, name: str, array: npt.NDArray[np.generic]) -> TensorProto:
        """Append an array and return the initializer that stands for it."""
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        data = _packed(array) if kind == TensorProto.INT4 else np.ascontiguousarray(array).tobytes()
        padding = -self._cursor % _ALIGNMENT
        file.write(bytes(padding))
        file.write(data)
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
        places = {"location": WEIGHTS, "offset": self._cursor + padding, "length": len(data)}
        for key, value in places.items():
            tensor.external_data.add(key=key, value=str(value))
        self._cursor += padding + len(data)
        return tensor


def _packed(array: npt.NDArray[np.generic]) -> bytes:
    """Return 4-bit numbers as bytes, low half first."""
    nibbles = array.astype(np.int8).reshape(-1).view(np.uint8) & 15
    nibbles = np.append(nibbles, np.zeros(len(nibbles) % 2, dtype=np.uint8))
    return (nibbles[::2] | nibbles[1::2] << 4).tobytes()


def model_of(
    graph: StaticGraph, file: WeightFile, encodings: Mapping[str, Encoding] | None, name: str, taps: Sequence[str] = ()
) -> onnx.ModelProto:
    """Return a static graph as a model over the weight file, of floats or, with `encodings`, in codes throughout.

    With `taps` the smallest and the largest value of these tensors are outputs, `NAME.min` and `NAME.max`.
    """
    return _Writer(graph, file, encodings).model(name, taps)


class _Writer:
    def __init__(self, graph: StaticGraph, file: WeightFile, encodings: Mapping[str, Encoding] | None) -> None:
        self.graph, self.file, self.encodings = graph, file, encodings
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.uses = 0

    def model(self, name: str, taps: Sequence[str]) -> onnx.ModelProto:
        for node in self.graph.nodes:
            inputs = [self._input(node, source) for source in node.input]
            if node.op_type == CONVERT and self.encodings is not None:
                scale = self._scale(self.encodings[node.output[0]])
                self.nodes.append(helper.make_node("QuantizeLinear", [inputs[0], *scale], node.output, name=node.name))
                continue
            made = onnx.NodeProto()
            made.CopyFrom(node)
            made.input[:] = inputs
            made.op_type = "Identity" if node.op_type == CONVERT else node.op_type
            self.nodes.append(made)
            if self.encodings is not None:
                made.output[:] = [f"{output}.float" for output in node.output]
                for output in node.output:
                    self._coded(output)
        for tap in taps:
            for kind in ("Min", "Max"):
                self.nodes.append(helper.make_node(f"Reduce{kind}", [tap], [f"{tap}.{kind.lower()}"], keepdims=0))
        body = helper.make_graph(
            self.nodes,
            name,
            [self._declared(value) for value in self.graph.inputs],
            [self._declared(value) for value in self.graph.outputs]
            + [helper.make_tensor_value_info(f"{t}.{k}", TensorProto.FLOAT, []) for t in taps for k in ("min", "max")],
            list(self.initializers.values()),
        )
        return helper.make_model(
            body, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10, producer_name="edgewright"
        )

    def _declared(self, name: str) -> onnx.ValueInfoProto:
        kind = TensorProto.INT32 if name == IDS else TensorProto.FLOAT
        if self.encodings is not None and name != IDS:
            kind = _TYPES[self.encodings[name].dtype]
        return helper.make_tensor_value_info(name, kind, self.graph.shapes[name])

    def _initializer(self, name: str, array: npt.NDArray[np.generic]) -> str:
        self.initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def _scale(self, encoding: Encoding) -> list[str]:
        """Return the names of an encoding's scale and zero point."""
        tag = f"{encoding.dtype}_{encoding.scale!r}_{encoding.offset}"
        return [
            self._initializer(f"scale_{tag}", np.asarray(encoding.scale, dtype=np.float32)),
            self._initializer(f"zero_{tag}", np.asarray(encoding.zero, dtype=encoding.dtype)),
        ]

    def _input(self, node: onnx.NodeProto, name: str) -> str:
        """Return what a node reads for a value; every use has a DequantizeLinear of its own."""
        if name == IDS:
            return name
        if name in self.file.tensors:
            return self._weight(name)
        constant = self.graph.constants.get(name, self.file.vectors.get(name))
        if constant is not None:
            return self._constant(node, name, constant)
        if self.encodings is None:
            return name
        return self._floats(f"{name}", self.encodings[name])

    def _floats(self, codes: str, encoding: Encoding) -> str:
        self.uses += 1
        y = f"{codes}.use_{self.uses}"
        self.nodes.append(helper.make_node("DequantizeLinear", [codes, *self._scale(encoding)], [y], name=y))
        return y

    def _coded(self, name: str) -> None:
        assert self.encodings is not None
        scale = self._scale(self.encodings[name])
        self.nodes.append(helper.make_node("QuantizeLinear", [f"{name}.float", *scale], [name], name=f"{name}.codes"))

    def _constant(self, node: onnx.NodeProto, name: str, array: npt.NDArray[np.generic]) -> str:
        if self.encodings is None or array.dtype != np.float32:
            return self._initializer(name, array)
        encoding = encode(float(array.min()), float(array.max()), 16)
        codes = self._initializer(f"{name}.codes", encoding.codes(array.astype(np.float32)))
        return self._floats(codes, encoding)

    def _weight(self, name: str) -> str:
        tensors = self.file.tensors[name]
        for tensor in tensors:
            self.initializers.setdefault(tensor.name, tensor)
        inputs = [tensor.name for tensor in tensors]
        if name in self.file.encodings:
            return self._floats(inputs[0], self.file.encodings[name])
        y = f"{name}.values"
        blocked = len(tensors) == 2
        size = {"block_size": tensors[0].dims[0] // tensors[1].dims[0]} if blocked else {}
        axis = 0 if blocked else 1
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [y], name=y, axis=axis, **size))
        return y
