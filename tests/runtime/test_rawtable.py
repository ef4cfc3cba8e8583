"""Raw files: rows as they were written, tables of more than 4 GiB, tokens without a row, files that are none."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from edgewright.errors import GenerationError, OutputError, UsageError
from edgewright.runtime.encoding import INTEGERS, Encoding, Requantizer
from edgewright.runtime.rawtable import LookUp, RawRows, RawTable, write_raw

HIDDEN = 5
ENCODINGS = [Encoding(), *(Encoding(dtype, 0.037, -11) for dtype in INTEGERS)]


def codes_of(encoding: Encoding, rows: int, seed: int = 3) -> np.ndarray:
    random = np.random.default_rng(seed)
    if encoding.dtype == "float32":
        return random.standard_normal((rows, HIDDEN)).astype("<f4")
    return random.integers(int(encoding.low), int(encoding.high) + 1, (rows, HIDDEN)).astype(encoding.numpy)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_rows_are_what_was_written(encoding: Encoding, tmp_path: Path) -> None:
    codes, path = codes_of(encoding, 13), tmp_path / "raw.bin"
    path.write_bytes(codes.tobytes())
    wanted = codes if encoding.dtype == "float32" else (0.037 * (codes.astype(float) - 11)).astype(np.float32)
    table, rows = RawTable(path, encoding, HIDDEN), RawRows(path, encoding, HIDDEN)
    assert (table.vocab, len(rows)) == (13, 13)
    ids = np.array([[0, 12], [7, 7]])
    assert np.array_equal(table.rows(ids), wanted[ids])
    assert table.rows(ids).dtype == np.float32
    assert np.array_equal(table.codes(ids), codes[ids])
    assert np.array_equal(rows[4:9], wanted[4:9])
    assert np.array_equal(rows[10:99], wanted[10:])
    rows[:][:] = 0  # in memory of its own: the file is only read
    assert np.array_equal(rows[:], wanted)


@pytest.mark.parametrize("token", [-1, 13, 1 << 40])
def test_tokens_without_a_row(token: int, tmp_path: Path) -> None:
    path = tmp_path / "table.bin"
    path.write_bytes(codes_of(Encoding(), 13).tobytes())
    table = RawTable(path, Encoding(), HIDDEN)
    with pytest.raises(GenerationError, match=rf"{path} has no row for token {token}: it has 13 rows of 5"):
        table.rows(np.array([3, token]))
    assert table.rows(np.array([], np.int64)).shape == (0, HIDDEN)


@pytest.mark.parametrize("make", [RawTable, RawRows])
def test_files_that_are_none(make: type[RawTable] | type[RawRows], tmp_path: Path) -> None:
    path, encoding = tmp_path / "raw.bin", Encoding("uint16", 0.1, 0)
    with pytest.raises(UsageError, match=r"raw.bin can't be read \(No such file"):
        make(path, encoding, HIDDEN)
    with pytest.raises(UsageError, match="is not a file"):
        make(tmp_path, encoding, HIDDEN)
    with pytest.raises(UsageError, match="is no path"):
        make(Path("a\0b"), encoding, HIDDEN)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a file"):
        make(tmp_path / "pipe", encoding, HIDDEN)
    for size in (0, 9, 11, 1):
        path.write_bytes(bytes(size))
        with pytest.raises(UsageError, match=rf"has {size} bytes, which is no whole number of rows of 5 uint16 \(10"):
            make(path, encoding, HIDDEN)
    path.write_bytes(bytes(10))
    with pytest.raises(UsageError, match="at least one number, not 0"):
        make(path, encoding, 0)


def test_a_table_of_more_than_four_gibibytes(tmp_path: Path) -> None:
    """Rows 131,071 and 131,072 are on both sides of 2**32 bytes; the file is sparse."""
    hidden, rows = 8192, 131_080
    path, encoding = tmp_path / "table.bin", Encoding()
    row = np.arange(hidden, dtype="<f4")
    with path.open("wb") as file:
        file.truncate(rows * hidden * 4)
        for index in (0, 131_071, 131_072, rows - 1):
            file.seek(index * hidden * 4)
            file.write((row + index).tobytes())
    if path.stat().st_blocks * 512 > 1 << 26:
        pytest.skip("the file system keeps no sparse files")
    tracemalloc.start()
    table = RawTable(path, encoding, hidden)
    got = table.rows(np.array([131_072, 131_071, rows - 1, 0, 5]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table.vocab == rows
    assert got[:, 1].tolist() == [131_073, 131_072, rows, 1, 0]
    assert peak < 10_000_000
    with pytest.raises(GenerationError, match=f"no row for token {rows}"):
        table.rows(np.array([rows]))


def test_a_look_up_requantizes_and_counts(tmp_path: Path) -> None:
    path, source, target = tmp_path / "t.bin", Encoding("uint8", 0.04, -100), Encoding("uint8", 0.02, -90)
    codes = codes_of(source, 7)
    path.write_bytes(codes.tobytes())
    table = RawTable(path, source, HIDDEN)
    mine, other = (LookUp(table, Requantizer(source, target)) for _ in range(2))
    ids = np.array([2, 5, 2])
    exact = 2.0 * (codes[ids].astype(float) - 100) + 90
    assert np.array_equal(mine.rows(ids), (0.02 * (np.clip(exact, 0, 255) - 90)).astype(np.float32))
    cut = int(((exact < 0) | (exact > 255)).sum())
    assert cut > 0
    assert (mine.lookups, mine.saturated) == (3, cut)
    assert (other.lookups, other.saturated) == (0, 0)
    assert np.array_equal(LookUp(table).rows(ids), table.rows(ids))
    assert LookUp(table).saturated == 0
    with pytest.raises(UsageError, match=r"is uint8,0\.04,-100 and is to be requantized from uint8,0\.02,-90"):
        LookUp(table, Requantizer(target, source))


def test_writing(tmp_path: Path) -> None:
    path, encoding = tmp_path / "raw.bin", Encoding("int8", 0.5, 0)
    blocks = [np.array([[1.0, -2.0, 3.0, 100.0, 0.2]], np.float32), np.full((2, HIDDEN), -1.5, np.float32)]
    assert write_raw(path, encoding, iter(blocks)) == 1
    assert np.frombuffer(path.read_bytes(), np.int8).tolist() == [2, -4, 6, 127, 0, *[-3] * 10]
    whole = path.read_bytes()
    with pytest.raises(GenerationError, match="not a number"):
        write_raw(path, encoding, [blocks[0], np.full((1, HIDDEN), np.nan)])
    # What was there stays, and nothing else is left behind.
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputError, match=r"raw\.bin"):
        write_raw(tmp_path / "none" / "raw.bin", encoding, blocks)


def test_a_disk_that_cannot_be_written_refuses_the_clean_up_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(OutputError, match="choose a folder you may write to"):
        write_raw(tmp_path / "raw.bin", Encoding(), [np.zeros((1, HIDDEN))])
