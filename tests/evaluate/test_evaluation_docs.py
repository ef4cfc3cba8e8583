"""The documentation lists the figures that can be bounded, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgewright.evaluate.figures import RESAMPLES
from edgewright.evaluate.frames import FrameChoice
from edgewright.evaluate.info import LAYOUTS
from edgewright.evaluate.tasks import TASKS
from edgewright.evaluate.tasks.reacher import PIXELS, REACH_M
from edgewright.evaluate.thresholds import PAIR, POLICY

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_figures_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (.*?) \| (each policy|a pair) \|", TEXT, re.MULTILINE)
    listed = {
        kind: [name for cell, one in rows if one == kind for name in re.findall(r"`(\w+)`", cell)] for _, kind in rows
    }
    assert listed == {"each policy": list(POLICY), "a pair": list(PAIR)}
    assert f"{RESAMPLES:,} resamples" in TEXT
    assert f"at even distances ({FrameChoice().count})" in TEXT
    layouts = re.findall(r"^\| (`v.*?) \|", TEXT, re.MULTILINE)
    assert tuple(name for cell in layouts for name in re.findall(r"`(.*?)`", cell)) == LAYOUTS


def run_example(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(folder)
    code = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[number]
    exec(compile(code, "evaluation.md", "exec"), {"__name__": "documentation"})  # noqa: S102 - our own page


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_example(0, tmp_path, monkeypatch)
    figure, status = capsys.readouterr().out.split()
    assert 0.1 < float(figure) < 0.9
    assert status == "passed"
    assert (tmp_path / "stays.html").stat().st_size > 10_000


def test_the_closed_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(1, tmp_path, monkeypatch)
    assert capsys.readouterr().out.split() == ["0", "65"]


def test_the_tasks_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(reacher\S*)` \|.*? \| (\d+ actions, \d+ an episode) \|", TEXT, re.MULTILINE))
    assert rows == {name: f"{spec.rate_hz:g} actions, {spec.steps} an episode" for name, spec in TASKS.items()}
    assert f"within {TASKS['reacher'].tolerance} m of the target after {TASKS['reacher'].hold} actions" in TEXT
    assert f"after {TASKS['reacher-torque'].hold} actions" in TEXT
    assert {TASKS[name].prompt for name in TASKS} == {"move the fingertip to the red target"}
    assert f"{PIXELS} x {PIXELS} pixels over {2 * REACH_M:g} m" in TEXT
