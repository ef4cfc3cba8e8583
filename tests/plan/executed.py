"""The multiply-adds of a graph as ONNX Runtime runs it: read off the shapes in its profile, node by node."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgewright.dialects import LOWERINGS
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, write_stage

_DTYPES = {"float32": np.float32, "int64": np.int64}


def executed_macs(stage: Stage, sizes: dict[str, int], folder: Path, *, past: int = 0) -> dict[str, int]:
    """Lower a float stage to the portable dialect, run it once, and return the MACs of all MatMul and Gemm, by node.

    The stage can't be used for anything else afterwards.
    """
    lowered = LOWERINGS["portable"](stage)
    write_stage(lowered, folder)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(str(folder / MODEL_FILE), options, providers=["CPUExecutionProvider"])
    session.run(None, {tensor.name: _feed(tensor, sizes, past) for tensor in lowered.contract.inputs})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found = {}
    for event in events:
        told = event.get("args", {})
        if told.get("op_name") in ("MatMul", "Gemm") and event["name"].endswith("_kernel_time"):
            a, _ = _shapes(told["input_type_shape"])[:2]
            (y,) = _shapes(told["output_type_shape"])
            found[event["name"].removesuffix("_kernel_time")] = math.prod(y) * a[-1]
    return found


def _feed(tensor, sizes: dict[str, int], past: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape)
    whole = {"past_lengths": past, "total_lengths": past + sizes.get("seq", 0), "prefix_mask": 1}
    value = whole.get(tensor.name, 0)
    return np.full(shape, value, _DTYPES[tensor.dtype])


def _shapes(told: list[dict[str, list[int]]]) -> list[list[int]]:
    return [next(iter(entry.values())) for entry in told]
