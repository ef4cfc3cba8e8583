"""What the tests of experts share: weights, routings, a plain loop over tokens and experts, stages of one node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from conftest import ArrayTensor
from edgewright import ops
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import LOWERINGS
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.weights import StoredWeight
from edgewright.graph.writer import MODEL_FILE, write_stage

EXPERTS, TOP_K, HIDDEN, INNER = 6, 2, 24, 20
MODULE = "model.layers.0.mlp.experts"
LIMIT, ALPHA = 1.5, 1.702


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu_tanh": tanh_gelu,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
}
Arrays = dict[str, np.ndarray]


def mix(activation: str, gate: np.ndarray | None, up: np.ndarray) -> np.ndarray:
    if activation == "swiglu_clamped":
        assert gate is not None
        gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
        return gate * sigmoid(ALPHA * gate) * (up + 1)
    return ACTIVATIONS[activation](up) if gate is None else ACTIVATIONS[activation](gate) * up


def experts_np(x: np.ndarray, routing: np.ndarray, w: Arrays, activation: str) -> np.ndarray:
    """A loop over sequences, tokens and experts, in float64; `w` holds weights `gate_proj.weight` and so on."""
    n = routing.shape[-1]
    parts = {name: np.split(array.astype(np.float64), n) for name, array in w.items()}

    def product(name: str, e: int, v: np.ndarray) -> np.ndarray:
        y: np.ndarray = parts[f"{name}.weight"][e] @ v
        return y + parts[f"{name}.bias"][e] if f"{name}.bias" in parts else y

    y = np.zeros(x.shape)
    for b, s, e in np.argwhere(routing):
        v = x[b, s].astype(np.float64)
        gate = product("gate_proj", e, v) if "gate_proj.weight" in parts else None
        y[b, s] += routing[b, s, e] * product("down_proj", e, mix(activation, gate, product("up_proj", e, v)))
    return y


def make_weights(
    seed: int, *, gated: bool = True, bias: bool = False, n: int = EXPERTS, hidden: int = HIDDEN, inner: int = INNER
) -> Arrays:
    rng = np.random.default_rng(seed)
    shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    w = {}
    for name, (rows, width) in shapes.items():
        if name == "gate_proj" and not gated:
            continue
        w[f"{name}.weight"] = rng.standard_normal((n * rows, width)) * width**-0.5 * 1.5
        if bias:
            w[f"{name}.bias"] = rng.standard_normal(n * rows)
    return {name: array.astype(np.float32) for name, array in w.items()}


def make_inputs(
    seed: int, batch: int, seq: int, *, n: int = EXPERTS, top_k: int = TOP_K, hidden: int = HIDDEN
) -> tuple[np.ndarray, np.ndarray]:
    """Return x and a routing whose weights are no shares of one; some tokens choose less than `top_k` experts."""
    rng = np.random.default_rng(seed)
    routing = np.zeros((batch, seq, n), dtype=np.float32)
    for b in range(batch):
        for s in range(seq):
            count = top_k if (b + s) % 3 else max(1, top_k - 1)
            routing[b, s, rng.choice(n, count, replace=False)] = rng.uniform(0.05, 2.5, count)
    return rng.standard_normal((batch, seq, hidden)).astype(np.float32), routing


def make_stage(
    w: Arrays,
    activation: str,
    *,
    n: int = EXPERTS,
    top_k: int = TOP_K,
    hidden: int = HIDDEN,
    tensors: Mapping[str, ArrayTensor] | None = None,
) -> Stage:
    """A stage of one `Experts` node over the weights (`tensors` where they are given), named as a model names them."""
    named = tensors or {name: ArrayTensor(f"{MODULE}.{name}", array) for name, array in w.items()}
    stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))
    g = GraphBuilder(stage)
    x = g.input(TensorContract("x", "float32", ("batch", "seq", hidden)))
    routing = g.input(TensorContract("routing", "float32", ("batch", "seq", n)))
    values = {name: g.weight(StoredWeight(tensor, f"{MODULE}.{name}")) for name, tensor in named.items()}
    gate, up, down = (values.get(f"{name}_proj.weight") for name in ("gate", "up", "down"))
    biases = {f"{name}_bias": values.get(f"{name}_proj.bias") for name in ("gate", "up", "down")}
    clamps = {"limit": LIMIT, "alpha": ALPHA} if activation == "swiglu_clamped" else {}
    with g.scope(MODULE):
        assert up is not None
        assert down is not None
        y = ops.experts(
            g, x, routing, gate, up, down, experts=n, top_k=top_k, activation=activation, **biases, **clamps
        )
    g.output(y, TensorContract("y", "float32", ("batch", "seq", hidden)))
    return stage


def op_types(stage: Stage) -> list[str]:
    return [node.op_type for node in stage.graph]


class Run:
    """A lowered stage, written and loaded."""

    def __init__(self, stage: Stage, folder: Path, dialect: str) -> None:
        self.stage = LOWERINGS[dialect](stage)
        write_stage(self.stage, folder)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(str(folder / MODEL_FILE), options, providers=["CPUExecutionProvider"])

    def __call__(self, x: np.ndarray, routing: np.ndarray) -> np.ndarray:
        result: np.ndarray = self._session.run(None, {"x": x, "routing": routing})[0]
        return result


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 3e-6) -> None:
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    if got.size:
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * max(1.0, float(np.abs(wanted).max())))
