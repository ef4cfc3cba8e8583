"""Prefix caches in files: restored exactly, refused when damaged or of another model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import MakeBundle, MakeEngine, golden
from edgewright.errors import GenerationError, OutputError
from edgewright.runtime.llm import LLM
from edgewright.runtime.prefix import load_prefix, save_prefix
from edgewright.runtime.session import Session


@pytest.mark.parametrize("case", ["qwen3", "llama"])
def test_a_prefix_comes_back_bit_for_bit(case: str, shared_engine: MakeEngine, tmp_path: Path) -> None:
    reference = golden(case)
    ids = reference.ids[:37].tolist()
    session = Session(shared_engine(case))
    session.append(ids, logits="none")
    save_prefix(tmp_path / "p.npz", session, ids, "me")
    other = Session(shared_engine(case), first_capacity=3)
    assert load_prefix(tmp_path / "p.npz", other, "me") == ids
    for one, two in zip(session.cache(), other.cache(), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(session.append([5]), other.append([5]))
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_another_model_and_other_lengths_are_refused(shared_engine: MakeEngine, tmp_path: Path) -> None:
    session = Session(shared_engine("qwen3"))
    session.append([1, 2, 3], logits="none")
    with pytest.raises(GenerationError, match="2 ids don't describe a session that holds 3 tokens"):
        save_prefix(tmp_path / "p", session, [1, 2], "me")
    assert not list(tmp_path.iterdir())
    save_prefix(tmp_path / "p", session, [1, 2, 3], "me")
    fresh = Session(shared_engine("qwen3"))
    with pytest.raises(GenerationError, match="p was saved by another model"):
        load_prefix(tmp_path / "p", fresh, "you")
    # Even when the id is right, shapes decide.
    with pytest.raises(GenerationError):
        load_prefix(tmp_path / "p", Session(shared_engine("llama_rope_yarn")), "me")
    assert fresh.length == 0
    with pytest.raises(GenerationError, match="no prefix cache"):
        load_prefix(tmp_path / "q", fresh, "me")
    with pytest.raises(OutputError):
        save_prefix(tmp_path / "no" / "folder", session, [1, 2, 3], "me")


def test_damaged_files_are_refused(shared_engine: MakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "p"
    session = Session(shared_engine("qwen3"))
    session.append([1, 2, 3], logits="none")
    save_prefix(path, session, [1, 2, 3], "me")
    raw = path.read_bytes()
    fresh = Session(shared_engine("qwen3"))
    for length in (0, 3, 30, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:length])
        with pytest.raises(GenerationError):
            load_prefix(path, fresh, "me")
    at = raw.index(b"ids.npy")
    for damaged in (b"no zip at all", raw[:at] + b"xxx.npy" + raw[at + 7 :]):
        path.write_bytes(damaged)
        with pytest.raises(GenerationError):
            load_prefix(path, fresh, "me")
    assert fresh.length == 0


def test_objects_are_not_unpickled(shared_engine: MakeEngine, tmp_path: Path) -> None:
    with (tmp_path / "p").open("wb") as file:
        np.savez(file, ids=np.array([object()], dtype=object), model=np.array("me"))
    with pytest.raises(GenerationError):
        load_prefix(tmp_path / "p", Session(shared_engine("qwen3")), "me")


def test_bundles_know_their_own(shared_bundle: MakeBundle, tmp_path: Path) -> None:
    llm, other = (LLM.load(shared_bundle(recipe), threads=1) for recipe in ("int4", "int8"))
    session = llm.session()
    session.append([1, 2, 3, 4], logits="none")
    llm.save_prefix(tmp_path / "p", session, [1, 2, 3, 4])
    restored, ids = llm.load_prefix(tmp_path / "p")
    assert ids == [1, 2, 3, 4]
    np.testing.assert_array_equal(restored.append([7]), session.append([7]))
    with pytest.raises(GenerationError, match="another model or build"):
        other.load_prefix(tmp_path / "p")
