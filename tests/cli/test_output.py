from __future__ import annotations

import io
import sys

import pytest

from edgewright.cli._output import count, fields, size, table
from edgewright.cli._progress import BarProgress, PlainProgress, QuietProgress, progress_for


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (96_600_000, "96.6 MB"),
        (2_500_000_000, "2.5 GB"),
        (3e12, "3 TB"),
    ],
)
def test_size(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(("number", "text"), [(7, "7"), (38_892, "38.9 k"), (134_515_008, "135 M"), (7.1e9, "7.1 B")])
def test_count(number: float, text: str) -> None:
    assert count(number) == text


def test_tables() -> None:
    assert table(("name", "n"), [("a", 5), ("long", 12)]) == "name   n\na      5\nlong  12"
    assert fields([("a", 1), ("long", "two"), ("none", "")]) == "a     1\nlong  two\nnone"


class Stderr(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_what_progress_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Stderr(True))
    assert isinstance(progress_for(quiet=False), BarProgress)
    assert isinstance(progress_for(quiet=True), QuietProgress)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert isinstance(progress_for(quiet=False), PlainProgress)
    monkeypatch.setattr(sys, "stderr", Stderr(False))
    assert isinstance(progress_for(quiet=False), PlainProgress)


def test_plain_lines_tell_of_finished_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stderr(False)
    monkeypatch.setattr(sys, "stderr", stream)
    progress = PlainProgress()
    with progress.step("outer"), progress.step("inner", 10) as advance:
        advance(10)
    with pytest.raises(ValueError), progress.step("broken"):
        raise ValueError
    assert [line.split(" ...")[0] for line in stream.getvalue().splitlines()] == ["inner", "outer"]


def test_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stderr(True)
    monkeypatch.setattr(sys, "stderr", stream)
    progress = progress_for(quiet=False)
    with progress.step("write weights", 2000) as advance:
        advance(1000)
        advance(1000)
    with progress.step("compile"):
        pass
    text = stream.getvalue()
    assert "write weights 100%|" in text
    assert "2.00k/2.00k" in text
    assert "compile ... 0.0 s" in text
