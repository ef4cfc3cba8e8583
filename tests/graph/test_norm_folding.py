"""Folding norms into linears: the same results, and what must be left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from conftest import ArrayTensor, engine_of
from edgewright import ops
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import LOWERINGS
from edgewright.errors import CheckpointError
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.norm_folding import fold_norms
from edgewright.graph.weights import StoredWeight


class Built:
    """A stage from x `[batch, seq, 7]` to y `[batch, seq, 4]`, made by `forward(self, x)`."""

    def __init__(self, forward: Any, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        taken = TensorContract("x", "float32", ("batch", "seq", 7))
        given = TensorContract("y", "float32", ("batch", "seq", 4))
        self.stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((taken,), (given,)))
        self.g = GraphBuilder(self.stage)
        self.g.output(forward(self, self.g.input(taken)), given)

    def weight(self, name: str, *shape: int, plus: float = 0.0) -> ir.Value:
        tensor = ArrayTensor(name, self.rng.standard_normal(shape).astype(np.float32))
        return self.g.weight(StoredWeight(tensor, name, plus))

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """A LayerNorm with weight and bias for the name `layer`, else an RMSNorm stored minus one."""
        with self.g.scope(name):
            if name == "layer":
                return ops.layer_norm(
                    self.g, x, self.weight("layer.weight", 7), self.weight("layer.bias", 7), epsilon=1e-6
                )
            return ops.rms_norm(self.g, x, self.weight(f"{name}.weight", 7, plus=1.0), epsilon=1e-6)

    def linear(self, x: ir.Value, name: str, *, bias: bool = True, weight: ir.Value | None = None) -> ir.Value:
        with self.g.scope(name):
            matrix = self.weight(f"{name}.weight", 4, 7) if weight is None else weight
            return ops.linear(self.g, x, matrix, self.weight(f"{name}.bias", 4) if bias else None)


def two_readers(kind: str, bias: bool) -> Any:
    def forward(b: Built, x: ir.Value) -> ir.Value:
        n = b.norm(x, kind)
        return b.g.op("Mul", b.linear(n, "a", bias=bias), b.linear(n, "b", bias=bias))

    return forward


def run(stage: Stage, folder: Path, dialect: str, x: np.ndarray) -> np.ndarray:
    result: np.ndarray = engine_of(LOWERINGS[dialect](stage), folder).session.run(["y"], {"x": x})[0]
    return result


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_results_stay(kind: str, bias: bool, dialect: str, tmp_path: Path) -> None:
    for seed in range(3):
        forward = two_readers(kind, bias)
        x = np.random.default_rng(seed + 9).standard_normal((2, 3, 7)).astype(np.float32)
        plain = run(Built(forward, seed).stage, tmp_path / f"plain{seed}", dialect, x)
        stage = Built(forward, seed).stage
        assert fold_norms(stage) == (1, 0)
        assert not {f"{kind}.weight", f"{kind}.bias"} & (set(stage.weights) | set(stage.producers))
        np.testing.assert_array_equal(stage.weights["ones_7"].rows(0, 7), np.ones(7, np.float32))
        got = run(stage, tmp_path / f"folded{seed}", dialect, x)
        assert np.abs(got - plain).max() < 1e-6 * np.abs(plain).max()


def also_read(b: Built, x: ir.Value) -> ir.Value:
    n = b.norm(x, "rms")
    return b.g.op("Add", b.linear(n, "a"), b.g.op("ReduceMax", n, keepdims=1))


def shared(b: Built, x: ir.Value) -> ir.Value:
    y = b.linear(b.norm(x, "rms"), "a")
    return b.g.op("Add", y, b.linear(x, "b", weight=b.stage.graph.initializers["a.weight"]))


def grouped(b: Built, x: ir.Value) -> ir.Value:
    n = ops.rms_norm(b.g, x, b.weight("rms.weight", 1, 7), epsilon=1e-6, group=7)
    return b.linear(n, "a")


@pytest.mark.parametrize("forward", [also_read, shared, grouped])
def test_what_stays_as_it_is(forward: Any) -> None:
    stage = Built(forward).stage
    before = dict(stage.weights)
    assert fold_norms(stage) == (0, 1)
    assert stage.weights == before


def test_quantized_weights_stay_as_they_are() -> None:
    stage = Built(two_readers("rms", bias=True)).stage
    stage.weights["b.weight"].stored().encoding = object()  # type: ignore[union-attr]
    assert fold_norms(stage) == (0, 1)


def test_values_that_are_not_finite() -> None:
    built = Built(two_readers("rms", bias=True))
    tensor = built.stage.weights["a.weight"].stored()
    assert isinstance(tensor, ArrayTensor)
    tensor.values[1, 2] = np.inf
    fold_norms(built.stage)
    with pytest.raises(CheckpointError, match=r"a\.weight has values that are not finite"):
        built.stage.weights["a.weight"].rows(0, 4)
