from __future__ import annotations

from pathlib import Path

import pytest

from edgewright.bench.records import EVENTS, JOBS, STEPS, RunWriter
from edgewright.bench.records.writer import LineFile
from edgewright.errors import OutputError
from edgewright.runtime.scheduling.work import JobRecord, StepRecord


def record(number: int, done_ns: int = 0) -> StepRecord:
    return StepRecord(0, 0, number, "decode", 1, None, 0, True, 0, 0, 0, done_ns, 1.0)


def lines(path: Path) -> int:
    text = path.read_text()
    assert not text or text.endswith("\n")
    return text.count("\n")


def test_steps_are_written_in_blocks_and_before_their_job(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        part = writer.part("run", 0, ["A"])
        for number in range(63):
            part.step(record(number))
        assert lines(tmp_path / STEPS) == 0
        part.step(record(63))
        assert lines(tmp_path / STEPS) == 64
        part.step(record(64))
        part.job(JobRecord(0, 0, 0, 0, 0, 1, None, "complete"))
        assert lines(tmp_path / STEPS) == 65
        assert lines(tmp_path / JOBS) == 1


def test_slow_steps_do_not_wait_for_others(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        part = writer.part("run", 0, ["A"])
        part.step(record(0, 200_000_000))
        assert lines(tmp_path / STEPS) == 0
        part.step(record(1, 251_000_000))
        assert lines(tmp_path / STEPS) == 2
        part.step(record(2, 300_000_000))
        part.flush()
        assert lines(tmp_path / STEPS) == 3


def test_a_folder_is_continued_and_never_cut(tmp_path: Path) -> None:
    for _ in range(2):
        with RunWriter(tmp_path) as writer:
            writer.event("note", text="hello")
    assert lines(tmp_path / EVENTS) == 2


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / STEPS).symlink_to(full)
    file = LineFile(tmp_path / STEPS)
    with pytest.raises(OutputError, match=r"No space is left while writing steps\.jsonl"):
        file.write("x\n")
    file.close()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="steps"):
        RunWriter(tmp_path / "missing")


def test_a_file_that_was_closed_takes_nothing_any_more(tmp_path: Path) -> None:
    """A task that was left behind may still speak when another file has got the closed one's number."""
    file = LineFile(tmp_path / "a")
    file.close()
    with (tmp_path / "b").open("w"), pytest.raises(OutputError):
        file.write("late\n")
    assert (tmp_path / "b").read_text() == ""
    file.close()
