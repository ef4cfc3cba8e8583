"""QuantLinear and QuantEmbedding: the body against NumPy on the packed bytes, and against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from conftest import run_graph
from edgewright.ops import OPS

Arrays = dict[str, np.ndarray]
few = settings(max_examples=20)


class Packed:
    """Random packed bytes of a weight `[rows, width]`, and the floats they stand for by the documented layout."""

    def __init__(
        self, seed: int, rows: int, width: int, bits: int, group: int, zero_points: bool, offsets: bool = False
    ) -> None:
        rng = np.random.default_rng(seed)
        blocks = -(-width // group)
        self.rows, self.width, self.bits, self.group = rows, width, bits, group
        self.codes = rng.integers(0, 256, (rows, blocks, group * bits // 8), dtype=np.uint8)
        self.scales = (rng.standard_normal((rows, blocks)) * 0.1).astype(np.float32)
        shape = (rows, -(-blocks * bits // 8))
        self.zero_points = rng.integers(0, 256, shape, dtype=np.uint8) if zero_points else None
        self.offsets = rng.standard_normal((rows, blocks)).astype(np.float32) if offsets else None
        self.values = np.zeros((rows, width))
        for r in range(rows):
            for c in range(width):
                block, at = divmod(c, group)
                code = self._code(self.codes[r, block], at)
                zero = 1 << (bits - 1) if self.zero_points is None else self._code(self.zero_points[r], block)
                self.values[r, c] = (code - zero) * float(self.scales[r, block])
                if self.offsets is not None:
                    self.values[r, c] += self.offsets[r, block]

    def _code(self, packed: np.ndarray, index: int) -> int:
        if self.bits == 8:
            return int(packed[index])
        return int(packed[index // 2]) >> (4 * (index % 2)) & 15

    def feeds(self) -> dict[str, np.ndarray]:
        tensors = {"codes": self.codes, "scales": self.scales, "zero_points": self.zero_points, "offsets": self.offsets}
        return {name: array for name, array in tensors.items() if array is not None}

    @property
    def attributes(self) -> dict[str, int]:
        return {
            "bits": self.bits,
            "group": self.group,
            "in_features": self.width,
            "out_features": self.rows,
            "int8_activations": 1,
        }


packed = st.builds(
    Packed,
    st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    width=st.sampled_from([1, 31, 32, 33, 64, 65, 96, 100, 160]),
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([32, 64, 128]),
    zero_points=st.booleans(),
    offsets=st.booleans(),
)
CASES = [
    Packed(seed, rows, width, bits, group, zero_points)
    for seed, (rows, width, group) in enumerate([(7, 96, 32), (3, 160, 32), (5, 64, 64), (6, 384, 128), (5, 100, 32)])
    for bits in (4, 8)
    for zero_points in (False, True)
]


def case_id(p: Packed) -> str:
    return f"{p.rows}x{p.width}-{p.bits}bit-{p.group}-{'zp' if p.zero_points is not None else 'sym'}"


def linear_body(p: Packed, x: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    feeds = {"x": x, **p.feeds(), **({} if bias is None else {"bias": bias})}

    def build(g: Any, *values: Any) -> Any:
        named = dict(zip(feeds, values, strict=True))
        return g.ew("QuantLinear", *map(named.get, OPS["QuantLinear"].inputs), **p.attributes)

    result: np.ndarray = run_graph(build, feeds)
    return result


def embedding_body(p: Packed, ids: np.ndarray) -> np.ndarray:
    feeds = {"ids": ids, **p.feeds()}

    def build(g: Any, *values: Any) -> Any:
        named = dict(zip(feeds, values, strict=True))
        return g.ew("QuantEmbedding", *map(named.get, OPS["QuantEmbedding"].inputs), **p.attributes)

    result: np.ndarray = run_graph(build, feeds)
    return result


@few
@given(p=packed, bias=st.booleans(), lead=st.lists(st.integers(1, 3), min_size=0, max_size=2))
def test_linear_body_follows_the_layout(p: Packed, bias: bool, lead: list[int]) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((*lead, 2, p.width)).astype(np.float32)
    b = rng.standard_normal(p.rows).astype(np.float32) if bias else None
    wanted = x.astype(np.float64) @ p.values.T + (0 if b is None else b)
    np.testing.assert_allclose(linear_body(p, x, b), wanted, rtol=0, atol=3e-6 * max(1, np.abs(wanted).max()))


@few
@given(p=packed, shape=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_embedding_body_follows_the_layout(p: Packed, shape: list[int]) -> None:
    ids = np.random.default_rng(4).integers(0, p.rows, shape)
    got = embedding_body(p, ids)
    assert got.shape == (*shape, p.width)
    np.testing.assert_allclose(got, p.values[ids], rtol=2e-6, atol=1e-6)


def run_kernel(
    op: str, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray], **attributes: int
) -> np.ndarray:
    """Run one com.microsoft node with its weights as initializers."""
    names = [name if name in feeds or name in constants else "" for name in INPUTS[op]]
    while names[-1] == "":
        names.pop()
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    element = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    graph = helper.make_graph(
        [node],
        "kernel",
        [helper.make_tensor_value_info(name, element[a.dtype], a.shape) for name, a in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(a, name) for name, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result


INPUTS = {
    "MatMulNBits": ("x", "codes", "scales", "zero_points", "g_idx", "bias"),
    "GatherBlockQuantized": ("codes", "ids", "scales", "zero_points"),
}


@pytest.mark.parametrize("p", CASES, ids=case_id)
@pytest.mark.parametrize("bias", [False, True])
def test_body_equals_matmul_n_bits_on_the_same_bytes(p: Packed, bias: bool) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 3, p.width)).astype(np.float32)
    b = rng.standard_normal(p.rows).astype(np.float32) if bias else None
    body = linear_body(p, x, b)
    sizes = {"K": p.width, "N": p.rows, "bits": p.bits, "block_size": p.group}
    constants = {**p.feeds(), **({} if b is None else {"bias": b})}
    exact = run_kernel("MatMulNBits", {"x": x}, constants, **sizes, accuracy_level=1)
    scale = np.abs(body).max()
    assert np.abs(exact - body).max() < 1e-5 * scale
    # The level the dialect uses rounds activations to 8 bits a block: the error of a row is bounded by its input's.
    fast = run_kernel("MatMulNBits", {"x": x}, constants, **sizes, accuracy_level=4)
    steps = np.abs(x).max(axis=-1, keepdims=True) / 127
    bound = (steps * np.abs(p.values).sum(axis=1)) * 0.75 + 1e-5 * scale
    assert (np.abs(fast - body) <= bound).all()


@pytest.mark.parametrize("p", CASES, ids=case_id)
def test_body_equals_gather_block_quantized_on_the_same_bytes(p: Packed) -> None:
    ids = np.random.default_rng(8).integers(0, p.rows, (3, 4))
    flat = {**p.feeds(), "codes": p.codes.reshape(p.rows, -1)}
    got = run_kernel(
        "GatherBlockQuantized", {"ids": ids}, flat, bits=p.bits, block_size=p.group, gather_axis=0, quantize_axis=1
    )
    np.testing.assert_allclose(got[..., : p.width], embedding_body(p, ids), rtol=2e-6, atol=1e-6)
