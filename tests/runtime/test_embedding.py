"""Looking rows up beside the graph: the very numbers of the formats, and files that are not what they should be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import ArrayTensor
from edgewright.build.outside import table_record, write_table
from edgewright.errors import BundleError, GenerationError
from edgewright.formats import (
    BlockFormat,
    FloatFormat,
    Format,
    IntFormat,
    MxFormat,
    Nvfp4Format,
    ScaledFormat,
)
from edgewright.graph.stage import OutsideTable
from edgewright.graph.weights import FloatProducer, Producer, StoredWeight
from edgewright.quant.producers import RoundingProducer
from edgewright.runtime.embedding import SIDECAR, EmbeddingTable, checked_rows

FORMATS: list[Format] = [
    *map(FloatFormat, ("float32", "float16", "bfloat16")),
    *(ScaledFormat(e, s) for e in ("int8", "e4m3") for s in ("tensor", "channel", "block", "row-block")),
    *(IntFormat(b, g, zero_point=z) for b in (4, 8) for g in (32, 64) for z in (False, True)),
    IntFormat(4, 32, zero_point=True, scales="float16"),
    Nvfp4Format(),
    MxFormat("e4m3"),
    MxFormat("e2m1"),
]


def table_of(values: np.ndarray, fmt: Format, multiplier: float | None = None) -> OutsideTable:
    weight = StoredWeight(ArrayTensor("t", values), "t.weight")
    producer: Producer
    if isinstance(fmt, BlockFormat):
        producer = RoundingProducer(weight, fmt, "t")
    else:
        assert isinstance(fmt, FloatFormat)
        producer = FloatProducer(weight, fmt.dtype)
    return OutsideTable("t", "t/Embedding:0", producer, multiplier)


def written(table: OutsideTable, folder: Path) -> tuple[Path, dict[str, Any]]:
    write_table(table, folder, lambda _: None)
    return folder / SIDECAR, json.loads(json.dumps(table_record(table)))


def decoded(values: np.ndarray, fmt: Format) -> np.ndarray:
    """What the formats themselves make of a matrix."""
    if isinstance(fmt, FloatFormat):
        kind = ml_dtypes.bfloat16 if fmt.dtype == "bfloat16" else fmt.dtype
        return values.astype(kind).astype(np.float32)
    assert isinstance(fmt, BlockFormat)
    shared = fmt.survey(float(np.abs(values).max()))
    return fmt.decode({**shared, **fmt.encode(values, shared)}, values.shape[1])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f"{f.label}-{f.to_json().get('scope', '')}")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 300), width=st.integers(1, 290), seed=st.integers(0, 1 << 30), size=st.sampled_from([1, 1e3])
)
def test_rows_are_the_formats_own(fmt: Format, rows: int, width: int, seed: int, size: float, tmp_path: Path) -> None:
    draw = np.random.default_rng(seed)
    values = (draw.standard_normal((rows, width)) * size).astype(np.float32)
    values[draw.integers(0, rows)] = 0
    path, record = written(table_of(values, fmt), tmp_path)
    table = EmbeddingTable(path, record)
    ids = draw.integers(0, rows, (2, draw.integers(1, 9)))
    got, wanted = table.rows(ids), decoded(values, fmt)[ids]
    assert (got.dtype, got.shape) == (np.float32, (*ids.shape, width))
    assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))  # signs of zeros, too
    got[:] = 7  # memory of its own
    assert np.array_equal(table.rows(ids), wanted)


def test_the_factor_is_one_float32_multiplication(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((9, 37)).astype(np.float32)
    path, record = written(table_of(values, FloatFormat("float32"), float(np.float32(37**0.5))), tmp_path)
    assert np.array_equal(EmbeddingTable(path, record).rows(np.arange(9)), values * np.float32(37**0.5))


def test_fp8_row_blocks_have_the_known_layout(tmp_path: Path) -> None:
    """`embedding` F8_E4M3 [V, H] and `embedding_scale` F32 [V, H / 128], read by hand."""
    values = np.random.default_rng(5).standard_normal((11, 256)).astype(np.float32)
    path, record = written(table_of(values, ScaledFormat("e4m3", "row-block")), tmp_path)
    raw = path.read_bytes()
    count = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + count])
    assert {name: (e["dtype"], e["shape"]) for name, e in header.items()} == {
        "embedding": ("F8_E4M3", [11, 256]),
        "embedding_scale": ("F32", [11, 2]),
    }
    assert (8 + count) % 8 == 0

    def part(name: str, dtype: Any) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        return np.frombuffer(raw[8 + count + begin : 8 + count + end], dtype).reshape(header[name]["shape"])

    scales, codes = part("embedding_scale", "<f4"), part("embedding", ml_dtypes.float8_e4m3fn).astype(np.float32)
    by_hand = (codes.reshape(11, 2, 128) * scales[:, :, None]).reshape(11, 256)
    assert np.array_equal(EmbeddingTable(path, record).rows(np.arange(11)), by_hand)
    assert np.abs(by_hand - values).max() < 0.04 * np.abs(values).max()


# -- hostile files -----------------------------------------------------------------------------------------------------


def edit_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = path.read_bytes()
    count = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + count])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + count :])


def rename(header: dict[str, Any]) -> None:
    header["other"] = header.pop("embedding_scale")


HEADERS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "dtype": (lambda h: h["embedding"].update(dtype="I8"), "embedding as I8"),
    "unknown dtype": (lambda h: h["embedding"].update(dtype="F8"), "is damaged"),
    "shape": (lambda h: h["embedding"].update(shape=[130, 7]), r"embedding as F8_E4M3 \[130, 7\]"),
    "size": (lambda h: h["embedding"].update(shape=[8, 130]), "is damaged"),
    "negative": (lambda h: h["embedding"].update(shape=[-7, -130]), "is damaged"),
    "bool": (lambda h: h["embedding"].update(shape=[True, 910]), "is damaged"),
    "missing part": (rename, "embedding_scale|the tensor other"),
    "no entry": (lambda h: h.update(embedding=None), "is damaged"),
    "beyond the end": (lambda h: h["embedding"].update(data_offsets=[56, 1 << 40]), "is damaged"),
    "offsets": (lambda h: h["embedding"].update(data_offsets=[0]), "is damaged"),
    "one part less": (lambda h: h.pop("embedding_scale"), "is damaged"),
}


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_hostile_headers(name: str, tmp_path: Path) -> None:
    change, words = HEADERS[name]
    path, record = written(table_of(np.ones((7, 130), np.float32), ScaledFormat("e4m3", "row-block")), tmp_path)
    edit_header(path, change)
    with pytest.raises(BundleError, match=words):
        EmbeddingTable(path, record)


@pytest.mark.parametrize("raw", [b"", b"\xff" * 9, (1 << 62).to_bytes(8, "little") + b"{}", b"\x02" + bytes(7) + b"[]"])
def test_files_that_are_none(raw: bytes, tmp_path: Path) -> None:
    path, record = written(table_of(np.ones((7, 13), np.float32), FloatFormat("float16")), tmp_path)
    path.write_bytes(raw)
    with pytest.raises(BundleError, match="damaged"):
        EmbeddingTable(path, record)
    path.unlink()
    with pytest.raises(BundleError, match="can't be read"):
        EmbeddingTable(path, record)


@pytest.mark.parametrize("cut", [1, 8, 100])
def test_truncated_files(cut: int, tmp_path: Path) -> None:
    path, record = written(table_of(np.ones((7, 130), np.float32), IntFormat(4, 32, zero_point=True)), tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(BundleError, match="damaged"):
        EmbeddingTable(path, record)


@pytest.mark.parametrize(
    "change",
    [
        {"format": {}},
        {"format": {"dtype": "float64"}},
        {"format": {"element": "int8", "scope": "half"}},
        {"format": {"bits": 3, "group": 32, "zero_point": False}},
        {"format": {"bits": 4, "group": 0, "zero_point": False}},
        {"format": {"bits": 4, "group": 32, "zero_point": False, "scales": "int8"}},
        {"format": None},
        {"vocab": 0},
        {"hidden": "x"},
        {"multiplier": "x"},
    ],
    ids=str,
)
def test_records_that_say_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    path, record = written(table_of(np.ones((7, 13), np.float32), FloatFormat("float32")), tmp_path)
    with pytest.raises(BundleError, match="doesn't know"):
        EmbeddingTable(path, record | change)


def test_a_record_of_another_table(tmp_path: Path) -> None:
    table = table_of(np.ones((7, 13), np.float32), FloatFormat("float16"))
    path, record = written(table, tmp_path)
    for change in ({"vocab": 8}, {"hidden": 12}, {"format": {"dtype": "bfloat16"}}):
        with pytest.raises(BundleError, match="where its format needs"):
            EmbeddingTable(path, record | change)
    scaled = dataclasses.replace(table, producer=table_of(np.ones((7, 13)), ScaledFormat("int8", "channel")).producer)
    with pytest.raises(BundleError, match="embedding_scale"):
        EmbeddingTable(written(scaled, tmp_path)[0], record)


# -- rows that a caller feeds ------------------------------------------------------------------------------------------


def test_rows_that_fit() -> None:
    rows = np.arange(12, dtype=np.float64).reshape(3, 4)
    assert checked_rows(rows, 1, 4).shape == (1, 3, 4)
    assert checked_rows(rows[None].repeat(2, 0), 2, 4).dtype == np.float32


@pytest.mark.parametrize(
    ("rows", "batch", "width", "words"),
    [
        (np.ones((3, 4)), 1, None, "--embeddings outside"),
        (np.ones((3, 5)), 1, 4, r"\[3, 5\] don't fit: give rows of 4 numbers"),
        (np.ones((0, 4)), 1, 4, "don't fit"),
        (np.ones((3, 4)), 2, 4, "for each of 2"),
        (np.ones((3, 4), np.int64), 1, 4, "not int64"),
        (np.full((3, 4), np.nan), 1, 4, "not finite"),
        (np.full((3, 4), 1e39), 1, 4, "not finite"),
        ([[[1.0] * 4], [[1.0] * 4] * 2], 2, 4, "equally many"),
    ],
)
def test_rows_that_do_not(rows: Any, batch: int, width: int | None, words: str) -> None:
    with pytest.raises(GenerationError, match=words):
        checked_rows(rows, batch, width)
