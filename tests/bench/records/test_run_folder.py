from __future__ import annotations

from pathlib import Path

import pytest

from edgewright.bench.records import CASE, DIALOGS, is_run_folder, new_run_folder, write_json, write_whole
from edgewright.errors import OutputError, UsageError


def test_a_new_folder_has_a_place_for_dialogs(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path / "out", "llm_2vlm", "first")
    assert folder == tmp_path / "out" / "llm_2vlm" / "first"
    assert (folder / DIALOGS).is_dir()
    assert not is_run_folder(folder)


def test_runs_of_one_second_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20260102-030405")
    names = [new_run_folder(tmp_path, "case").name for _ in range(3)]
    assert names == ["20260102-030405", "20260102-030405-2", "20260102-030405-3"]


def test_an_existing_run_is_refused_or_replaced(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path, "case", "a")
    (folder / CASE).write_text("{}")
    (folder / "steps.jsonl").write_text("old")
    with pytest.raises(OutputError, match="--overwrite"):
        new_run_folder(tmp_path, "case", "a")
    assert (folder / "steps.jsonl").read_text() == "old"
    assert new_run_folder(tmp_path, "case", "a", overwrite=True) == folder
    assert [path.name for path in folder.iterdir()] == [DIALOGS]
    assert [path.name for path in folder.parent.iterdir()] == ["a"]


def test_only_a_run_folder_is_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "case" / "a"
    precious.mkdir(parents=True)
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="no run folder, so it is not replaced"):
        new_run_folder(tmp_path, "case", "a", overwrite=True)
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    real = new_run_folder(tmp_path, "case", "real")
    (real / CASE).write_text("{}")
    (real.parent / "link").symlink_to(real)
    with pytest.raises(OutputError, match="not replaced"):
        new_run_folder(tmp_path, "case", "link", overwrite=True)
    assert is_run_folder(real)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", ".hidden", "-flag", "a b", "a\0", "x" * 101, "ä"])
def test_names_that_are_no_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="The case name"):
        new_run_folder(tmp_path, name, "run")
    with pytest.raises(UsageError, match="The run name"):
        new_run_folder(tmp_path, "case", name)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "case").write_text("a file")
    with pytest.raises(OutputError):
        new_run_folder(tmp_path, "case", "a")


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "one")
    write_whole(tmp_path / "a.txt", "two")
    assert (tmp_path / "a.txt").read_text() == "two"
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(OutputError):
        write_whole(tmp_path / "missing" / "a.txt", "one")
