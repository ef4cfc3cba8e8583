"""The engine over static graphs: any cut of the tokens, a context filled to its end, texts that are cut back."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from conftest import golden
from edgewright.bundle.manifest import StageEntry
from edgewright.errors import BundleError, ContextOverflowError, GenerationError
from edgewright.runtime.engines import qnn
from edgewright.runtime.engines.qnn import QnnEngine, describe
from edgewright.runtime.session import Session
from qnn_cases import compiled, cpu_engine, description

IDS = golden("qwen3").ids[:24]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StageEntry]:
    return compiled(tmp_path_factory.getbasetemp() / "qnn")


@pytest.fixture(scope="module")
def engine(made: tuple[Path, StageEntry]) -> QnnEngine:
    return cpu_engine(*made)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether logits are equal but for codes that were rounded the other way."""
    return bool(np.abs(a - b).max() < 0.1 and np.abs(a - b).mean() < 0.01)


@pytest.mark.parametrize("cuts", [[24], [4, 20], [1] * 24, [3, 1, 9, 11], [22, 2]])
def test_any_cut_of_the_tokens_gives_the_same(engine: QnnEngine, cuts: list[int]) -> None:
    """The last tokens fit into the context only one by one."""
    whole = Session(engine).append(IDS, "all")
    session, parts, start = Session(engine), [], 0
    for count in cuts:
        parts.append(session.append(IDS[start : start + count], "all"))
        start += count
    assert session.length == 24
    assert close(np.concatenate(parts), whole)


def test_the_last_row_is_that_of_all_rows(engine: QnnEngine) -> None:
    rows = Session(engine).append(IDS[:10], "all")
    assert np.array_equal(Session(engine).append(IDS[:10]), rows[-1:])
    assert Session(engine).append(IDS[:10], "none").shape == (0, 97)


def test_what_a_longer_text_left_can_not_be_seen(engine: QnnEngine) -> None:
    session = Session(engine)
    session.append(IDS[:20])
    session.truncate(5)
    again = session.append(IDS[5:12], "all")
    fresh = Session(engine)
    fresh.append(IDS[:5])
    assert np.array_equal(again, fresh.append(IDS[5:12], "all"))


def test_single_tokens_after_a_cut_are_those_of_a_fresh_session(engine: QnnEngine) -> None:
    session = Session(engine)
    session.append(IDS[:9])
    for token in IDS[9:14]:
        session.append([int(token)])
    session.truncate(7)
    fresh = Session(engine)
    fresh.append(IDS[:7])
    for token in IDS[14:18]:
        assert close(session.append([int(token)]), fresh.append([int(token)]))


def test_a_saved_cache_continues_where_it_was(engine: QnnEngine) -> None:
    session = Session(engine)
    session.append(IDS[:11])
    other = Session(engine)
    other.append(IDS[12:20])
    other.restore([array.copy() for array in session.cache()], IDS[:11].tolist())
    assert np.array_equal(other.append(IDS[11:14], "all"), session.copy().append(IDS[11:14], "all"))


def test_limits_are_the_graphs(engine: QnnEngine) -> None:
    with pytest.raises(ContextOverflowError):
        Session(engine).append(np.zeros(25, dtype=np.int64))
    with pytest.raises(GenerationError, match="A batch of 2 is outside"):
        Session(engine, batch=2)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"rows": None}, "lacks or misspells"),
        ({"rows": 24}, r"rows \(24 of 24\)"),
        ({"context": 25}, "a table of 25 rows"),
        ({"parts": [{"prompt": {}}]}, "lacks or misspells 'token'"),
        ({"windows": {"attention_mask": "all"}}, "lacks or misspells"),
        ({"windows": {"other_mask": None}}, "lacks or misspells 'other_mask'"),
        ({"tensors": []}, "lacks or misspells"),
        ({"tensors": {"logits": {"dtype": "object", "scale": 1, "offset": 0}}}, "an encoding"),
        ({"tensors": {"logits": {"dtype": "uint8", "scale": 0, "offset": 0}}}, "an encoding"),
        ({"tensors": {"logits": {"dtype": "uint8", "scale": 1, "offset": -256}}}, "an encoding"),
        ({"tensors": {"logits": {"dtype": "uint16"}}}, "lacks or misspells 'scale'"),
        ({"tables": {"position_ids_cos": "../../../../secret.npy"}}, "secret"),
        ({"tables": {"position_ids_cos": "tables/none.npy"}}, "lacks or misspells"),
    ],
)
def test_a_damaged_description_is_refused(
    made: tuple[Path, StageEntry], tmp_path: Path, damage: dict[str, object], words: str
) -> None:
    root = Path(shutil.copytree(made[0], tmp_path / "bundle"))
    path = root / str(made[1].engine)
    path.write_text(json.dumps({**description(*made), **damage}), encoding="utf-8")
    with pytest.raises(BundleError, match=words):
        cpu_engine(root, made[1])


def test_what_is_no_description_is_refused(made: tuple[Path, StageEntry], tmp_path: Path) -> None:
    root, entry = tmp_path, dataclasses.replace(made[1], engine="metadata.json")
    for text, words in (("{", "can't be read"), ("[1]", "holds no object")):
        (root / "metadata.json").write_text(text, encoding="utf-8")
        with pytest.raises(BundleError, match=words):
            describe(root, entry)
    with pytest.raises(BundleError, match="compile it with --target qnn"):
        describe(root, dataclasses.replace(entry, engine=None))


def test_a_model_that_can_not_be_loaded_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(BundleError, match=r"can't load bad\.onnx"):
        qnn.opened(tmp_path / "bad.onnx", {})


def test_what_the_library_prints_does_not_reach_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    with qnn.quiet():
        os.write(1, b"chatter")
    os.write(1, b"result")
    told = capfd.readouterr()
    assert (told.out, told.err) == ("result", "chatter")
