"""Graph surgery for the verifier, on ONNX messages: tap values, and cut a graph at values that are then fed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

from edgewright.bundle.settings import EngineSettings
from edgewright.errors import BundleError, first_line
from edgewright.quiet_ort import ort
from edgewright.runtime.engines.onnxruntime import session_options, share

Array = npt.NDArray[Any]

#: What the recomputed twin of a cut value is called.
AGAIN = "/again"
#: FP8 codes, as arrays have them here; ONNX Runtime gives and takes them as bytes.
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
_FP8_TYPE = "tensor(float8e4m3fn)"


def to_value(array: Array) -> ort.OrtValue:
    """Return an OrtValue over an array's memory."""
    return share(array.view(np.uint8), "float8_e4m3fn") if array.dtype == FP8 else share(array)


def to_array(value: ort.OrtValue) -> Array:
    """Return the array of an OrtValue, over its memory."""
    array: Array = value.numpy()
    return array.view(FP8) if value.data_type() == _FP8_TYPE else array


@dataclass(frozen=True)
class Fed:
    """What is known of a value that is fed: dtype, and a shape of numbers, names or None."""

    dtype: np.dtype
    shape: tuple[int | str | None, ...]


class Graph:
    """An ONNX file without its weights: nodes in order, who makes a value, and the folder its weights are in."""

    def __init__(self, path: Path, settings: EngineSettings) -> None:
        self.model = onnx.load(path, load_external_data=False)
        self.folder, self.settings = path.parent, settings
        self.nodes = list(self.model.graph.node)
        self.made = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.inputs = {value.name for value in self.model.graph.input}
        self.outputs = [value.name for value in self.model.graph.output]

    def tapped(self, values: Iterable[str], threads: int | None) -> ort.InferenceSession:
        """Load the graph with more of its values as outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        extra = [value for value in dict.fromkeys(values) if value not in self.outputs and value not in self.inputs]
        model.graph.output.extend(onnx.ValueInfoProto(name=value) for value in extra)
        return self.load(model, threads)

    def cut(self, cuts: Mapping[str, Fed], wanted: Sequence[str], threads: int | None) -> ort.InferenceSession:
        """Load the part that recomputes the values `wanted` with the values `cuts` fed.

        The recomputed value is called as the value itself with AGAIN behind it. Where a value is fed, what follows it
        reads the fed one, so that no error is carried from one value to the next.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        twin = {value: value + AGAIN for value in {*cuts, *wanted} if value in self.made}
        nodes = list(model.graph.node)
        for node in nodes:
            for index, name in enumerate(node.output):
                if name in twin:
                    node.output[index] = twin[name]
            for index, name in enumerate(node.input):
                if name in twin and name not in cuts:
                    node.input[index] = twin[name]
        outputs = [twin[value] for value in wanted]
        kept, read = _needed(nodes, set(outputs))
        del model.graph.node[:], model.graph.output[:], model.graph.value_info[:]
        model.graph.node.extend(kept)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        inputs = [value for value in model.graph.input if value.name in read]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        for value, fed in cuts.items():
            if value in read and value in self.made:
                kind = onnx.helper.np_dtype_to_tensor_dtype(fed.dtype)
                model.graph.input.append(onnx.helper.make_tensor_value_info(value, kind, fed.shape))
        initializers = [tensor for tensor in model.graph.initializer if tensor.name in read]
        del model.graph.initializer[:]
        model.graph.initializer.extend(initializers)
        return self.load(model, threads)

    def load(self, model: onnx.ModelProto, threads: int | None) -> ort.InferenceSession:
        """Load a changed copy of this graph over the same weights."""
        options = session_options(self.settings, threads)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self.folder))
        try:
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise BundleError(f"The graph with taps can't be loaded: {first_line(error)}") from None


def _needed(nodes: Sequence[onnx.NodeProto], wanted: set[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return the nodes that `wanted` needs, in order, and every name they read."""
    kept: list[onnx.NodeProto] = []
    read = set(wanted)
    for node in reversed(nodes):
        if read.intersection(node.output):
            kept.append(node)
            read.update(_reads(node))
    return kept[::-1], read


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the outer values a node reads, those of its subgraphs included."""
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _reads(inner)
    return names


def run(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a session on the feeds it takes; returns its outputs by name."""
    taken = {value.name: feeds[value.name] for value in session.get_inputs()}
    outputs = session.get_outputs()
    fed = {name: to_value(array) if array.dtype == FP8 else array for name, array in taken.items()}
    try:
        arrays = session.run([value.name for value in outputs], fed)
        return {v.name: a.view(FP8) if v.type == _FP8_TYPE else a for v, a in zip(outputs, arrays, strict=True)}
    except Exception as error:
        raise BundleError(f"The graph fails when it is run with taps: {first_line(error)}") from None
