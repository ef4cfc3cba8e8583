"""The references an engine is compared with: the portable float32 graph, with the original or the shipped weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from edgewright.bundle.settings import EngineSettings
from edgewright.dialects import portable
from edgewright.files import os_errors, scratch_folder
from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import module_of, replace
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.ops.decode import DECODE, DECODE_ROWS
from edgewright.ops.quantized import DEQUANTIZE, QUANT_EMBEDDING, QUANT_LINEAR
from edgewright.progress import Advance
from edgewright.runtime.engine import Engine
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.verify.graphs import Graph
from edgewright.verify.semantic import Semantic
from edgewright.verify.shipped import Leaf, ShippedWeight, Tensors

#: Nodes that make a float weight, and those that use the codes themselves.
_DECODERS = frozenset({DEQUANTIZE.name, DECODE.name})
#: Optimizers left out: constants that are folded would hold transposed copies of all weights (without it, the
#: transpositions fuse into the products); propagation ends the process where a loop reads rounded values.
LEFT_OUT = "ConstantFolding;QDQPropagationTransformer"
_QUANTIZED = _DECODERS | {QUANT_LINEAR.name, QUANT_EMBEDDING.name, DECODE_ROWS.name}


class Reference:
    """A float32 stage written in the portable dialect: `semantic` describes its ops, `graph` is the file."""

    def __init__(self, stage: Stage, folder: Path, advance: Advance) -> None:
        self.semantic, self.contract = Semantic(stage), stage.contract
        write_stage(portable.lower(stage, emulate=True), folder, progress=advance)
        self.settings = EngineSettings("all", config={"optimization.disable_specified_optimizers": LEFT_OUT})
        self.path = folder / MODEL_FILE

    def engine(self, threads: int | None) -> Engine:
        """Load it."""
        return OnnxRuntimeEngine(self.path, self.contract, self.settings, threads=threads)

    def graph(self) -> Graph:
        """Read its graph, to be cut."""
        return Graph(self.path, self.settings)


@contextmanager
def reference_of(stage: Stage, advance: Advance) -> Iterator[Reference]:
    """Write `stage` (semantic, float) to a temporary folder; it is gone afterwards."""
    with scratch_folder() as folder, os_errors("the reference graph"):
        yield Reference(stage, folder, advance)


def use_shipped_weights(stage: Stage, found: dict[str, Leaf], tensors: Tensors) -> None:
    """Turn every quantized node of a semantic stage back into its float twin over the weights that `tensors` give."""
    for node in list(stage.graph):
        if node.domain != EW or node.op_type not in _QUANTIZED:
            continue
        codes = node.inputs[0 if node.op_type in _DECODERS else 1]
        assert codes is not None
        assert codes.name is not None
        leaf = found[codes.name]
        producer = leaf.producer
        shape = producer.weight.shape  # type: ignore[attr-defined]
        name = f"{codes.name}.float"
        weight = ShippedWeight(name, leaf, producer.format, shape, tensors)  # type: ignore[attr-defined]
        if node.op_type in _DECODERS:
            ir.convenience.replace_all_uses_with(node.outputs[0], stage.float_value(weight))
            continue
        bias = node.inputs[5] if len(node.inputs) > 5 else None
        op_type = "Embedding" if node.op_type == DECODE_ROWS.name else node.op_type.removeprefix("Quant")
        inputs = [node.inputs[0], stage.float_value(weight), bias]
        twin = make_node(EW, op_type, inputs, {}, name=f"{module_of(node)}/float")
        replace(stage, node, [twin], twin.outputs)
    stage.drop_unused()
