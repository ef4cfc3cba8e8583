from __future__ import annotations

from pathlib import Path

import pytest

from edgewright.bench.records import CASE, ENVIRONMENT, EVENTS, JOBS, STEPS, read_run, summarize
from edgewright.errors import UsageError
from run_rows import served, step, whole_jobs, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    steps = served("ABAABA", {"A": 2.0, "B": 3.0})
    return write_run(tmp_path / "case" / "run", {"A": "2:0", "B": "1:0,0:5"}, steps, whole_jobs(steps))


def test_what_was_written_is_read(folder: Path) -> None:
    run = read_run(folder)
    assert (run.name, run.dialogs, run.simulated) == ("hand-made", ("A", "B"), False)
    assert [step.dialog for step in run.steps] == list("ABAABA")
    assert [job.dialog for job in run.jobs] == ["A", "B"]
    assert str(run.timelines["B"]) == "1:0,0:5"
    assert run.repeats == [0]
    assert run.parts == [("run", 0)]
    assert run.notes == ()
    assert run.summary is None


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line(folder: Path, cut: int) -> None:
    path = folder / STEPS
    path.write_bytes(path.read_bytes()[:-cut])
    run = read_run(folder)
    # Without its newline only, the line is whole.
    assert [step.dialog for step in run.steps] == list("ABAABA" if cut == 1 else "ABAAB")
    assert bool(run.notes) == (cut > 1)
    if cut > 1:
        assert run.notes == ("the last line of steps.jsonl is torn and was left out",)


def test_damaged_lines_are_left_out(folder: Path) -> None:
    lines = (folder / STEPS).read_text().splitlines(keepends=True)
    lines[1] = "\0\0\0\n"
    lines[3] = '{"part": "run"}\n'
    lines[4] = "[1, 2]\n"
    (folder / STEPS).write_text("".join(lines))
    run = read_run(folder)
    assert [step.dialog for step in run.steps] == ["A", "A", "A"]
    assert run.notes == ("3 damaged lines of steps.jsonl left out, the first is line 2",)
    assert any("damaged" in finding for finding in summarize(folder)["findings"])


def test_missing_files(folder: Path) -> None:
    for name in (STEPS, JOBS, EVENTS, ENVIRONMENT):
        (folder / name).unlink()
    run = read_run(folder)
    assert run.steps == run.jobs == run.events == []
    assert len(run.notes) == 4
    assert summarize(folder)["status"] == "interrupted"


def test_deep_nesting_is_a_damaged_line(folder: Path) -> None:
    with (folder / JOBS).open("a") as file:
        file.write("[" * 200_000 + "\n")
    assert "1 damaged line of jobs.jsonl" in read_run(folder).notes[0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"dialogs": 3}', '{"dialogs": [{"name": "A", "timeline": "x"}]}']
)
def test_a_case_that_tells_nothing(folder: Path, text: str) -> None:
    (folder / CASE).write_text(text)
    with pytest.raises(UsageError, match=r"case\.resolved\.json"):
        read_run(folder)


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no run folder"):
        read_run(tmp_path)


@pytest.mark.parametrize("place", [0, 255, 256, 600, 699])
@pytest.mark.parametrize("broken", [b"{", b"", b"[]", b'{"a":1},{"b":2}', b"\xff\xfe", b'{"part":', b"1],[1"])
def test_one_broken_line_costs_one_row(tmp_path: Path, place: int, broken: bytes) -> None:
    """Lines are parsed many at once, which must not show."""
    steps = [step("A", i, i + 1, index=i) for i in range(700)]
    folder = write_run(tmp_path / "c" / "r", {"A": "1:0"}, steps)
    lines = (folder / STEPS).read_bytes().splitlines()
    lines[place] = broken
    (folder / STEPS).write_bytes(b"\n".join([*lines, b""]))
    run = read_run(folder)
    assert [row.index for row in run.steps] == [i for i in range(700) if i != place]
    assert run.notes == (f"1 damaged line of steps.jsonl left out, the first is line {place + 1}",)
