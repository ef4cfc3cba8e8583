"""What the tests of the ops with a state share: one session of symbolic sizes, and a sequence in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from conftest import Build
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import LOWERINGS
from edgewright.dialects._ort_state import STATE_RULES
from edgewright.graph import GraphBuilder, Stage

Shapes = Mapping[str, tuple[str | int, ...]]


class Recurrent:
    """A graph with inputs of symbolic batch and sequence, of which the last, `past`, is the state."""

    def __init__(self, build: Build, shapes: Shapes, kernel: bool = False) -> None:
        """Lower `build(g, *values)` to its reference body or, with `kernel`, by the rule of the onnxruntime dialect."""
        stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))
        g = GraphBuilder(stage)
        results = build(g, *[g.input(TensorContract(name, "float32", shape)) for name, shape in shapes.items()])
        y_shape: tuple[str | int, ...] = ("batch", "seq", "width")
        for name, value, shape in zip(("y", "present"), results, (y_shape, shapes["past"]), strict=True):
            g.output(value, TensorContract(name, "float32", shape))
        if kernel:
            for node in list(stage.graph):
                STATE_RULES[node.op_type](stage, node)
            stage.opset_imports["com.microsoft"] = 1
            assert not any(node.domain == "ew" for node in stage.graph)
        model = ir.to_proto(LOWERINGS["portable"](stage).model())
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.shapes = shapes
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(self, feeds: Mapping[str, np.ndarray], pieces: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Run the sequence in pieces of these lengths; returns all rows of y and the last state."""
        state, rows, start = feeds["past"], [], 0
        for length in pieces:
            part = {
                name: array[:, start : start + length] if "seq" in self.shapes[name] else array
                for name, array in feeds.items()
            }
            y, state = self.session.run(None, {**part, "past": state})
            rows.append(y)
            start += length
        return np.concatenate(rows, axis=1), state


def ways(seq: int, seed: int) -> list[list[int]]:
    """A sequence in one piece, token by token, and in pieces of random lengths."""
    rng = np.random.default_rng(seed)
    cuts = sorted({0, seq, *rng.integers(0, seq + 1, 3).tolist()})
    return [[seq], [1] * seq, [b - a for a, b in itertools.pairwise(cuts)]]


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-5) -> None:
    """Compare to a float64 reference, against its largest value."""
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    if wanted.size:
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * float(np.abs(wanted).max()))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal float32 values."""
    array: Any = rng.standard_normal(shape).astype(np.float32)
    return np.asarray(array)
