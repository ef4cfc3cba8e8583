"""`edgewright bench plot`: where figures and pages go, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewright.cli import main
from made_runs import shared_run


def test_figures_and_page_go_into_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shared_run(tmp_path / "case" / "run", rounds=3)
    with (run / "steps.jsonl").open("a") as file:
        file.write('{"part')
    assert main(["bench", "plot", str(run)]) == 0
    output = capsys.readouterr()
    written = [Path(line) for line in output.out.splitlines()]
    assert all(path.stat().st_size > 1000 for path in written)
    assert run / "page.html" in written
    assert run / "figures" / "tokens.svg" in written
    assert output.err == "note: case / run: the last line of steps.jsonl is torn and was left out\n"


def test_several_runs_into_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(shared_run(tmp_path / "case" / name, rounds=1)) for name in "ab"]
    out = tmp_path / "out"
    assert main(["bench", "plot", *runs, "-o", str(out), "--formats", "svg", "--no-page"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["case-a", "case-b"]
    assert {path.suffix for path in out.rglob("*.*")} == {".svg"}
    assert "page.html" not in capsys.readouterr().out
    assert main(["bench", "plot", runs[0], runs[0], "-o", str(out)]) == 2
    assert "Two of the runs would be drawn into" in capsys.readouterr().err


def test_one_run_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shared_run(tmp_path / "case" / "run", rounds=1)
    assert main(["bench", "plot", str(run), "-o", str(tmp_path / "out"), "--formats", "png"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["figures", "page.html"]
    assert not (run / "page.html").exists()


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(shared_run(tmp_path / "case" / "run", rounds=1))
    assert main(["bench", "plot", str(tmp_path)]) == 2
    assert "is no run folder" in capsys.readouterr().err
    assert main(["bench", "plot", run, "--formats", "png,pdf"]) == 2
    assert "Unknown format 'pdf'" in capsys.readouterr().err
    assert main(["bench", "plot"]) == 2
    capsys.readouterr()
    (tmp_path / "file").write_text("")
    assert main(["bench", "plot", run, "-o", str(tmp_path / "file")]) == 4
    assert "Traceback" not in capsys.readouterr().err
