"""What a mix of formats costs: bytes of the weight file, or seconds of a decode step on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgewright.bundle.settings import EngineSettings
from edgewright.checkpoint import Checkpoint
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import onnxruntime as dialect
from edgewright.formats import Array, BlockFormat, FloatFormat, Format
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.weights import ComputedWeight, TensorSpec
from edgewright.graph.writer import ALIGNMENT, MODEL_FILE, layout_size, plan_layout, write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Recipe
from edgewright.quantizer.candidates import Decision
from edgewright.quantizer.plan import Target
from edgewright.quiet_ort import ort
from edgewright.runtime.engine import zeros
from edgewright.runtime.engines.onnxruntime import session_options

#: Formats by module.
Formats = Mapping[str, Format]

_SMALL, _SMALL_ALIGNMENT = 64 * 1024, 64
#: Runs that are timed, and those before.
_RUNS, _WARM = 31, 5
#: Tokens the cache of a timed decode step has room for.
_CAPACITY = 64


def _recipe(formats: Formats) -> Recipe:
    keep = FloatFormat("float32")
    return Recipe("search", keep, keep, keep).with_formats(formats)


def _lowered(checkpoint: Checkpoint, formats: Formats) -> Stage:
    stage = build_llm(checkpoint)
    quantize_stage(stage, _recipe(formats), requantize=True)
    return dialect.lower(stage)


def file_bytes(checkpoint: Checkpoint, formats: Formats) -> int:
    """Return the size of the weight file that a build with these formats writes; no weight is read."""
    return layout_size(plan_layout(_lowered(checkpoint, formats)))


def aligned_bytes(decision: Decision, fmt: Format) -> float:
    """Return what a decision's weights take in the weight file, the gaps between tensors included."""
    total = 0
    for target in decision.weights.values():
        for dtype, shape in fmt.specs(target.shape).values():
            size = TensorSpec("", dtype, shape).nbytes
            step = ALIGNMENT if size >= _SMALL else _SMALL_ALIGNMENT
            total += -(-size // step) * step
    return float(total)


class Latency:
    """Seconds of single products on this machine, each measured once, in graphs of one node."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder, self._threads = folder, threads
        self._known: dict[tuple[tuple[int, int], Format], float] = {}

    def of(self, decision: Decision, fmt: Format) -> float:
        """Return the seconds a decision's modules take for one token; looking up a row takes none."""
        return sum(self._product(_used(target), fmt) for target in decision.targets if target.kind != "embedding")

    def _product(self, shape: tuple[int, int], fmt: Format) -> float:
        if (shape, fmt) not in self._known:
            folder = self._folder / f"product-{len(self._known)}"
            write_stage(_product_stage(shape, fmt), folder)
            self._known[shape, fmt] = _seconds(folder, {"x": _row(shape[1])}, self._threads)
        return self._known[shape, fmt]

    def step(self, checkpoint: Checkpoint, formats: Formats, name: str) -> float:
        """Return the seconds of a decode step of the whole model."""
        stage = _lowered(checkpoint, formats)
        write_stage(stage, self._folder / name)
        return _seconds(self._folder / name, _step_feeds(stage.contract), self._threads)


def _used(target: Target) -> tuple[int, int]:
    """Return rows and width of what one token is multiplied with: of experts those it is sent to."""
    rows, width = target.shape
    return (max(1, rows * target.share[0] // target.share[1]), width)


def _product_stage(shape: tuple[int, int], fmt: Format) -> Stage:
    rows, width = shape
    stage = Stage("product", ir.Graph([], [], nodes=[], name="product"), StageContract((), ()))
    g = GraphBuilder(stage)
    x = g.input(TensorContract("x", "float32", (1, 1, width)))

    def make(start: int, stop: int) -> Array:
        return np.random.default_rng(start).standard_normal((stop - start, width), np.float32)

    with g.scope("product"):
        y = g.ew("Linear", x, g.weight(ComputedWeight("product.weight", shape, make)))
    g.output(y, TensorContract("y", "float32", (1, 1, rows)))
    if isinstance(fmt, BlockFormat) or fmt != FloatFormat("float32"):
        quantize_stage(stage, Recipe("product", fmt, fmt, fmt))
    return dialect.lower(stage)


def _row(width: int) -> Array:
    x: Array = zeros((1, 1, width), np.float32)
    x[:] = np.random.default_rng(0).standard_normal(x.shape)
    return x


def _step_feeds(contract: StageContract) -> dict[str, Array]:
    sizes = {"batch": 1, "seq": 1, "positions": 1, "capacity": _CAPACITY}
    feeds: dict[str, Array] = {}
    for tensor in contract.inputs:
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape)
        feeds[tensor.name] = zeros(shape, tensor.dtype)
    if "total_lengths" in feeds:
        feeds["total_lengths"][:] = 1
    return feeds


def _seconds(folder: Path, feeds: Mapping[str, Array], threads: int) -> float:
    """Return the median time of a run."""
    options = session_options(EngineSettings("all"), threads)
    session = ort.InferenceSession(str(folder / MODEL_FILE), options, providers=["CPUExecutionProvider"])
    taken = {value.name: ort.OrtValue.ortvalue_from_numpy(feeds[value.name]) for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    times = []
    for _ in range(_WARM + _RUNS):
        start = time.perf_counter()
        session.run_with_ort_values(outputs, taken)
        times.append(time.perf_counter() - start)
    return statistics.median(times[_WARM:])
