"""Sessions of models with recurrent states: every split, batches, copies, prefixes, and what can be taken back."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeEngine, golden, relative_error
from edgewright.errors import GenerationError
from edgewright.runtime import session as session_module
from edgewright.runtime.prefix import load_prefix, save_prefix
from edgewright.runtime.session import Session

#: States alone; Mamba-2 beside attention layers; in one layer with attention; short convolutions; a delta net.
CASES = ("mamba2", "bamba", "falcon_h1", "lfm2", "qwen3_5_text")
each_case = pytest.mark.parametrize("case", CASES)
each_dialect = pytest.mark.parametrize("dialect", ["onnxruntime", "portable"])


def logits_ok(got: np.ndarray, wanted: np.ndarray) -> bool:
    return relative_error(got, wanted) < 2e-5


@each_case
@each_dialect
@pytest.mark.parametrize("cuts", [[1, 2, 4, 36, 37], [30], list(range(1, 64))])
def test_any_split_gives_the_same(case: str, dialect: str, cuts: list[int], shared_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(shared_engine(case, dialect), first_capacity=5)
    assert session.recurrent
    parts = [session.append(reference.ids[a:b], "all") for a, b in itertools.pairwise([0, *cuts, 64])]
    assert logits_ok(np.concatenate(parts), reference.logits)


@each_case
def test_long_appends_are_cut(case: str, shared_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "PREFILL_CHUNK", 7)
    reference = golden(case)
    session = Session(shared_engine(case))
    assert logits_ok(session.append(reference.ids[:50], "all"), reference.logits[:50])
    assert logits_ok(session.append(reference.ids[50:]), reference.logits[-1:])


@each_case
def test_truncation_goes_to_the_ends_of_appends(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    session = Session(shared_engine(case))
    session.append(ids[:20], "none")
    session.append(ids[20:30], "none")
    for token in (5, 6, 7):
        session.append([token])
    with pytest.raises(GenerationError, match=r"Can't truncate to 31: .* none is remembered"):
        session.truncate(31)
    assert session.length == 33
    session.truncate(33)  # nothing is taken back
    session.truncate(30)
    assert logits_ok(session.append(ids[30:31], "all"), logits[30:31])  # one token more is no end to remember
    session.truncate(20)
    assert logits_ok(session.append(ids[20:], "all"), logits[20:])
    session.truncate(0)
    assert logits_ok(session.append(ids, "all"), logits)
    with pytest.raises(GenerationError, match="none is remembered"):
        session.truncate(20)  # forgotten with what came after zero


@each_case
def test_rewind_goes_as_near_as_it_can(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    session = Session(shared_engine(case))
    for a, b in itertools.pairwise([0, 10, 20, 30, 40, 50]):
        session.append(ids[a:b], "none")
    assert session.rewind(50) == 50
    assert session.rewind(49) == 40
    assert logits_ok(session.append(ids[40:41]), logits[40:41])
    assert session.rewind(40) == 40
    assert session.rewind(39) == 0  # only two ends are remembered
    assert session.length == 0
    assert logits_ok(session.append(ids, "all"), logits)


@each_case
def test_a_copy_goes_its_own_way(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    session = Session(shared_engine(case))
    session.append(ids[:25], "none")
    session.append(ids[25:26])
    twin = session.copy()
    twin.append((ids[26:40] + 1) % session.vocab_size, "none")
    assert logits_ok(session.append(ids[26:27]), logits[26:27])
    assert logits_ok(session.append(ids[27:], "all"), logits[27:])
    twin.truncate(25)
    assert logits_ok(np.concatenate([twin.append([token]) for token in ids[25:]]), logits[25:])


@each_case
@each_dialect
def test_rows_of_different_lengths(case: str, dialect: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    session = Session(shared_engine(case, dialect), batch=3, first_capacity=4)
    starts = (1, 9, 20)
    first = session.append_rows([ids[:n] for n in starts], "all")
    for got, n in zip(first, starts, strict=True):
        assert logits_ok(got, logits[:n])
    # Decoded together, then fed further pieces of different lengths.
    for step in range(3):
        got = session.append(np.stack([ids[n + step : n + step + 1] for n in starts]))
        assert logits_ok(got[:, 0], np.stack([logits[n + step] for n in starts]))
    more = session.append_rows([ids[n + 3 : n + 3 + size] for n, size in zip(starts, (30, 1, 12), strict=True)], "all")
    for got, n, size in zip(more, starts, (30, 1, 12), strict=True):
        assert logits_ok(got, logits[n + 3 : n + 3 + size])
    assert session.lengths == (34, 13, 35)


@each_case
def test_a_ragged_batch_is_taken_back_where_all_rows_can_be(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    session = Session(shared_engine(case), batch=2)
    session.append(np.stack([ids[:6], ids[:6]]), "none")
    session.append_rows([ids[6:12], ids[6:9]], "none")
    session.append(np.stack([ids[12:13], ids[9:10]]))
    # At 12 the second row would keep its 10 tokens, of which no state is remembered.
    with pytest.raises(GenerationError, match="Can't truncate to 12"):
        session.truncate(12)
    assert session.rewind(12) == 6
    assert session.lengths == (6, 6)
    got = session.append_rows([ids[6:30], ids[6:8]], "all")
    assert logits_ok(got[0], logits[6:30])
    assert logits_ok(got[1], logits[6:8])


@each_case
def test_a_prefix_comes_back(case: str, shared_engine: MakeEngine, tmp_path: Path) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    session = Session(shared_engine(case))
    session.append(ids[:30], "none")
    session.append(ids[30:31])
    save_prefix(tmp_path / "prefix", session, ids[:31].tolist(), "me")
    other = Session(shared_engine(case), first_capacity=3)
    other.append(ids[::-1][:5])
    assert load_prefix(tmp_path / "prefix", other, "me") == ids[:31].tolist()
    for mine, theirs in zip(session.cache(), other.cache(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert logits_ok(other.append(ids[31:50], "all"), logits[31:50])
    # A prefix is the natural place to go back to, what was before it is gone.
    assert other.rewind(45) == 31
    assert logits_ok(other.append(ids[31:32]), logits[31:32])
    with pytest.raises(GenerationError, match="none is remembered"):
        other.truncate(5)


@each_case
def test_states_are_counted_and_never_grow(case: str, shared_engine: MakeEngine) -> None:
    engine = shared_engine(case)
    session = Session(engine, first_capacity=8)
    held = session._states
    sizes = [state.shape for state in engine.contract.state]
    assert all(array.shape == (1, *size) for array, size in zip(held, sizes, strict=True))
    assert session.kv_bytes >= 2 * sum(array.nbytes for array in held)
    session.append(golden(case).ids, "none")
    assert [array.shape for array in session._states] == [array.shape for array in held]
    if not engine.contract.kv:
        assert session.capacity == session.max_context


@each_case
def test_saved_states_do_not_move(case: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(shared_engine(case))
    session.append(reference.ids[:9], "none")
    saved = session.cache()
    before = [array.copy() for array in saved]
    for token in (1, 2, 3):
        session.append([token])
    for array, copy in zip(saved, before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_saved_cache_needs_a_session_of_one(shared_engine: MakeEngine) -> None:
    session = Session(shared_engine("mamba2"))
    session.append([1, 2, 3], "none")
    cache = session.cache()
    with pytest.raises(GenerationError, match="batch 1"):
        Session(shared_engine("mamba2"), batch=2).restore(cache, [1, 2, 3])
