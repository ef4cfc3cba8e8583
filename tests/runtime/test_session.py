"""Sessions: growth of the cache, truncation, copies, restored caches, and refusals that leave everything as it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MakeEngine, golden, relative_error
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import TensorContract
from edgewright.errors import BundleError, ContextOverflowError, GenerationError, TargetMismatchError
from edgewright.runtime import session as session_module
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.session import FIRST_CAPACITY, Session, unpadded

#: A golden whose attention updates the cache in place, and one whose attention copies it.
IN_PLACE, COPYING = "qwen3", "llama"
each_kind = pytest.mark.parametrize("case", [IN_PLACE, COPYING])


def logits_ok(got: np.ndarray, wanted: np.ndarray) -> bool:
    return relative_error(got, wanted) < 2e-5


@each_kind
@pytest.mark.parametrize("first", [1, 3, 16, 63, 64, 65])
def test_growth_at_every_boundary(case: str, first: int, shared_engine: MakeEngine) -> None:
    """Capacities double until there is room for 64 tokens more than needed, and no growth changes a logit."""
    reference = golden(case)
    session = Session(shared_engine(case), first_capacity=first)
    assert session.capacity == first
    rows, capacities = [], {first}
    for token in reference.ids:
        rows.append(session.append([token]))
        capacities.add(session.capacity)
        assert session.capacity >= session.length
    assert logits_ok(np.concatenate(rows), reference.logits)
    wanted = {first}
    capacity = first
    for length in range(1, 65):
        if length > capacity:
            while capacity < length + 64:
                capacity *= 2
            wanted.add(capacity)
    assert capacities == wanted


@each_kind
def test_growth_stops_at_the_context(case: str, shared_engine: MakeEngine) -> None:
    session = Session(shared_engine(case), first_capacity=100)
    assert session.max_context == 256
    session.append(np.arange(101) % 90, logits="none")
    assert session.capacity == 200
    session.append(np.arange(155) % 90, logits="none")
    assert session.capacity == session.length == 256
    default = Session(shared_engine(case))
    assert default.capacity == min(FIRST_CAPACITY, 256)
    layers, kv_heads, head_dim = (2, 1, 32) if case == IN_PLACE else (3, 2, 10)
    assert session.kv_bytes == 2 * layers * kv_heads * 256 * head_dim * 4


@each_kind
def test_overflow_leaves_the_session_unchanged(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(shared_engine(case), first_capacity=8)
    session.append(reference.ids[:40], logits="none")
    capacity = session.capacity
    with pytest.raises(ContextOverflowError, match=r"217 tokens after 40 don't fit into the context of 256"):
        session.append(np.zeros(217, np.int64))
    assert (session.length, session.capacity) == (40, capacity)
    assert logits_ok(session.append(reference.ids[40:], logits="all"), reference.logits[40:])
    session.append(np.zeros(192, np.int64), logits="none")
    with pytest.raises(ContextOverflowError, match="1 tokens after 256"):
        session.append([1])
    session.truncate(255)
    session.append([1])


BAD_IDS: list[tuple[Any, str]] = [
    ([], "don't fit a batch of 1"),
    (np.zeros((1, 0), np.int64), "don't fit a batch of 1"),
    ([0, 97], "97 is outside the vocabulary of 97"),
    ([5, -1, 99], "-1 is outside the vocabulary"),
    ([1.0, 2.0], "must be integers"),
    (["a"], "must be integers"),
    ([True], "must be integers"),
    ([[1, 2], [3, 4]], "don't fit a batch of 1"),
    (3, "don't fit a batch of 1"),
    ([[[1]]], "don't fit a batch of 1"),
]


@pytest.mark.parametrize(("ids", "message"), BAD_IDS, ids=lambda v: repr(v)[:30])
def test_ids_that_are_refused_leave_the_session_unchanged(ids: Any, message: str, shared_engine: MakeEngine) -> None:
    reference = golden(IN_PLACE)
    session = Session(shared_engine(IN_PLACE))
    session.append(reference.ids[:7], logits="none")
    with pytest.raises(GenerationError, match=message):
        session.append(ids)
    assert session.length == 7
    assert logits_ok(session.append(reference.ids[7:8]), reference.logits[7:8])


def test_other_integer_types_are_fine(shared_engine: MakeEngine) -> None:
    reference = golden(IN_PLACE)
    for ids in (reference.ids.tolist(), tuple(reference.ids), reference.ids.astype(np.uint8), reference.ids[None]):
        session = Session(shared_engine(IN_PLACE))
        assert logits_ok(session.append(ids, logits="all"), reference.logits)


@each_kind
def test_what_append_returns(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    vocab = reference.logits.shape[1]
    session = Session(shared_engine(case))
    everything = session.append(reference.ids[:20], logits="all")
    assert everything.shape == (20, vocab)
    assert everything.dtype == np.float32
    last = session.append(reference.ids[20:30])
    assert logits_ok(last, reference.logits[29:30])
    none = session.append(reference.ids[30:31], logits="none")
    assert none.shape == (0, vocab)
    one = session.append(reference.ids[31:32], logits="all")
    assert logits_ok(one, reference.logits[31:32])
    with pytest.raises(GenerationError, match="must be 'last', 'all' or 'none'"):
        session.append([1], logits="some")  # type: ignore[arg-type]
    # Results are the caller's: later calls don't write into them.
    kept = [array.copy() for array in (everything, last, one)]
    first = session.append(reference.ids[32:33])
    copy = first.copy()
    session.append(reference.ids[33:34])
    for array, before in zip((everything, last, one, first), (*kept, copy), strict=True):
        np.testing.assert_array_equal(array, before)


@each_kind
def test_long_appends_are_cut_into_chunks(
    case: str, shared_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = golden(case)
    for chunk in (1, 7, 32, 64):
        monkeypatch.setattr(session_module, "PREFILL_CHUNK", chunk)
        for logits, wanted in (("all", reference.logits), ("last", reference.logits[-1:])):
            session = Session(shared_engine(case))
            assert logits_ok(session.append(reference.ids, logits=logits), wanted)  # type: ignore[arg-type]


@each_kind
def test_truncation(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(shared_engine(case))
    session.append(reference.ids, logits="none")
    for bad in (-1, 65, 1000):
        with pytest.raises(GenerationError, match=f"Can't truncate to {bad}: the session holds 64 tokens"):
            session.truncate(bad)
    for length in (64, 63, 30, 1, 0):
        session.truncate(length)
        assert session.length == length
        if length < 64:
            assert logits_ok(session.append(reference.ids[length : length + 1]), reference.logits[length : length + 1])
            session.truncate(length)


@each_kind
def test_copies_are_independent(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(shared_engine(case), first_capacity=33)
    session.append(reference.ids[:33], logits="none")
    twins = [session.copy() for _ in range(2)]
    for number, twin in enumerate(twins):
        twin.append((reference.ids[33:50] + number + 1) % 90, logits="none")
    assert session.length == 33
    assert logits_ok(session.append(reference.ids[33:], logits="all"), reference.logits[33:])
    twins[0].truncate(33)
    assert logits_ok(twins[0].append(reference.ids[33:], logits="all"), reference.logits[33:])
    empty = Session(shared_engine(case)).copy()
    assert empty.length == 0
    assert logits_ok(empty.append(reference.ids[:1]), reference.logits[:1])


@each_kind
def test_saved_caches_are_restored(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(shared_engine(case), first_capacity=9)
    session.append(reference.ids[:40], logits="none")
    cache = [array.copy() for array in session.cache()]
    assert {array.shape[2] for array in cache} == {40}
    other = Session(shared_engine(case), first_capacity=2)
    other.append([3, 4, 5], logits="none")
    other.restore(cache, reference.ids[:40])
    assert other.length == 40
    assert logits_ok(other.append(reference.ids[40:], logits="all"), reference.logits[40:])
    # Restoring copies: what was given stays as it was.
    np.testing.assert_array_equal(cache[0], session.cache()[0])


def test_caches_of_another_model_are_refused(shared_engine: MakeEngine) -> None:
    session = Session(shared_engine(IN_PLACE))
    session.append([1, 2, 3], logits="none")
    cache = [array.copy() for array in session.cache()]
    for wrong in (
        cache[:-1],
        [*cache, cache[0]],
        [],
        [array.astype(np.float16) for array in cache],
        [array[..., :-1] for array in cache],
        [array[0] for array in cache],
        [cache[0][:, :, :2], *cache[1:]],
        [np.repeat(array, 2, axis=0) for array in cache],
    ):
        with pytest.raises(GenerationError, match="other shapes"):
            session.restore(wrong, [1, 2, 3])
        assert session.length == 3
    long = [np.zeros((*array.shape[:2], 257, array.shape[3]), array.dtype) for array in cache]
    with pytest.raises(ContextOverflowError, match="257 tokens exceeds the context of 256"):
        session.restore(long, [1] * 257)


@each_kind
def test_rows_of_different_lengths(case: str, shared_engine: MakeEngine) -> None:
    """Each row is what it is alone, whatever the others are; then they decode together."""
    expected = golden(case).expected
    ids, pads, logits = expected["ids_b"], expected["pad_b"], expected["logits_p"]
    rows = unpadded(ids, np.arange(ids.shape[1]) >= pads[:, None])
    session = Session(shared_engine(case), batch=3, first_capacity=4)
    heads = session.append_rows([row[:-2] for row in rows], logits="all")
    assert session.lengths == tuple(18 - pads)
    assert session.length == 18
    for row, head in enumerate(heads):
        assert logits_ok(head, logits[row, pads[row] : -2])
    assert logits_ok(session.append(ids[:, -2:-1]), logits[:, -2:-1])
    copy = session.copy()
    assert logits_ok(session.append(ids[:, -1:]), logits[:, -1:])
    assert logits_ok(copy.append(ids[:, -1:]), logits[:, -1:])
    session.truncate(8)
    assert session.lengths == (8, 8, 8)
    assert logits_ok(session.append_rows([rows[0][8:9], rows[1][8:12], rows[2][8:]])[0], logits[0, 8:9])
    with pytest.raises(GenerationError, match="at least one"):
        session.append_rows([[1], [], [2]])
    with pytest.raises(GenerationError, match="2 rows of token ids"):
        session.append_rows([[1], [2]])
    with pytest.raises(ContextOverflowError):
        session.append_rows([[1], [2], [1] * 256])
    assert session.lengths == (9, 12, 9)


def test_padding_is_taken_off_and_holes_are_refused() -> None:
    ids = np.array([[0, 0, 5], [6, 7, 0], [1, 2, 3]])
    rows = unpadded(ids, np.array([[0, 0, 1], [1, 1, 0], [1, 1, 1]]))
    assert [list(row) for row in rows] == [[5], [6, 7], [1, 2, 3]]
    with pytest.raises(GenerationError, match="hole"):
        unpadded(ids, np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1]]))


@each_kind
def test_batches(case: str, shared_engine: MakeEngine) -> None:
    expected = golden(case).expected
    ids, logits = expected["ids_b"], expected["logits_b"]
    session = Session(shared_engine(case), batch=3, first_capacity=4)
    assert logits_ok(session.append(ids[:, :9]), logits[:, 8:9])
    assert session.append(ids[:, 9:10], logits="none").shape == (3, 0, logits.shape[2])
    assert logits_ok(session.append(ids[:, 10:16], logits="all"), logits[:, 10:16])
    assert logits_ok(session.append(ids[:, 16:17]), logits[:, 16:17])
    for wrong in (ids[:2, 17:18], ids[0, 17:18], ids[:, :0], [[1], [2], [97]]):
        with pytest.raises(GenerationError):
            session.append(wrong)
    assert session.length == 17
    session.truncate(12)
    assert logits_ok(session.append(ids[:, 12:], logits="all"), logits[:, 12:])
    for batch in (0, -1, 65):
        with pytest.raises(GenerationError, match=rf"batch of {batch} is outside this bundle's bounds \(1 to 64\)"):
            Session(shared_engine(case), batch=batch)


# -- engines -----------------------------------------------------------------------------------------------------------


def test_an_engine_is_held_to_its_contract(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(golden(IN_PLACE).checkpoint)
    path, contract = tmp_path / "stage1" / "model.onnx", engine.contract
    OnnxRuntimeEngine(path, contract, EngineSettings())
    logits, *caches = contract.outputs
    for outputs, words in (
        ((dataclasses.replace(logits, name="scores"), *caches), "logits, scores differ"),
        ((dataclasses.replace(logits, dtype="float16"), *caches), "logits is float32 .*float16"),
        ((dataclasses.replace(logits, shape=("batch", "positions", 98)), *caches), r"logits is .* 98\]"),
        ((dataclasses.replace(logits, shape=("batch", 97)), *caches), "logits is"),
        ((*contract.outputs, TensorContract("more", "float32", (1,))), "more differ"),
    ):
        with pytest.raises(TargetMismatchError, match=words):
            OnnxRuntimeEngine(path, dataclasses.replace(contract, outputs=outputs), EngineSettings())
    path.write_bytes(b"not a model")
    with pytest.raises(BundleError, match=r"can't load model\.onnx"):
        OnnxRuntimeEngine(path, contract, EngineSettings())
    with pytest.raises(BundleError):
        OnnxRuntimeEngine(tmp_path / "nowhere.onnx", contract, EngineSettings())


def test_threads_change_nothing_but_rounding(make_engine: MakeEngine, tmp_path: Path) -> None:
    reference = golden(IN_PLACE)
    engine = make_engine(reference.checkpoint)
    for threads in (1, 2, 3):
        other = OnnxRuntimeEngine(
            tmp_path / "stage1" / "model.onnx", engine.contract, EngineSettings(), threads=threads
        )
        assert logits_ok(Session(other).append(reference.ids, logits="all"), reference.logits)
