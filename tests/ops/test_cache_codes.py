"""CacheRound and CacheRead against NumPy's codes by definition, in every dialect and layout of the last axes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from conftest import engine_of, run_graph
from edgewright import ops
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import LOWERINGS
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.weights import ComputedWeight
from edgewright.quant.kv import KVFormat
from kv_cases import FORMATS, FP8, INT8, codes_np, values_np

DIALECTS = ("portable", "onnx-qdq", "onnxruntime")


def stage_of(fmt: KVFormat, shape: tuple[int, ...], scales: np.ndarray) -> Stage:
    """A stage that rounds x, and reads other codes."""
    inputs = (TensorContract("x", "float32", shape), TensorContract("held", fmt.cache_dtype, shape))
    outputs = (TensorContract("codes", fmt.cache_dtype, shape), TensorContract("y", "float32", shape))
    stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract(inputs, outputs))
    g = GraphBuilder(stage)
    x, held = (g.input(tensor) for tensor in inputs)
    scale = stage.float_value(ComputedWeight("scale", scales.shape, lambda a, b: scales[a:b]))
    g.output(ops.cache_round(g, x, scale, kv_heads=shape[1], cache=fmt.cache_dtype), outputs[0])
    g.output(ops.cache_read(g, held, scale, kv_heads=shape[1]), outputs[1])
    return stage


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 3, 7, 4), (1, 1, 9, 6)], ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_codes_and_what_they_stand_for(dialect: str, fmt: KVFormat, shape: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(sum(shape))
    heads = shape[1] if fmt.per == "head" else 1
    scales = rng.uniform(0.5, 2.0, heads).astype(np.float32) * np.float32(2.0 / fmt.largest)
    x = rng.standard_normal(shape).astype(np.float32)  # some of it is beyond the largest code
    x.reshape(-1)[:4] = scales[0] * np.float32([0.5, 1.5, 2.5, -0.5])  # between two codes of int8: to the even one
    held = codes_np(rng.standard_normal(shape).astype(np.float32), scales, fmt)
    lowered = LOWERINGS[dialect](stage_of(fmt, shape, scales))
    plain = held.view(np.uint8) if fmt.dtype != "int8" else held
    arrays = {"x": x, "held": plain, "codes": np.zeros_like(plain), "y": np.zeros_like(x)}
    engine = engine_of(lowered, tmp_path)
    engine.bind(*({name: arrays[name] for name in names} for names in (("x", "held"), ("codes", "y"))))()
    wanted = codes_np(x, scales, fmt)
    got = arrays["codes"].view(wanted.dtype)
    np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(arrays["y"], values_np(held, scales))
    if dialect == "onnx-qdq":
        assert {node.op_type for node in lowered.graph} == {"QuantizeLinear", "DequantizeLinear"}


def test_rounding_is_that_of_a_language_models_cache() -> None:
    """The same numbers and scales, written into an empty cache by CacheWrite."""
    rng = np.random.default_rng(7)
    k, scale = rng.standard_normal((2, 5, 2 * 6)).astype(np.float32), np.array([0.013, 0.021], np.float32)
    by_head = k.reshape(2, 5, 2, 6).transpose(0, 2, 1, 3).copy()
    for fmt, dtype in ((INT8, np.int8), (FP8, ml_dtypes.float8_e4m3fn)):
        empty = np.zeros(by_head.shape, np.float32)

        def written(g: GraphBuilder, *given: ir.Value, cache: str = fmt.cache_dtype) -> ir.Value:
            k, empty, lengths, scale = given
            past = ops.cache_round(g, empty, scale, kv_heads=2, cache=cache)
            sizes = {"kv_heads": 2, "head_dim": 6, "value_dim": 6, "cache": cache}
            key, _ = ops.cache_write(g, k, k, past, past, lengths, scale, scale, **sizes)
            return ops.cache_read(g, key, scale, kv_heads=2)

        feeds = {"k": k, "empty": empty, "lengths": np.zeros(2, np.int64), "scale": scale}
        got = run_graph(written, feeds)
        codes = codes_np(by_head, scale, fmt)
        assert codes.dtype == dtype
        np.testing.assert_array_equal(got, values_np(codes, scale))
