"""`Experts` against a plain loop over tokens and experts, as the reference body and as what ONNX Runtime runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from conftest import ArrayTensor
from edgewright import ops
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import onnxruntime
from edgewright.dialects._ort_experts import lower_experts
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.weights import StoredWeight
from expert_cases import (
    ACTIVATIONS,
    EXPERTS,
    HIDDEN,
    TOP_K,
    Run,
    close,
    experts_np,
    make_inputs,
    make_stage,
    make_weights,
    op_types,
)


@pytest.fixture(autouse=True)
def _rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnxruntime._RULES, "Experts", lower_experts)


KERNELS = {
    *((name, True) for name in ("silu", "quick_gelu", "relu", "swiglu_clamped")),
    *((name, False) for name in ("silu", "relu", "gelu_tanh")),
}
CASES = [
    *((name, gated) for name in sorted(ACTIVATIONS) for gated in (True, False)),
    ("swiglu_clamped", True),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("activation", "gated"), CASES)
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_experts(dialect: str, activation: str, gated: bool, bias: bool, tmp_path: Path) -> None:
    w = make_weights(3, gated=gated, bias=bias)
    run = Run(make_stage(w, activation), tmp_path, dialect)
    if dialect == "onnxruntime":
        assert ("MoE" in op_types(run.stage)) == ((activation, gated) in KERNELS)
        assert ("Loop" in op_types(run.stage)) == ((activation, gated) not in KERNELS)
    for batch, seq in ((1, 1), (2, 5), (1, 0)):  # a stage may be asked for no position at all
        x, routing = make_inputs(7, batch, seq)
        close(run(x, routing), experts_np(x, routing, w, activation))


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
@pytest.mark.parametrize("activation", ["silu", "tanh"])  # a kernel, and the loop
@pytest.mark.parametrize("top_k", [1, 3, 5])
def test_any_number_of_experts_may_be_chosen(top_k: int, activation: str, dialect: str, tmp_path: Path) -> None:
    w = make_weights(4, n=5)
    run = Run(make_stage(w, activation, n=5, top_k=top_k), tmp_path, dialect)
    x, routing = make_inputs(8, 3, 4, n=5, top_k=top_k)
    close(run(x, routing), experts_np(x, routing, w, activation))


@pytest.mark.parametrize("activation", ["silu", "tanh"])
def test_tiny_weights_and_tokens_without_an_expert(activation: str, tmp_path: Path) -> None:
    w = make_weights(5)
    run = Run(make_stage(w, activation), tmp_path, "onnxruntime")
    x, routing = make_inputs(9, 1, 4)
    routing[0, 0] = 0
    routing[0, 1] *= 1e-6
    got, wanted = run(x, routing), experts_np(x, routing, w, activation)
    close(got, wanted)
    assert not got[0, 0].any()
    close(got[:, 1] * np.float32(1e6), wanted[:, 1] * 1e6)


@pytest.mark.parametrize("activation", ["silu", "tanh"])
def test_an_expert_that_is_not_chosen_is_not_computed(activation: str, tmp_path: Path) -> None:
    """What no token chose may hold anything: with the reference body, 0 * inf would be NaN."""
    w = make_weights(6)
    for name in ("up_proj.weight", "down_proj.weight"):
        w[name] = w[name].copy()
        for expert in (0, EXPERTS - 1):
            np.split(w[name], EXPERTS)[expert][:] = 3e38
    run = Run(make_stage(w, activation), tmp_path, "onnxruntime")
    x, routing = make_inputs(10, 2, 3)
    routing[..., [0, -1]] = 0
    close(run(x, routing), experts_np(x, routing, w, activation))


def test_two_layers_do_not_mix(tmp_path: Path) -> None:
    """Names, constants and aliases of two nodes stay apart, kernels and loops alike."""
    stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))
    g = GraphBuilder(stage)
    x0, routing = make_inputs(11, 2, 3)
    x = g.input(TensorContract("x", "float32", ("batch", "seq", HIDDEN)))
    r = g.input(TensorContract("routing", "float32", ("batch", "seq", EXPERTS)))
    y, wanted = x, x0
    for layer, activation in enumerate(("silu", "silu", "tanh", "sigmoid")):
        w = make_weights(20 + layer, bias=layer % 2 == 0)
        module = f"model.layers.{layer}.mlp.experts"
        v: dict[str, Any] = {n: g.weight(StoredWeight(ArrayTensor(n, a), f"{module}.{n}")) for n, a in w.items()}
        with g.scope(module):
            y = ops.experts(
                g, y, r, v["gate_proj.weight"], v["up_proj.weight"], v["down_proj.weight"],
                experts=EXPERTS, top_k=TOP_K, activation=activation,
                **{f"{n}_bias": v.get(f"{n}_proj.bias") for n in ("gate", "up", "down")},
            )  # fmt: skip
        wanted = experts_np(wanted, routing, w, activation)
    g.output(y, TensorContract("y", "float32", ("batch", "seq", HIDDEN)))
    run = Run(stage, tmp_path, "onnxruntime")
    assert op_types(run.stage).count("MoE") == op_types(run.stage).count("Loop") == 2
    close(run(x0, routing), wanted, 1e-5)
