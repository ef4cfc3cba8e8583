"""The references an engine is compared with: the portable float32 graph, with the original or the shipped weights."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgewright.bundle.settings import EngineSettings
from edgewright.dialects import portable
from edgewright.files import os_errors
from edgewright.graph import Stage
from edgewright.graph.builder import EW, make_node
from edgewright.graph.rewrite import module_of, replace
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.ops.quantized import QUANT_EMBEDDING, QUANT_LINEAR
from edgewright.progress import Advance
from edgewright.runtime.engine import Engine
from edgewright.verify.shipped import Leaf, ShippedTensors, ShippedWeight


@contextmanager
def reference_engine(stage: Stage, threads: int | None, advance: Advance) -> Iterator[Engine]:
    """Write `stage` (semantic, float) in the portable dialect to a temporary folder and load it."""
    with tempfile.TemporaryDirectory(prefix="edgewright-") as folder, os_errors("the reference graph"):
        write_stage(portable.lower(stage), Path(folder), progress=advance)
        # Folding would hold transposed copies of all weights; without it the transpositions fuse into the products.
        settings = EngineSettings("all", config={"optimization.disable_specified_optimizers": "ConstantFolding"})
        yield Engine(Path(folder) / MODEL_FILE, stage.contract, settings, threads=threads)


def use_shipped_weights(stage: Stage, found: dict[str, Leaf], tensors: ShippedTensors) -> None:
    """Turn every quantized node of a semantic stage back into its float twin over the weights the bundle ships."""
    for node in list(stage.graph):
        if node.domain != EW or node.op_type not in (QUANT_LINEAR.name, QUANT_EMBEDDING.name):
            continue
        codes = node.inputs[1]
        assert codes is not None
        assert codes.name is not None
        leaf = found[codes.name]
        producer = leaf.producer
        shape = producer.weight.shape  # type: ignore[attr-defined]
        name = f"{codes.name}.float"
        weight = ShippedWeight(name, leaf, producer.format, shape, tensors)  # type: ignore[attr-defined]
        bias = node.inputs[5] if len(node.inputs) > 5 else None
        op_type = node.op_type.removeprefix("Quant")
        inputs = [node.inputs[0], stage.float_value(weight), bias]
        twin = make_node(EW, op_type, inputs, {}, name=f"{module_of(node)}/float")
        replace(stage, node, [twin], twin.outputs)
    stage.drop_unused()
