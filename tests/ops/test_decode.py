"""Decode and DecodeRows: standard bodies, emulated ones and `formats` give the same bits."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.dialects import onnxruntime, portable
from edgewright.formats import BlockFormat, Parts
from edgewright.graph import Stage
from edgewright.ops import decode, decode_rows
from edgewright.ops.decode import E2M1_VALUES, e4m3_value, e8m0_value
from qdq_cases import (
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

each_format = pytest.mark.parametrize("fmt", NARROW, ids=label)
#: Formats that ONNX Runtime decodes without emulation.
FP4 = ("nvfp4", "mxfp4")


def matrix(seed: int, rows: int, width: int, magnitude: float = 1.0) -> np.ndarray:
    """A matrix with a row and a few blocks of zeros, ties and both signs."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((rows, width)) * magnitude).astype(np.float32)
    values[rng.random((rows, width)) < 0.1] = 0
    values[:, : width // 3 : 2] = np.float32(magnitude) * rng.integers(-8, 9, values[:, : width // 3 : 2].shape) / 4
    if rows > 2:
        values[1] = 0
    return values


def decoding(fmt: BlockFormat, parts: Parts, shape: tuple[int, int], ids: np.ndarray | None = None) -> Stage:
    """A stage that decodes the parts: all of the weight, or the rows `ids`."""
    kind, scope = kind_of(fmt)
    how = {"kind": kind, "scope": scope, "in_features": shape[1], "out_features": shape[0]}

    def build(g, *inputs, codes, scales, global_scale=None):  # type: ignore[no-untyped-def]
        if ids is not None:
            return decode_rows(g, inputs[0], codes, scales, global_scale, **how)
        return g.op("Mul", decode(g, codes, scales, global_scale, **how), inputs[0])

    feeds = {"x": np.ones((1,), np.float32)} if ids is None else {"ids": ids}
    rank = 2 if ids is None else ids.ndim + 1
    return stage_of(build, feeds, [ArraysProducer("model.w", fmt, shape, parts)], rank)


def both(fmt: BlockFormat, parts: Parts, shape: tuple[int, int], ids: np.ndarray | None = None) -> list[np.ndarray]:
    """Run it in the reference evaluator, emulated in ONNX Runtime and, but for 4-bit floats, in it as it is."""
    feeds = {"x": np.ones((1,), np.float32)} if ids is None else {"ids": ids}
    with tempfile.TemporaryDirectory() as folder:
        plain = written(portable.lower(decoding(fmt, parts, shape, ids)), Path(folder) / "plain")
        other = written(portable.lower(decoding(fmt, parts, shape, ids), emulate=True), Path(folder) / "emulated")
        results = [run_reference(plain, feeds), run_ort(other, feeds), run_reference(other, feeds)]
        return results + ([] if fmt.label in FP4 else [run_ort(plain, feeds)])


shapes = st.tuples(st.integers(1, 5), st.sampled_from([1, 15, 16, 17, 31, 32, 33, 100, 128, 129, 200]))


@settings(max_examples=25, deadline=None)
@given(fmt=st.sampled_from(NARROW), shape=shapes, seed=st.integers(0, 99), exponent=st.integers(-12, 12))
def test_every_body_gives_the_formats_own_bits(
    fmt: BlockFormat, shape: tuple[int, int], seed: int, exponent: int
) -> None:
    parts = encoded(fmt, matrix(seed, *shape, 10.0**exponent))
    for got in both(fmt, parts, shape):
        assert_same_bits(got, fmt.decode(parts, shape[1]))


@settings(max_examples=25, deadline=None)
@given(
    fmt=st.sampled_from(NARROW),
    shape=shapes,
    seed=st.integers(0, 99),
    lead=st.lists(st.integers(1, 3), min_size=0, max_size=3),
)
def test_rows_are_those_of_the_table(fmt: BlockFormat, shape: tuple[int, int], seed: int, lead: list[int]) -> None:
    parts = encoded(fmt, matrix(seed, *shape))
    ids = np.random.default_rng(seed).integers(0, shape[0], lead)
    for got in both(fmt, parts, shape, ids):
        assert_same_bits(got, fmt.decode(parts, shape[1])[ids])


@each_format
def test_more_rows_than_a_block_has(fmt: BlockFormat) -> None:
    """Blocks of 128 x 128: three bands, the last one short; also rows from each of them."""
    shape = (300, 140)
    values = matrix(5, *shape) * np.linspace(1, 50, 300, dtype=np.float32)[:, None]
    parts = encoded(fmt, values)
    wanted = fmt.decode(parts, shape[1])
    for got in both(fmt, parts, shape):
        assert_same_bits(got, wanted)
    ids = np.array([[299, 0, 128], [127, 255, 256]])
    for got in both(fmt, parts, shape, ids):
        assert_same_bits(got, wanted[ids])


@each_format
@pytest.mark.parametrize("magnitude", [0.0, 1e-44, 1e-39, 1e-30, 1e30, 3e38])
def test_zeros_and_extremes(fmt: BlockFormat, magnitude: float) -> None:
    shape = (4, 50)
    values = (np.random.default_rng(8).uniform(-1, 1, shape) * magnitude).astype(np.float32)
    parts = encoded(fmt, values)
    wanted = fmt.decode(parts, shape[1])
    assert np.isfinite(wanted).all()
    for got in both(fmt, parts, shape):
        assert_same_bits(got, wanted)


def every_code(fmt: BlockFormat) -> tuple[Parts, tuple[int, int]]:
    """Parts with every finite code, under every finite scale where scales are narrow."""
    kind, _ = kind_of(fmt)
    codes = np.arange(256, dtype=np.uint8)
    if kind == "int8":
        return {"codes": codes.view(np.int8)[None], "scales": np.array([[0.37]], np.float32)}, (1, 256)
    finite = codes[codes & 127 != 127]
    if kind == "e4m3":
        return {"codes": finite.view(ml_dtypes.float8_e4m3fn)[None], "scales": np.array([[0.37]], np.float32)}, (1, 254)
    scales = finite.view(ml_dtypes.float8_e4m3fn) if kind == "nvfp4" else codes[:248].view(ml_dtypes.float8_e8m0fnu)
    block = 16 if kind == "nvfp4" else 32
    if kind == "mxe4m3":
        row = np.resize(finite, 256).view(ml_dtypes.float8_e4m3fn)
    else:
        row = np.resize(np.arange(0, 16, 2) | (np.arange(1, 17, 2) << 4), block // 2).astype(np.uint8)
    count = len(scales)
    table = np.tile(row, (count, 1))
    parts: Parts = {"codes": table, "scales": np.repeat(scales[:, None], 256 // block if kind == "mxe4m3" else 1, 1)}
    if kind == "nvfp4":
        parts["global_scale"] = np.array([0.37], np.float32)
    return parts, (count, 256 if kind == "mxe4m3" else block)


@pytest.mark.parametrize("fmt", [f for f in NARROW if kind_of(f)[1] in (None, "channel")], ids=label)
def test_every_code_under_every_scale(fmt: BlockFormat) -> None:
    parts, shape = every_code(fmt)
    with np.errstate(over="ignore"):
        wanted = fmt.decode(parts, shape[1])
        for got in both(fmt, parts, shape):
            assert_same_bits(got, wanted)
        ids = np.arange(shape[0])
        for got in both(fmt, parts, shape, ids):
            assert_same_bits(got, wanted)


def test_the_tables_are_those_of_ml_dtypes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(np.float32([e4m3_value(c) for c in range(256)]), wanted)
    wanted = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(np.float32([e8m0_value(c) for c in range(256)]), wanted)
    wanted = codes[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert_same_bits(np.float32(E2M1_VALUES), wanted)
    assert math.copysign(1, e4m3_value(128)) == -1


TYPES = {
    "int8": onnx.TensorProto.INT8,
    "e4m3": onnx.TensorProto.FLOAT8E4M3FN,
    "nvfp4": onnx.TensorProto.FLOAT4E2M1,
    "mxe4m3": onnx.TensorProto.FLOAT8E4M3FN,
    "mxe2m1": onnx.TensorProto.FLOAT4E2M1,
}
SCALES = {"nvfp4": onnx.TensorProto.FLOAT8E4M3FN, "mxe4m3": onnx.TensorProto.FLOAT8E8M0}


@each_format
def test_the_file_holds_what_was_asked_for(fmt: BlockFormat, tmp_path: Path) -> None:
    """Data types, shapes and sizes in bytes, of odd sizes; emulation changes the type and not the bytes."""
    shape = (3, 70)
    parts = encoded(fmt, matrix(1, *shape))
    kind, _ = kind_of(fmt)
    path = written(portable.lower(decoding(fmt, parts, shape)), tmp_path / "a")
    tensors = {t.name: t for t in onnx.load(path, load_external_data=False).graph.initializer}
    codes, scales = tensors["model.w.codes"], tensors["model.w.scales"]
    assert codes.data_type == TYPES[kind]
    assert scales.data_type == SCALES.get(kind.replace("mxe2m1", "mxe4m3"), onnx.TensorProto.FLOAT)
    columns = {"nvfp4": 80, "mxe4m3": 96, "mxe2m1": 96}.get(kind, 70)
    assert list(codes.dims) == [3, columns]
    length = {e.key: e.value for e in codes.external_data}["length"]
    assert int(length) == 3 * columns // (2 if fmt.label in FP4 else 1)
    emulated = written(portable.lower(decoding(fmt, parts, shape), emulate=True), tmp_path / "b")
    assert (path.parent / "weights.bin").read_bytes() == (emulated.parent / "weights.bin").read_bytes()
    types = {t.data_type for t in onnx.load(emulated, load_external_data=False).graph.initializer}
    assert onnx.TensorProto.FLOAT4E2M1 not in types


@each_format
def test_onnx_runtimes_dialect_decodes_alike(fmt: BlockFormat, tmp_path: Path) -> None:
    shape = (40, 70)
    parts = encoded(fmt, matrix(2, *shape))
    got = run_ort(written(onnxruntime.lower(decoding(fmt, parts, shape)), tmp_path), {"x": np.ones(1, np.float32)})
    assert_same_bits(got, fmt.decode(parts, shape[1]))
