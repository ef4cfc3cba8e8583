"""The time table: what it takes in by the flow of data, what it holds, and what it leaves alone."""

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
from edgewright.errors import CheckpointError, ModelError
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.time_table import tabulate_time
from edgewright.graph.weights import BLOCK_ELEMENTS, StoredWeight

WIDTH = 6


class Built:
    """A stage of `time_embedding` and x `[batch, times, 5]` whose output `forward` makes of them."""

    def __init__(self, forward: Any, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        inputs = (
            TensorContract("time_embedding", "float32", ("batch", "times", WIDTH)),
            TensorContract("x", "float32", ("batch", "times", 5)),
        )
        out = TensorContract("y", "float32", ("batch", "times", 5))
        self.stage = Stage("denoise", ir.Graph([], [], nodes=[], name="denoise"), StageContract(inputs, (out,)))
        self.g = GraphBuilder(self.stage)
        self.arrays: dict[str, ArrayTensor] = {}
        time, x = (self.g.input(tensor) for tensor in inputs)
        self.g.output(forward(self, time, x), out)

    def weight(self, name: str, *shape: int) -> ir.Value:
        self.arrays[name] = ArrayTensor(name, self.rng.standard_normal(shape).astype(np.float32))
        return self.g.weight(StoredWeight(self.arrays[name], name))

    def linear(self, x: ir.Value, name: str, rows: int, columns: int, *, bias: bool = True) -> ir.Value:
        with self.g.scope(name):
            shift = self.weight(f"{name}.bias", rows) if bias else None
            return ops.linear(self.g, x, self.weight(f"{name}.weight", rows, columns), shift)


def usual(b: Built, time: ir.Value, x: ir.Value) -> ir.Value:
    """A small MLP of the time, two of whose three parts are used; x goes through a weight of its own."""
    condition = ops.activation(b.g, b.linear(time, "mlp", 7, WIDTH), activation="silu")
    scale, shift, _ = b.g.op(
        "Split", b.linear(condition, "dense", 15, 7), b.g.constant([5, 5, 5], np.int64), outputs=3, axis=-1
    )
    more = b.g.op("Mul", b.g.op("Sub", scale, b.g.constant(0.3, np.float32)), b.weight("stretch", 5))
    moved = b.g.op("Add", b.g.op("Mul", b.linear(x, "own", 5, 5, bias=False), more), shift)
    return b.g.op("Add", moved, scale)


def stops_early(b: Built, time: ir.Value, x: ir.Value) -> ir.Value:
    """Sin has no rule, a product with x is not the time's alone, and the embedding is read as it is."""
    waves = b.linear(b.g.op("Sin", time), "after", 5, WIDTH)
    direct = b.linear(time, "direct", 5, WIDTH, bias=False)
    return b.g.op("Add", b.g.op("Mul", x, direct), waves)


def run(stage: Stage, folder: Path, dialect: str, **feeds: np.ndarray) -> np.ndarray:
    result: np.ndarray = engine_of(LOWERINGS[dialect](stage), folder).session.run(["y"], feeds)[0]
    return result


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
@pytest.mark.parametrize("forward", [usual, stops_early])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_table_changes_nothing(forward: Any, seed: int, dialect: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rows, x = rng.standard_normal((4, WIDTH)).astype(np.float32), rng.standard_normal((2, 3, 5)).astype(np.float32)
    index = rng.integers(0, 4, (2, 3))
    plain = run(Built(forward, seed).stage, tmp_path / "plain", dialect, time_embedding=rows[index], x=x)
    stage = Built(forward, seed).stage
    tabulate_time(stage, rows)
    assert [(t.name, t.dtype, t.shape) for t in stage.contract.inputs] == [
        ("time_index", "int64", ("batch", "times")),
        ("x", "float32", ("batch", "times", 5)),
    ]
    got = run(stage, tmp_path / "table", dialect, time_index=index, x=x)
    assert np.abs(got - plain).max() < 1e-6 * np.abs(plain).max()
    other = run(stage, tmp_path / "other", dialect, time_index=(index + 1) % 4, x=x)
    assert np.abs(other - plain).max() > 1e-2


def test_what_it_takes_in() -> None:
    built = Built(usual)
    done = tabulate_time(built.stage, np.ones((3, WIDTH), np.float32))
    assert done.modules == ("mlp", "dense")
    # Columns of scale as it is, of scale less a number times a weight, and of shift.
    assert done.table_bytes == 4 * 3 * 15
    assert done.weight_bytes == 4 * (7 * WIDTH + 7 + 15 * 7 + 15 + 5)
    assert set(built.stage.weights) == {"own.weight", "time_table"} == set(built.stage.producers)


def test_what_it_stops_at() -> None:
    built = Built(stops_early)
    done = tabulate_time(built.stage, np.ones((3, WIDTH), np.float32))
    assert done.modules == ("direct",)
    assert done.table_bytes == 4 * 3 * (WIDTH + 5)
    assert set(built.stage.weights) == {"after.weight", "after.bias", "time_table"}


def test_weights_are_read_when_written_a_block_at_a_time() -> None:
    rows, asked = 3 * BLOCK_ELEMENTS // WIDTH, []

    def wide(b: Built, time: ir.Value, x: ir.Value) -> ir.Value:
        y = b.linear(b.linear(time, "up", rows, WIDTH, bias=False), "down", 5, rows, bias=False)
        return b.g.op("Add", y, x)

    built = Built(wide)
    big = built.arrays["up.weight"]
    read = big.rows
    big.rows = lambda start, stop: asked.append(stop - start) or read(start, stop)  # type: ignore[method-assign, func-returns-value]
    tabulate_time(built.stage, np.ones((2, WIDTH), np.float32))
    assert not asked
    table = built.stage.weights["time_table"]
    table.rows(0, 2)
    assert sum(asked) == rows
    assert max(asked) * WIDTH <= BLOCK_ELEMENTS
    table.rows(1, 2)
    assert sum(asked) == rows  # computed once


def test_values_are_rounded_once() -> None:
    built = Built(lambda b, time, x: b.g.op("Add", b.linear(time, "direct", 5, WIDTH), x))
    rows = np.random.default_rng(3).standard_normal((4, WIDTH)).astype(np.float32)
    tabulate_time(built.stage, rows)
    weight, bias = (built.arrays[f"direct.{name}"].values.astype(np.float64) for name in ("weight", "bias"))
    wanted = (rows.astype(np.float64) @ weight.T + bias).astype(np.float32)
    np.testing.assert_array_equal(built.stage.weights["time_table"].rows(0, 4), wanted)


def test_what_is_refused() -> None:
    built = Built(usual)
    built.arrays["dense.bias"].values[3] = np.nan
    tabulate_time(built.stage, np.ones((3, WIDTH), np.float32))
    with pytest.raises(CheckpointError, match="time table holds values that are not finite"):
        built.stage.weights["time_table"].rows(0, 1)
    with pytest.raises(ModelError, match="denoise takes no time_embedding"):
        tabulate_time(built.stage, np.ones((3, WIDTH), np.float32))
