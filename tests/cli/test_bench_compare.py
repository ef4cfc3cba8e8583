"""`edgewright bench compare`: a table, JSON, a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.cli import main
from made_runs import shared_run


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """The second is twice as fast."""
    return [str(shared_run(tmp_path / "case" / n, repeats=2, speed=speed)) for n, speed in (("a", 1.0), ("b", 2.0))]


def test_the_table(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["A  case / a, complete", "B  case / b, complete"]
    whole = next(line for line in lines if line.startswith("whole run [ms]")).split()
    assert whole[3:6] == ["763.8", "381.9", "0.500"]
    assert whole[-1] == "lower"


def test_json(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["comparable"], found["reasons"]) == (1, True, [])
    assert found["figures"][0] | {"low": 0, "high": 0} == {
        "name": "whole run", "unit": "ms", "dialog": None, "ratio": 0.5, "low": 0, "high": 0, "finding": "lower",
        "first": found["figures"][0]["first"], "second": found["figures"][0]["second"],
    }  # fmt: skip


def test_the_page(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "page.html"
    assert main(["bench", "compare", *runs, "-o", str(page)]) == 0
    assert "<h1>case / a and case / b</h1>" in page.read_text()
    assert capsys.readouterr().out.endswith(f"\n{page}\n")


def test_what_can_not_be_compared(tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    other = str(shared_run(tmp_path / "case" / "c", simulated=True))
    assert main(["bench", "compare", runs[0], other]) == 0
    output = capsys.readouterr().out
    assert "B: simulated device" in output
    assert "nothing can be compared: case / c is of a simulated device and the other of a real one" in output
    assert main(["bench", "compare", runs[0], str(tmp_path)]) == 2
    assert "is no run folder" in capsys.readouterr().err
