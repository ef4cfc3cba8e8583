"""Plain text becomes windows: nothing padded, nothing twice, the seed alone decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from calibration_data import ASCII, VOCAB, golden_tokenizer, load, same, words
from hypothesis import given
from hypothesis import strategies as st

from edgewright.calibration import documents
from edgewright.calibration.documents import list_files, prefix_of, read_texts, windows
from edgewright.errors import CalibrationDataError, UsageError


def cut(texts: list[str], length: int, seed: int = 0, tokenizer: object = ASCII) -> list[list[int]]:
    rows, _ = windows(texts, tokenizer, length=length, seed=seed, notes=[])  # type: ignore[arg-type]
    return [row.tolist() for row in rows]


@given(
    sizes=st.lists(st.integers(0, 70), max_size=4), length=st.integers(1, 13), seed=st.integers(0, 5), start=st.data()
)
def test_windows_are_full_disjoint_pieces_of_one_text(
    sizes: list[int], length: int, seed: int, start: st.DataObject
) -> None:
    """Every text here has its own characters in rising order, so a window's ids tell where it was cut."""
    texts = ["".join(chr(33 + n) for n in range(size)) for size in sizes]
    rows = cut(texts, length, seed)
    wanted = sum(max(size // length, 1) for size in sizes if size)
    assert len(rows) == wanted
    starts: list[int] = []
    for row in rows:
        assert row == list(range(row[0], row[0] + len(row)))
        assert len(row) == length or len(row) in sizes
        starts.append(row[0])
    if len(sizes) == 1:
        assert len({start % length for start in starts}) <= 1
        assert len(set(starts)) == len(starts)


def test_the_seed_decides_order_and_beginning() -> None:
    text = words(60, 1).replace("\n", " ")
    sets = [cut([text], 16, seed) for seed in range(6)]
    assert len({str(rows) for rows in sets}) == 6
    assert len({tuple(sorted(map(tuple, rows))) for rows in sets}) > 1
    assert cut([text], 16, 3) == sets[3]


def test_what_the_tokenizer_puts_in_front_stands_in_every_window() -> None:
    tokenizer = golden_tokenizer("bpe_bos")
    prefix = prefix_of(tokenizer)
    assert prefix == [tokenizer.bos_token_id]
    text = words(50, 2)
    rows = cut([text], 11, 0, tokenizer)
    assert all(row[0] == tokenizer.bos_token_id and len(row) == 11 for row in rows)
    ids = tokenizer.encode(text, add_special_tokens=False)
    where = {tuple(ids[at : at + 10]) for at in range(len(ids) - 9)}
    assert all(tuple(row[1:]) in where for row in rows)
    assert prefix_of(ASCII) == []
    with pytest.raises(UsageError, match="no room behind the 1 of the prefix"):
        cut([text], 1, 0, tokenizer)


def test_blocks_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is tokenized in blocks has the ids of the whole, for a tokenizer that knows no words."""
    text = words(400, 3)
    whole = cut([text, text[:100]], 40)
    monkeypatch.setattr(documents, "_BLOCK_CHARACTERS", 64)
    assert cut([text, text[:100]], 40) == whole


def test_blocks_end_at_lines_or_before_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK_CHARACTERS", 20)
    text = "one two three four five sixty\nseven eight nine ten eleven\n" + "x" * 50
    blocks = [text[start:stop] for start, stop in documents._blocks(text)]
    assert "".join(blocks) == text
    assert blocks == [
        "one two three four",
        " five sixty\n",
        "seven eight nine",
        " ten eleven\n",
        "x" * 20,
        "x" * 20,
        "x" * 10,
    ]


def test_of_a_long_text_the_seed_chooses_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(documents, "_BLOCK_CHARACTERS", 100)
    monkeypatch.setattr(documents, "MAX_CHARACTERS", 2000)
    path = tmp_path / "long.txt"
    path.write_text(words(1500, 4), encoding="utf-8")
    first, second = load(path, seed=1, sequences=200), load(path, seed=2, sequences=200)
    assert any("blocks of the text were tokenized" in note for note in first.record["notes"])
    assert not same(first, second)
    assert same(first, load(path, seed=1, sequences=200))
    assert 1000 < first.record["tokens"] <= 2400


def test_a_folder_does_not_depend_on_how_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["b.txt", "a/z.txt", "a/b/c.TXT", "a.txt"]
    folders = []
    for turn in range(2):
        folder = tmp_path / str(turn)
        for name in sorted(names, reverse=bool(turn)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(words(40, names.index(name)), encoding="utf-8")
        (folder / ".hidden.txt").write_text("no", encoding="utf-8")
        folders.append(folder)
    assert [name for name, _ in list_files(folders[0], (".txt",))] == ["a.txt", "a/b/c.TXT", "a/z.txt", "b.txt"]
    first = load(folders[0])
    rglob = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: reversed(list(rglob(self, pattern))))
    second = load(folders[1])
    assert same(first, second)
    assert first.record == second.record


def test_too_much_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 1 << 20)
    (tmp_path / "a.txt").write_bytes(b"a" * (1 << 20))
    assert len(read_texts(list_files(tmp_path, (".txt",)))) == 1
    (tmp_path / "b.txt").write_bytes(b"b")
    with pytest.raises(CalibrationDataError, match=r"larger than 1 MiB at b\.txt"):
        read_texts(list_files(tmp_path, (".txt",)))


def test_no_row_is_padded_and_short_texts_stay_short(tmp_path: Path) -> None:
    for number, size in enumerate((5, 17, 31, 32, 33, 100)):
        (tmp_path / f"{number}.txt").write_text(words(99, number).replace("\n", "")[:size], encoding="utf-8")
    found = load(tmp_path)
    assert sorted(row.size for row in found.rows) == [5, 17, 31, 32, 32, 32, 32, 32]
    assert all(row.dtype == np.int64 and row.ndim == 1 and row.max() < VOCAB for row in found.rows)
