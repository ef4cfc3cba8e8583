"""The writer: a file that holds what the producers give, aliases without bytes, memory that follows the block."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from conftest import ArrayTensor, arrays, golden, lowered
from edgewright.contract import StageContract
from edgewright.graph import GraphBuilder, Producer, Stage, TensorSpec
from edgewright.graph.weights import BLOCK_ELEMENTS, ComputedWeight, FloatProducer, StackedProducer, StoredWeight
from edgewright.graph.writer import layout_size, parameter_count, plan_layout, unique_producers, write_stage


def empty_stage() -> Stage:
    return Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))


def external(folder: Path) -> dict[str, np.ndarray]:
    """Read every external initializer of a written stage, without the package's own readers."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    data = (folder / "weights.bin").read_bytes()
    found = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            raw = data[int(entries["offset"]) :][: int(entries["length"])]
            packed = tensor.data_type == onnx.TensorProto.UINT4  # two to a byte
            array = np.frombuffer(raw, np.uint8 if packed else dtype)
            found[tensor.name] = array if packed else array.reshape(tuple(tensor.dims))
    return found


def made(producer: Producer) -> list[np.ndarray]:
    return [np.concatenate(parts) for parts in zip(*(chunk() for chunk in producer.chunks()), strict=True)]


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
@pytest.mark.parametrize("recipe", ["float32", "float16", "int4"])
@pytest.mark.parametrize("case", ["qwen3", "llama_bias"])
def test_the_file_holds_what_the_producers_give(case: str, recipe: str, dialect: str, tmp_path: Path) -> None:
    stage = lowered(golden(case).checkpoint, dialect, recipe)
    done: list[int] = []
    write_stage(stage, tmp_path, progress=done.append)
    found = external(tmp_path)
    names = set()
    for producer in unique_producers(stage):
        for spec, values in zip(producer.specs, made(producer), strict=True):
            names.add(spec.name)
            if spec.name in found:
                assert found[spec.name].shape == spec.shape, spec
                assert found[spec.name].tobytes() == values.tobytes()
    # Every producer's tensor is in the graph, itself or as an alias of another shape.
    assert names == {stage.aliases.get(name, name) for name in found}
    layout = plan_layout(stage)
    assert sum(done) == sum(spec.nbytes for _, spec in layout.values())
    assert (tmp_path / "weights.bin").stat().st_size == layout_size(layout)
    # And the checkpoint's own values, where nothing was rounded.
    if recipe == "float32":
        everything = arrays(golden(case).checkpoint)
        for name, values in everything.items():
            if name in found:
                np.testing.assert_array_equal(found[name], values)
        assert parameter_count(stage) >= sum(math.prod(a.shape) for a in everything.values())


def test_aliases_have_the_bytes_of_their_tensor(tmp_path: Path) -> None:
    stage = empty_stage()
    g = GraphBuilder(stage)
    values = np.random.default_rng(1).standard_normal((6, 5, 4)).astype(np.float32)
    table = g.weight(StoredWeight(ArrayTensor("t", values), "table"))
    flat = stage.alias(table, lambda shape: (shape[0], shape[1] * shape[2]))
    assert stage.alias(table, lambda shape: (6, shape[1] * 4)) is flat
    other = stage.alias(table, lambda shape: (*shape, 4), ir.DataType.UINT8)
    assert (other.name, other.dtype) == ("table.flat.2", ir.DataType.UINT8)
    stage.graph.outputs.append(g.op("Identity", other))
    stage.graph.outputs.append(g.op("Identity", flat))
    stage.graph.outputs.append(g.op("Identity", table))
    write_stage(stage, tmp_path)
    found = external(tmp_path)
    assert flat.name is not None
    np.testing.assert_array_equal(found["table"], values)
    np.testing.assert_array_equal(found[flat.name], values.reshape(6, 20))
    np.testing.assert_array_equal(found["table.flat.2"], values.view(np.uint8).reshape(6, 5, 4, 4))
    assert (tmp_path / "weights.bin").stat().st_size == values.nbytes


def test_an_alias_outlives_the_tensor_it_names(tmp_path: Path) -> None:
    stage = empty_stage()
    g = GraphBuilder(stage)
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    table = g.weight(StoredWeight(ArrayTensor("t", values), "table"))
    flat = stage.alias(table, lambda shape: (shape[0], shape[1] * shape[2]))
    stage.graph.outputs.append(g.op("Identity", flat))
    stage.drop_unused()
    assert "table" not in stage.graph.initializers
    write_stage(stage, tmp_path)
    np.testing.assert_array_equal(external(tmp_path)[flat.name or ""], values.reshape(2, 12))


def test_unused_nodes_and_weights_are_dropped() -> None:
    stage = empty_stage()
    g = GraphBuilder(stage)
    used, unused = (g.weight(StoredWeight(ArrayTensor("t", np.ones((3, 2))), name)) for name in ("used", "unused"))
    g.op("Neg", g.op("Abs", unused))
    stage.graph.outputs.append(g.op("Identity", used))
    stage.drop_unused()
    assert [node.op_type for node in stage.graph] == ["Identity"]
    assert set(stage.graph.initializers) == set(stage.producers) == {"used"}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_producers_round_to_nearest_even(dtype: str) -> None:
    values = np.concatenate([np.random.default_rng(3).standard_normal(99), [1.00048828125, 1.00146484375, 65504, -0.0]])
    weight = StoredWeight(ArrayTensor("w", values.astype(np.float32)), "w")
    (got,) = made(FloatProducer(weight, dtype))
    wanted = values.astype(np.float32).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes()


def test_an_offset_is_added_once() -> None:
    values = np.linspace(-1, 1, 7, dtype=np.float32)
    weight = StoredWeight(ArrayTensor("w", values), "w", plus=1.0)
    np.testing.assert_array_equal(weight.rows(2, 5), values[2:5] + np.float32(1))
    assert weight.stored() is None
    assert StoredWeight(ArrayTensor("w", values), "w").stored() is not None


@pytest.mark.parametrize("width", [1, 7, BLOCK_ELEMENTS // 3, BLOCK_ELEMENTS + 5])
def test_blocks_cover_every_row_once(width: int) -> None:
    class Shaped(ArrayTensor):
        def __init__(self) -> None:
            self.name, self.shape, self.dtype = "w", (1000, width), "float32"

    edges = list(StoredWeight(Shaped(), "w").blocks())
    assert [a for a, _ in edges] == [0, *[b for _, b in edges[:-1]]]
    assert edges[-1][1] == 1000
    assert all((b - a) * width <= max(BLOCK_ELEMENTS, width) for a, b in edges)


def test_stacked_producers_are_their_parts_in_order() -> None:
    rng = np.random.default_rng(4)
    parts = [rng.standard_normal((rows, 5)).astype(np.float32) for rows in (3, 1, 4)]
    producers = [FloatProducer(StoredWeight(ArrayTensor("w", p), f"w{i}"), "float32") for i, p in enumerate(parts)]
    stacked = StackedProducer(producers, ["all"])
    assert stacked.specs == (TensorSpec("all", "float32", (8, 5)),)
    np.testing.assert_array_equal(made(stacked)[0], np.concatenate(parts))


def test_a_producer_of_the_wrong_size_is_caught(tmp_path: Path) -> None:
    class Short(Producer):
        specs = (TensorSpec("short", "float32", (4, 2)),)

        def chunks(self) -> Iterator[Callable[[], tuple[np.ndarray, ...]]]:
            yield lambda: (np.zeros((3, 2), np.float32),)

    stage = empty_stage()
    (value,) = stage.add_producer(Short())
    stage.graph.outputs.append(GraphBuilder(stage).op("Identity", value))
    with pytest.raises(AssertionError):
        write_stage(stage, tmp_path)


def test_an_error_in_a_chunk_comes_out(tmp_path: Path) -> None:
    def fail(start: int, stop: int) -> np.ndarray:
        raise ValueError("the disk is on fire")

    stage = empty_stage()
    g = GraphBuilder(stage)
    stage.graph.outputs.append(g.op("Identity", g.weight(ComputedWeight("w", (2, 2), fail))))
    with pytest.raises(ValueError, match="on fire"):
        write_stage(stage, tmp_path)


MEMORY_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import onnx_ir as ir
from edgewright.contract import StageContract
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.weights import StoredWeight
from edgewright.graph.writer import write_stage
from edgewright.formats import IntFormat
from edgewright.quant.producers import RoundingProducer

class Lazy:
    name, shape, dtype = "lazy", (25_000 if sys.argv[1] == "float" else 15_000, 2_003), "float32"
    def rows(self, start, stop):
        return np.add.outer(np.arange(start, stop) % 977, np.arange(2003) * 1000, dtype=np.float32)

def anonymous():
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024

peak = 0
def watch(_):
    global peak
    peak = max(peak, anonymous())

stage = Stage("t", ir.Graph([], [], nodes=[], name="t"), StageContract((), ()))
g = GraphBuilder(stage)
weight = StoredWeight(Lazy(), "w")
if sys.argv[1] == "float":
    stage.graph.outputs.append(g.op("Identity", g.weight(weight)))
else:
    for value in stage.add_producer(RoundingProducer(weight, IntFormat(4, 32, False), "w")):
        stage.graph.outputs.append(g.op("Identity", value))
before = anonymous()
write_stage(stage, Path(sys.argv[2]), progress=watch)
print(peak - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of anonymous memory")
@pytest.mark.parametrize("kind", ["float", "int4"])
def test_memory_follows_the_block_and_not_the_tensor(kind: str, tmp_path: Path) -> None:
    """A matrix of 200 MB in float32 (120 MB to int4), made row by row, is written within 60 MB of anonymous memory."""
    command = [sys.executable, "-c", MEMORY_SCRIPT, kind, str(tmp_path)]
    growth = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    size = (tmp_path / "weights.bin").stat().st_size
    assert size > (190_000_000 if kind == "float" else 16_000_000)
    assert growth < 60_000_000, f"{growth / 1e6:.0f} MB"
    data = np.memmap(tmp_path / "weights.bin", np.float32, mode="r")
    if kind == "float":
        row = 24_321
        wanted = row % 977 + np.arange(2003, dtype=np.float32) * 1000
        np.testing.assert_array_equal(data[row * 2003 : (row + 1) * 2003], wanted)
