"""What tests of quantized graphs share: weights in any format as initializers, and the two engines that run a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from edgewright.contract import StageContract, TensorContract
from edgewright.formats import (
    BlockFormat,
    IntFormat,
    MxFormat,
    Nvfp4Format,
    Parts,
    ScaledFormat,
)
from edgewright.graph import GraphBuilder, Producer, Stage, TensorSpec
from edgewright.graph.writer import MODEL_FILE, write_stage

SCALED = [ScaledFormat(e, s) for e in ("int8", "e4m3") for s in ("tensor", "channel", "block", "row-block")]
NARROW: list[BlockFormat] = [*SCALED, Nvfp4Format(), MxFormat("e4m3"), MxFormat("e2m1")]
INTEGER = [IntFormat(bits, group, zero) for bits in (4, 8) for group in (32, 64) for zero in (False, True)]
INTEGER += [IntFormat(4, 32, True, True, "float16"), IntFormat(8, 64, False, False, "float16")]


def label(fmt: Any) -> str:
    """A test id."""
    return str(fmt.label).replace(" ", "-")


def kind_of(fmt: BlockFormat) -> tuple[str, str | None]:
    """Return the attributes `format` and `scope` of the op that decodes a format."""
    data = fmt.to_json()
    return data["element"], data.get("scope")


def encoded(fmt: BlockFormat, values: np.ndarray) -> Parts:
    """Round a whole matrix."""
    shared = fmt.survey(float(np.abs(values).max(initial=0.0)))
    return {**shared, **fmt.encode(values, shared)}


class ArraysProducer(Producer):
    """Parts of a weight `[rows, width]` that are there already, given out in `pieces` of rows where they have rows."""

    def __init__(self, name: str, fmt: BlockFormat, shape: tuple[int, int], parts: Parts, step: int = 0) -> None:
        specs = {**fmt.specs(shape)}
        if "offsets" in parts:
            specs["offsets"] = ("float32", parts["offsets"].shape)
        self.specs = tuple(TensorSpec(f"{name}.{part}", *spec) for part, spec in specs.items())
        self._arrays = [parts[part] for part in specs]
        self._rows, self._step = shape[0], step or shape[0]

    def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
        for start in range(0, self._rows, self._step):
            yield lambda a=start: tuple(x[a : a + self._step] for x in self._arrays)  # type: ignore[misc]


Build = Callable[..., ir.Value]


def stage_of(build: Build, feeds: Mapping[str, np.ndarray], producers: list[Producer], rank: int = 2) -> Stage:
    """Build a stage whose inputs are `feeds`; `build(g, *inputs, **initializers by the last word of their name)`."""
    stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))
    g = GraphBuilder(stage)
    inputs = []
    for name, array in feeds.items():
        shape = tuple(f"{name}_{i}" for i in range(array.ndim))
        inputs.append(g.input(TensorContract(name, str(array.dtype), shape)))
    values = {v.name.rsplit(".", 1)[-1]: v for p in producers for v in stage.add_producer(p) if v.name}
    y = build(g, *inputs, **values)
    y.name = "y"
    y.type = ir.TensorType(ir.DataType.FLOAT)
    y.shape = ir.Shape([f"y_{i}" for i in range(rank)])
    stage.graph.outputs.append(y)
    return stage


def written(stage: Stage, folder: Path) -> Path:
    """Write a lowered stage and have it checked; returns the path of its graph."""
    write_stage(stage, folder)
    path = folder / MODEL_FILE
    onnx.checker.check_model(path, full_check=True)
    return path


def run_ort(path: Path, feeds: Mapping[str, np.ndarray], *, fold: bool = False) -> np.ndarray:
    """Run a graph in ONNX Runtime, as it is or with its constants folded."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if fold else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, dict(feeds))[0]
    return result


def run_reference(path: Path, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run a graph in the ONNX reference evaluator, which knows 4-bit floats."""
    result: np.ndarray = ReferenceEvaluator(onnx.load(path)).run(None, dict(feeds))[0]
    return result


def assert_same_bits(got: np.ndarray, wanted: np.ndarray) -> None:
    """Compare float32 arrays bit for bit; the sign of zero counts."""
    assert got.dtype == wanted.dtype == np.float32
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))
