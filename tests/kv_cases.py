"""What the tests of quantized caches share: scales of a golden, engines, one attention as a stage, NumPy's codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from conftest import engine_of
from edgewright import ops
from edgewright.checkpoint import Checkpoint
from edgewright.contract import KVLayer, StageContract, TensorContract
from edgewright.dialects import LOWERINGS
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.models import build_llm
from edgewright.quant.kv import KVFormat, KVScales, quantize_cache
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.session import Session

INT8, INT8_HEAD = KVFormat("int8", "tensor"), KVFormat("int8", "head")
FP8, FP8_HEAD = KVFormat("float8_e4m3", "tensor"), KVFormat("float8_e4m3", "head")
FORMATS = (INT8, INT8_HEAD, FP8, FP8_HEAD)
MODULE = "model.layers.0.self_attn"


def codes_np(values: np.ndarray, scales: np.ndarray, fmt: KVFormat) -> np.ndarray:
    """The codes of values `[..., heads, slots, width]`, by definition: nearest, ties to even, cut off at the ends."""
    scaled = (values / scales.reshape(-1, 1, 1)).astype(np.float32)
    if fmt.dtype == "int8":
        return np.clip(np.rint(scaled), -128, 127).astype(np.int8)
    return np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)


def values_np(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Undo `codes_np`, in float32."""
    return codes.astype(np.float32) * scales.reshape(-1, 1, 1)


def scales_of(
    checkpoint: Checkpoint, fmt: KVFormat, ids: np.ndarray, folder: Path, room: float = 1.0
) -> dict[str, KVScales]:
    """Scales that put the largest magnitude of each float32 cache over `ids`, times `room`, at the largest code."""
    stage = build_llm(checkpoint)
    nodes = [node for node in stage.graph if node.domain == EW and node.op_type == "Attention"]
    modules = [module_of(node) for node in nodes if node.inputs[1] is not None]
    session = Session(engine_of(LOWERINGS["portable"](stage), folder))
    session.append(ids, logits="none")
    cache = session.cache()
    scales = {}
    for index, module in enumerate(modules):
        parts = [np.abs(array).max(axis=(0, 2, 3)) for array in cache[2 * index : 2 * index + 2]]
        if fmt.per == "tensor":
            parts = [part.max(keepdims=True) for part in parts]
        scales[module] = KVScales(*(np.asarray(part * room / fmt.largest, dtype=np.float32) for part in parts))
    return scales


def cached_engine(
    checkpoint: Checkpoint, fmt: KVFormat, scales: Mapping[str, KVScales], dialect: str, folder: Path
) -> OnnxRuntimeEngine:
    """An engine over a quantized cache."""
    stage = build_llm(checkpoint)
    quantize_cache(stage, fmt, scales)
    return engine_of(LOWERINGS[dialect](stage), folder)


#: Symbolic shapes of the inputs of `attention_stage`; the others have those of their arrays.
_SHAPES: dict[str, tuple[int | str, ...]] = {
    **{name: ("batch", "seq", f"width_{name}") for name in "qkv"},
    **dict.fromkeys(("input_ids", "positions"), ("batch", "seq")),
    "past_lengths": ("batch",),
}


def attention_stage(sizes: Mapping[str, Any], feeds: Mapping[str, np.ndarray], *, rope: bool = False) -> Stage:
    """A stage of one cached attention whose inputs are named after `feeds`; `sizes` go to `ops.attention`."""
    kv_heads, widths = sizes["kv_heads"], {"key": sizes["head_dim"], "value": sizes["value_dim"]}
    layer = KVLayer("past_key", "past_value", "present_key", "present_value", kv_heads, *widths.values())
    layer = dataclasses.replace(layer, window=None, value_dim=widths["value"])
    caches = [
        [TensorContract(f"{time}_{n}", "float32", ("batch", kv_heads, "capacity", w)) for n, w in widths.items()]
        for time in ("past", "present")
    ]
    inputs = [
        TensorContract(name, str(array.dtype), _SHAPES.get(name, array.shape))
        for name, array in feeds.items()
        if not name.startswith("past_") or name == "past_lengths"
    ]
    y = TensorContract("y", "float32", ("batch", "seq", sizes["heads"] * widths["value"]))
    stage = Stage(
        "test",
        ir.Graph([], [], nodes=[], name="test"),
        StageContract((*inputs, *caches[0]), (y, *caches[1]), kv=(layer,)),
    )
    g = GraphBuilder(stage)
    v = {tensor.name: g.input(tensor) for tensor in stage.contract.inputs}
    q, k = v["q"], v["k"]
    with g.scope(MODULE):
        if rope:
            turn = {"head_dim": widths["key"], "rotary_dim": widths["key"]}
            q, k = (ops.rope(g, x, v["positions"], v["cos"], v["sin"], **turn) for x in (q, k))
        past = (v["past_key"], v["past_value"], v["past_lengths"])
        results = ops.attention(g, q, k, v["v"], *past, sinks=v.get("sinks"), **sizes)
    for result, tensor in zip(results, stage.contract.outputs, strict=True):
        g.output(result, tensor)
    return stage


def run_stage(stage: Stage, feeds: Mapping[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Write and run a lowered stage, its caches in place where the contract says so; FP8 caches are bytes."""
    engine = engine_of(stage, folder)
    contract = stage.contract
    arrays = {name: array.copy() for name, array in feeds.items()}
    batch, seq, _ = feeds["q"].shape
    width = contract.outputs[0].shape[-1]
    assert isinstance(width, int)
    arrays["y"] = np.empty((batch, seq, width), dtype=np.float32)
    for name in ("key", "value"):
        past = arrays[f"past_{name}"]
        arrays[f"present_{name}"] = past if contract.kv_in_place else np.zeros_like(past)
    engine.bind(*({t.name: arrays[t.name] for t in tensors} for tensors in (contract.inputs, contract.outputs)))()
    return {tensor.name: arrays[tensor.name] for tensor in contract.outputs}
