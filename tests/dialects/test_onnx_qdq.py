"""The onnx-qdq dialect, and DequantizeLinear in the portable one: standard ops, typed weights, the formats' bits."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import CASES, golden, lowered, relative_error
from edgewright.bundle import StageEntry
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.dialects import LOWERINGS, onnx_qdq, portable
from edgewright.formats import ActivationFormat, BlockFormat, IntFormat, Nvfp4Format, Parts, round_input
from edgewright.graph import Stage, TensorSpec
from edgewright.graph.writer import write_stage
from edgewright.ops import decode, decode_rows, linear
from edgewright.ops import round_input as append_round_input
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.session import Session
from qdq_cases import (
    INTEGER,
    NARROW,
    ArraysProducer,
    assert_same_bits,
    encoded,
    kind_of,
    label,
    run_ort,
    run_reference,
    stage_of,
    written,
)

Proto = onnx.TensorProto
FP4 = ("nvfp4", "mxfp4")
ALL: list[BlockFormat] = [*NARROW, *INTEGER]


def weights(seed: int, rows: int, width: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    values[rows // 2, : width // 2] = 0
    return values


def with_offsets(fmt: BlockFormat, parts: Parts, offsets: bool) -> Parts:
    if not offsets:
        return parts
    rng = np.random.default_rng(5)
    return {**parts, "offsets": rng.standard_normal(parts["scales"].shape).astype(np.float32)}


def integer_attributes(fmt: IntFormat, shape: tuple[int, int]) -> dict[str, Any]:
    sizes = {"bits": fmt.bits, "group": fmt.group, "in_features": shape[1], "out_features": shape[0]}
    scales = {"scales": "float16"} if fmt.scales == "float16" else {}
    return {**sizes, "int8_activations": int(fmt.int8_activations), **scales}


def stage_for(fmt: BlockFormat, parts: Parts, shape: tuple[int, int], use: str, step: int = 0) -> Stage:
    """One linear over x, or the rows of a table by ids, or the weight itself times x, in a format."""

    def integer(g, x, codes, scales, zero_points=None, offsets=None):  # type: ignore[no-untyped-def]
        a = integer_attributes(fmt, shape)
        if use == "linear":
            return g.ew("QuantLinear", x, codes, scales, zero_points, offsets, **a)
        if use == "rows":
            return g.ew("QuantEmbedding", x, codes, scales, zero_points, offsets, **a)
        return g.op("Mul", g.ew("Dequantize", codes, scales, zero_points, offsets, **a), x)

    def narrow(g, x, codes, scales, global_scale=None):  # type: ignore[no-untyped-def]
        kind, scope = kind_of(fmt)
        how = {"kind": kind, "scope": scope, "in_features": shape[1], "out_features": shape[0]}
        if use == "rows":
            return decode_rows(g, x, codes, scales, global_scale, **how)
        weight = decode(g, codes, scales, global_scale, **how)
        return linear(g, x, weight) if use == "linear" else g.op("Mul", weight, x)

    producer = ArraysProducer("model.w", fmt, shape, parts, step)
    return stage_of(integer if isinstance(fmt, IntFormat) else narrow, feed_for(use, shape), [producer], RANKS[use])


RANKS = {"linear": 3, "rows": 3, "weight": 2}


def feed_for(use: str, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    if use == "rows":
        return {"x": np.random.default_rng(1).integers(0, shape[0], (2, 3))}
    if use == "weight":
        return {"x": np.ones(1, np.float32)}
    return {"x": np.random.default_rng(1).standard_normal((2, 3, shape[1])).astype(np.float32)}


def domains(path: Path) -> set[str]:
    """Every domain a model names."""
    model = onnx.load(path, load_external_data=False)
    assert not model.functions
    return {node.domain for node in model.graph.node} | {entry.domain for entry in model.opset_import}


shapes = st.tuples(st.integers(1, 7), st.sampled_from([1, 16, 31, 32, 33, 64, 96, 100, 130, 160]))


@settings(max_examples=50, deadline=None)
@given(
    fmt=st.sampled_from(ALL),
    shape=shapes,
    use=st.sampled_from(["weight", "rows"]),
    seed=st.integers(0, 99),
    step=st.integers(0, 3),
    offsets=st.booleans(),
)
def test_weights_and_rows_have_the_formats_own_bits(
    fmt: BlockFormat, shape: tuple[int, int], use: str, seed: int, step: int, offsets: bool
) -> None:
    parts = encoded(fmt, weights(seed, *shape))
    # Only formats whose parts all have rows can be written in pieces.
    step = step if isinstance(fmt, IntFormat) else 0
    parts = with_offsets(fmt, parts, offsets and isinstance(fmt, IntFormat))
    feeds = feed_for(use, shape)
    wanted = fmt.decode(parts, shape[1])
    wanted = wanted[feeds["x"]] if use == "rows" else wanted
    with tempfile.TemporaryDirectory() as folder:
        path = written(onnx_qdq.lower(stage_for(fmt, parts, shape, use, step)), Path(folder) / "q")
        assert domains(path) == {""}
        assert_same_bits(run_reference(path, feeds), wanted)
        if fmt.label not in FP4:
            assert_same_bits(run_ort(path, feeds), wanted)
        other = written(portable.lower(stage_for(fmt, parts, shape, use, step), emulate=True), Path(folder) / "p")
        assert_same_bits(run_ort(other, feeds), wanted)


@pytest.mark.parametrize("fmt", ALL, ids=label)
def test_the_product_follows_dequantize_linear(fmt: BlockFormat, tmp_path: Path) -> None:
    shape = (6, 128)
    parts = encoded(fmt, weights(3, *shape))
    path = written(onnx_qdq.lower(stage_for(fmt, parts, shape, "linear")), tmp_path)
    made = {name: node for node in onnx.load(path, load_external_data=False).graph.node for name in node.output}
    product = next(node for node in made.values() if node.op_type == "MatMul")
    weight = made[made[product.input[1]].input[0]]  # through a transposition
    assert weight.op_type == "DequantizeLinear"
    feeds = feed_for("linear", shape)
    wanted = feeds["x"] @ fmt.decode(parts, shape[1]).T
    got = run_reference(path, feeds) if fmt.label in FP4 else run_ort(path, feeds)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


TYPES = {
    "int8": (Proto.INT8, Proto.FLOAT),
    "e4m3": (Proto.FLOAT8E4M3FN, Proto.FLOAT),
    "nvfp4": (Proto.FLOAT4E2M1, Proto.FLOAT8E4M3FN),
    "mxe4m3": (Proto.FLOAT8E4M3FN, Proto.FLOAT8E8M0),
    "mxe2m1": (Proto.FLOAT4E2M1, Proto.FLOAT8E8M0),
}


def length(tensor: onnx.TensorProto) -> int:
    return int({entry.key: entry.value for entry in tensor.external_data}["length"])


@pytest.mark.parametrize("fmt", NARROW, ids=label)
def test_ask_for_a_format_and_the_file_holds_it(fmt: BlockFormat, tmp_path: Path) -> None:
    """Data types and sizes in bytes of every initializer that DequantizeLinear reads."""
    shape = (5, 70)
    parts = encoded(fmt, weights(1, *shape))
    model = onnx.load(
        written(onnx_qdq.lower(stage_for(fmt, parts, shape, "weight")), tmp_path), load_external_data=False
    )
    tensors = {t.name.removesuffix(".flat"): t for t in model.graph.initializer}
    kind, _ = kind_of(fmt)
    codes, scales = tensors["model.w.codes"], tensors["model.w.scales"]
    assert (codes.data_type, scales.data_type) == TYPES[kind]
    specs = {name: TensorSpec(name, *spec) for name, spec in fmt.specs(shape).items()}
    assert list(codes.dims) == list(specs["codes"].shape)
    for name, spec in specs.items():
        assert length(tensors[f"model.w.{name}"]) == spec.nbytes == parts[name].nbytes
    if kind == "nvfp4":
        whole = tensors["model.w.global_scale"]
        assert (whole.data_type, list(whole.dims)) == (Proto.FLOAT, [])


@pytest.mark.parametrize("fmt", INTEGER, ids=label)
@pytest.mark.parametrize("width", [64, 70, 160])
def test_integer_weights_are_uint4_and_uint8(fmt: IntFormat, width: int, tmp_path: Path) -> None:
    """Also the zero points, in ONNX's packing, which has no gaps between rows."""
    shape = (5, width)
    parts = encoded(fmt, weights(2, *shape))
    path = written(onnx_qdq.lower(stage_for(fmt, parts, shape, "linear")), tmp_path)
    tensors = {t.name: t for t in onnx.load(path, load_external_data=False).graph.initializer}
    node = next(n for n in onnx.load(path).graph.node if n.op_type == "DequantizeLinear")
    codes, zeros = tensors[node.input[0]], tensors[node.input[2]]
    kind = Proto.UINT4 if fmt.bits == 4 else Proto.UINT8
    blocks = fmt.blocks(width)
    assert codes.data_type == zeros.data_type == kind
    assert list(codes.dims) == [5, blocks * fmt.group]
    assert list(zeros.dims) == [5, blocks]
    assert length(codes) == 5 * blocks * fmt.group * fmt.bits // 8
    loaded = next(t for t in onnx.load(path).graph.initializer if t.name == node.input[2])
    values = onnx.numpy_helper.to_array(loaded).astype(int)
    if fmt.zero_point:
        assert length(zeros) == -(-5 * blocks * fmt.bits // 8)
        packed = parts["zero_points"]
        wanted = packed if fmt.bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(5, -1)[:, :blocks]
        np.testing.assert_array_equal(values, wanted)
    else:
        assert (values == 1 << (fmt.bits - 1)).all()


def test_default_zero_points_are_shared(tmp_path: Path) -> None:
    stage = lowered(golden("llama_rope_linear").checkpoint, "onnx-qdq", "int4")
    shared = Counter(
        n.inputs[2].name for n in stage.graph if n.op_type == "DequantizeLinear" and n.inputs[2] is not None
    )
    assert len(shared) < sum(shared.values()) / 2


STATIC = [
    ActivationFormat("int8", True),
    ActivationFormat("fp8", True),
    ActivationFormat("int8", True, symmetric=False),
]


@pytest.mark.parametrize("fmt", STATIC, ids=lambda f: f.label.replace(" ", "-"))
def test_static_inputs_are_a_pair_with_a_scalar_scale(fmt: ActivationFormat, tmp_path: Path) -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, 33)).astype(np.float32)
    given_too = {"scale": np.array([0.01], np.float32)}
    zeros = {} if fmt.symmetric else {"zero_point": np.array([11], np.int8)}

    class Scales(ArraysProducer):
        def __init__(self) -> None:
            self.specs = tuple(TensorSpec(f"model.in.{n}", str(a.dtype), (1,)) for n, a in given_too.items())
            self._arrays, self._rows, self._step = list(given_too.values()), 1, 1

    def build(g, x, scale):  # type: ignore[no-untyped-def]
        zero_point = g.constant(zeros["zero_point"], np.int8) if zeros else None
        return append_round_input(g, x, scale, zero_point, kind=fmt.name, static=True, scope="tensor")

    path = written(onnx_qdq.lower(stage_of(build, {"x": x}, [Scales()], 3)), tmp_path)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node] == ["QuantizeLinear", "DequantizeLinear"]
    assert all(not t.dims for t in model.graph.initializer)
    for got in (run_ort(path, {"x": x}), run_reference(path, {"x": x})):
        assert_same_bits(got, round_input(x, fmt, **given_too, **zeros))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "mxfp4", "int8", "int4", "fp8"])
def test_dynamic_inputs_are_standard_ops_too(name: str, tmp_path: Path) -> None:
    fmt = ActivationFormat(name, False, "token" if name in ("int8", "int4", "fp8") else "block")
    x = np.random.default_rng(4).standard_normal((2, 3, 50)).astype(np.float32)

    def build(g, x):  # type: ignore[no-untyped-def]
        return append_round_input(g, x, kind=fmt.name, static=False, scope=fmt.scope)

    path = written(onnx_qdq.lower(stage_of(build, {"x": x}, [], 3)), tmp_path)
    assert domains(path) == {""}
    assert_same_bits(run_reference(path, {"x": x}), round_input(x, fmt))


MODELS = ["llama_rope_linear", "gemma3", "qwen3", "gpt_oss", "granitemoe", "mamba2"]


@pytest.mark.parametrize("case", sorted(set(MODELS) & set(CASES)))
@pytest.mark.parametrize("recipe", ["float32", "int4", "int8"])
def test_whole_models_are_standard_and_give_the_same_logits(case: str, recipe: str, tmp_path: Path) -> None:
    reference = golden(case)
    results = []
    for dialect in ("portable", "onnx-qdq"):
        stage = lowered(reference.checkpoint, dialect, recipe)
        write_stage(stage, tmp_path / dialect)
        path = tmp_path / dialect / "model.onnx"
        onnx.checker.check_model(path, full_check=True)
        engine = OnnxRuntimeEngine(path, stage.contract, EngineSettings("basic"), threads=1)
        results.append(Session(engine).append(reference.ids[:20], logits="all"))
    assert domains(tmp_path / "onnx-qdq" / "model.onnx") == {""}
    assert relative_error(results[1], results[0]) < 2e-6
    names = [node.name for node in ir.load(tmp_path / "onnx-qdq" / "model.onnx").graph]
    assert len(set(names)) == len(names)


def test_every_dialect_is_one_a_bundle_may_name() -> None:
    stage = StageContract((), ())
    for name in LOWERINGS:
        entry = StageEntry("m.onnx", name, stage, EngineSettings().to_json())
        assert StageEntry.from_json(entry.to_json()) == entry


def test_nothing_is_left_of_a_typed_weight_that_is_read_as_bytes(tmp_path: Path) -> None:
    fmt = Nvfp4Format()
    parts = encoded(fmt, weights(1, 4, 32))
    stage = portable.lower(stage_for(fmt, parts, (4, 32), "rows"), emulate=True)
    assert {v.dtype for v in stage.graph.initializers.values()} == {ir.DataType.UINT8, ir.DataType.FLOAT}
