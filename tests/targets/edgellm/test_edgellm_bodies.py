"""What stands for each plug-in, against NumPy and the toolkit's own formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgewright.formats import MxFormat, Nvfp4Format
from edgewright.graph.stage import OPSET
from edgewright.targets.edgellm import bodies
from edgewright.targets.edgellm.unpacking import e2m1_values, mx_values

HALF, FLOAT, E4M3 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT8E4M3FN
KINDS = {"float16": HALF, "float32": FLOAT, "int32": onnx.TensorProto.INT32, "uint8": E4M3}


def run(function: onnx.FunctionProto, inputs: Mapping[str, np.ndarray], kinds: Mapping[str, int]) -> list[np.ndarray]:
    """Run a function on arrays; arrays of uint8 are FP8 codes. `kinds` are its outputs' types."""
    make, names = onnx.helper.make_tensor_value_info, [f"in_{name}" for name in inputs]
    fed = [make(name, KINDS[str(a.dtype)], [None] * a.ndim) for name, a in zip(names, inputs.values(), strict=True)]
    node = onnx.helper.make_node(function.name, names, list(kinds), domain=bodies.DOMAIN)
    given = [make(name, kind, None) for name, kind in kinds.items()]
    graph = onnx.helper.make_graph([node], "g", fed, given)
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(bodies.DOMAIN, 1)]
    model = onnx.helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(a, E4M3)
        if a.dtype == np.uint8
        else ort.OrtValue.ortvalue_from_numpy(a)
        for name, a in zip(names, inputs.values(), strict=True)
    }
    return [value.numpy() for value in session.run_with_ort_values(list(kinds), values)]


def attributes(**changes: Any) -> dict[str, Any]:
    return {
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_size": 6,
        "enable_fp8_kv_cache": 0,
        "sliding_window_size": -1,
        "qkv_scales": [1.0, 1.0, 1.0],
        "attention_scale": 0.4,
        "rms_norm_eps": 0.01,
        "enable_qk_norm": 0,
        "qk_norm_post_rope": 0,
    } | changes


class Ragged:
    """Three sequences of 3, 1 and 5 tokens after 2, 130 and 0 others, in pages of a shuffled pool."""

    lengths, past = (3, 1, 5), (2, 130, 0)

    def __init__(self, a: Mapping[str, Any]) -> None:
        rng = np.random.default_rng(3)
        self.a = a
        self.heads, self.kv, self.dim = a["num_q_heads"], a["num_kv_heads"], a["head_size"]
        width, tokens = (self.heads + 2 * self.kv) * self.dim, sum(self.lengths)
        self.qkv = rng.standard_normal((tokens, width)).astype(np.float16)
        self.table = np.array([[3, -1], [0, 4], [2, -1]], np.int32)
        self.pages = 5
        self.pool = rng.standard_normal((2, self.pages, 128, self.kv, self.dim)).astype(np.float16)
        angles = rng.uniform(-2, 2, (tokens, self.dim // 2)).astype(np.float32)
        self.rope = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        self.gammas = {name: rng.uniform(0.5, 1.5, self.dim).astype(np.float16) for name in ("q_gamma", "k_gamma")}

    def inputs(self, pool: np.ndarray) -> dict[str, np.ndarray]:
        both = np.stack([self.table, np.where(self.table < 0, -1, self.table + self.pages)], axis=1)
        i32 = np.int32
        return {
            "qkv": self.qkv,
            "pool": pool,
            "query_lengths": np.array(self.lengths, i32),
            "rope": self.rope,
            "past": np.array(self.past, i32),
            "table": both.astype(i32),
            **(self.gammas if self.a["enable_qk_norm"] else {}),
            "offsets": np.cumsum([0, *self.lengths]).astype(i32),
            "totals": np.add(self.past, self.lengths).astype(i32),
            "marker": np.zeros(1, i32),
            "carrier": np.zeros(3, i32),
        }

    def turned(self, x: np.ndarray, token: int, gamma: str) -> np.ndarray:
        """Return heads `[n, dim]` of a token with norm and rope in their order."""

        def norm(v: np.ndarray) -> np.ndarray:
            if not self.a["enable_qk_norm"]:
                return v
            root = np.sqrt((v**2).mean(axis=-1, keepdims=True) + self.a["rms_norm_eps"])
            return v / root * self.gammas[gamma].astype(np.float64)

        half = self.dim // 2
        cos, sin = self.rope[token, :half], self.rope[token, half:]
        after = self.a["qk_norm_post_rope"]
        x = x if after else norm(x)
        x = np.concatenate([x[:, :half] * cos - x[:, half:] * sin, x[:, half:] * cos + x[:, :half] * sin], axis=1)
        return norm(x) if after else x

    def expected(self, stored: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return what is computed, token by token, and the pool; `stored` rounds new rows of a side."""
        pool = self.pool.astype(np.float64)
        result, token = np.zeros((len(self.qkv), self.heads, self.dim)), 0
        for sequence, (count, past) in enumerate(zip(self.lengths, self.past, strict=True)):
            for position in range(past, past + count):
                parts = self.qkv[token].astype(np.float64).reshape(-1, self.dim)
                q, k, v = np.split(parts, [self.heads, self.heads + self.kv])
                page, row = self.table[sequence, position // 128], position % 128
                pool[0, page, row] = stored(self.turned(k, token, "k_gamma"), 0)
                pool[1, page, row] = stored(v, 1)
                first = max(0, position + 1 - w) if (w := self.a["sliding_window_size"]) > 0 else 0
                seen = [(self.table[sequence, p // 128], p % 128) for p in range(first, position + 1)]
                query = self.turned(q, token, "q_gamma")
                for head in range(self.heads):
                    group = head // (self.heads // self.kv)
                    keys = np.array([pool[0, p, r, group] for p, r in seen])
                    scores = keys @ query[head] * self.a["attention_scale"]
                    shares = np.exp(scores - scores.max())
                    values = np.array([pool[1, p, r, group] for p, r in seen])
                    result[token, head] = shares @ values / shares.sum()
                token += 1
        return result, pool


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"enable_qk_norm": 1},
        {"enable_qk_norm": 1, "qk_norm_post_rope": 1},
        {"sliding_window_size": 3},
        {"num_kv_heads": 4},
        {"num_kv_heads": 1, "attention_scale": 1.0},
    ],
    ids=str,
)
def test_attention_over_pages_of_ragged_sequences(changes: dict[str, Any]) -> None:
    a = attributes(**changes)
    case = Ragged(a)
    y, pool = run(bodies.attention("f", a), case.inputs(case.pool), {"y": HALF, "present": HALF})
    wanted, after = case.expected(lambda rows, _: rows.astype(np.float16).astype(np.float64))
    np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(pool.astype(np.float64), after, rtol=1e-3, atol=1e-3)
    untouched = np.ones(pool.shape[:3], bool)
    for sequence, (count, past) in enumerate(zip(case.lengths, case.past, strict=True)):
        for position in range(past, past + count):
            untouched[:, case.table[sequence, position // 128], position % 128] = False
    np.testing.assert_array_equal(pool[untouched], case.pool[untouched])


def test_attention_over_pages_of_fp8() -> None:
    a = attributes(enable_fp8_kv_cache=1, qkv_scales=[1.0, 0.25, 0.125])
    case = Ragged(a)
    scales = np.array([0.25, 0.125])[:, None, None, None, None]
    codes = (case.pool / scales).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    case.pool = codes.astype(np.float64) * scales

    def stored(rows: np.ndarray, side: int) -> np.ndarray:
        scale = (0.25, 0.125)[side]
        return (rows / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale

    y, pool = run(bodies.attention("f", a), case.inputs(codes.view(np.uint8)), {"y": HALF, "present": E4M3})
    wanted, after = case.expected(stored)
    np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=3e-3, atol=3e-3)
    got = pool.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales
    assert (got == after).mean() > 0.9999  # a value on the edge of two codes may fall to either


def test_fp4_inputs_are_the_formats_own() -> None:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((3, 2, 64)) * 3).astype(np.float16)
    x[0, 0, :16] = 0
    x[1, 0, 16:32] *= np.float16(2e-6)  # a block whose own scale is the smallest there is
    fmt, rows = Nvfp4Format(), x.astype(np.float32).reshape(6, 64)
    whole = np.float32(np.abs(rows).max() / (6 * 448))
    codes, scales = run(bodies.fp4_quantize("f"), {"x": x, "global": np.asarray(whole)}, {"y": HALF, "s": HALF})
    parts = fmt.encode(rows, {"global_scale": np.full(1, whole)})
    wanted = fmt.decode({**parts, "global_scale": np.full(1, whole)}, 64)
    got = codes.astype(np.float32).reshape(6, 4, 16) * scales.astype(np.float32).reshape(6, 4, 1) * whole
    np.testing.assert_allclose(got.reshape(6, 64), wanted, rtol=1e-6)
    assert set(np.abs(np.unique(codes)).tolist()) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}


def test_mx_inputs_are_the_formats_own() -> None:
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((2, 3, 64)) * rng.uniform(0.01, 30, (2, 3, 1))).astype(np.float16)
    x[1, 2, 32:] = 0
    fmt, rows = MxFormat("e4m3"), x.astype(np.float32).reshape(6, 64)
    numbers, powers = run(bodies.mx_quantize("f"), {"x": x}, {"y": HALF, "s": FLOAT})
    got = (numbers.astype(np.float32).reshape(6, 2, 32) * powers.reshape(6, 2, 1)).reshape(6, 64)
    np.testing.assert_array_equal(got, fmt.decode(fmt.encode(rows, {}), 64))


def test_scales_of_blocks_and_of_all() -> None:
    x = np.arange(64, dtype=np.float16).reshape(2, 32)
    s = np.array([[1, 2], [3, 4]], np.float16)
    (y,) = run(bodies.scale_blocks("f", 16, HALF), {"x": x, "s": s}, {"y": HALF})
    np.testing.assert_array_equal(y, x * np.repeat(s, 16, axis=1))
    (y,) = run(bodies.scale_all("f"), {"x": x, "s": np.array(0.5, np.float16)}, {"y": HALF})
    np.testing.assert_array_equal(y, x / 2)


def test_weights_are_decoded_as_the_formats_store_them() -> None:
    rng = np.random.default_rng(9)
    values = rng.standard_normal((5, 64)).astype(np.float32)
    fmt = Nvfp4Format()
    shared = fmt.survey(float(np.abs(values).max()))
    parts = {**shared, **fmt.encode(values, shared)}
    numbers = e2m1_values(parts["codes"].tobytes(), 5, 64).astype(np.float32)
    steps = np.repeat(parts["scales"].astype(np.float32) * shared["global_scale"][0], 16, axis=1)
    np.testing.assert_allclose(numbers * steps, fmt.decode(parts, 64), rtol=1e-6)
    mx = MxFormat("e4m3")
    parts = mx.encode(values, {})
    got = mx_values(parts["codes"].view(np.uint8), parts["scales"].view(np.uint8))
    np.testing.assert_allclose(got.astype(np.float32), mx.decode(parts, 64), rtol=2**-11)
