"""The figures' files: which there are, what they say, that they come out the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from edgewright.errors import OutputError
from edgewright.report.draw_time import spelled, time_unit
from edgewright.report.draw_values import achieved_shares, times_to_first_token
from edgewright.report.figure_data import query_spans, shares
from edgewright.report.figures import KINDS, draw_files, draw_inline
from edgewright.report.style import drawing
from edgewright.report.subject import Subject
from made_runs import job, shared_run, step, write_run

GOLDENS = Path(__file__).parents[1] / "goldens" / "runs"
#: The figures of a run that recorded steps.
NAMES = [kind.name for kind in KINDS if kind.name != "queries"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of the simulated golden, by their names."""
    folder = tmp_path_factory.mktemp("figures")
    return {path.name: path for path in draw_files(Subject.read(GOLDENS / "simulated"), folder)}


def test_every_figure_is_there_in_both_formats(drawn: dict[str, Path]) -> None:
    assert sorted(drawn) == sorted(f"{name}.{ending}" for name in NAMES for ending in ("png", "svg"))
    for path in drawn.values():
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width == 1440
                assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 20


def test_every_figure_says_that_the_device_is_simulated(drawn: dict[str, Path]) -> None:
    for name in NAMES:
        text = drawn[f"{name}.svg"].read_text()
        assert re.search(r"· simulated / simulated · simulated device</text>", text), name


def test_drawing_again_gives_the_same_bytes(drawn: dict[str, Path], tmp_path: Path) -> None:
    for path in draw_files(Subject.read(GOLDENS / "simulated"), tmp_path):
        assert path.read_bytes() == drawn[path.name].read_bytes()


def test_weights_stand_over_their_segments(drawn: dict[str, Path]) -> None:
    text = drawn["tokens.svg"].read_text()
    assert [found for found in re.findall(r">([\d. :]+)</text>", text) if " : " in found] == [
        "1 : 2 : 1", "0 : 2 : 1", "4 : 2 : 1",
    ]  # fmt: skip


def test_chosen_formats(tmp_path: Path) -> None:
    run = shared_run(tmp_path / "case" / "run", rounds=2)
    written = draw_files(Subject.read(run), tmp_path / "here", ["svg"])
    assert {path.suffix for path in written} == {".svg"}
    assert not any("simulated" in path.read_text() for path in written)


def test_a_run_that_stopped_early_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    """A prefill is all there is: no token, no query that ended."""
    rows = [step("A", 0, 10, phase="prefill", emits=False)]
    run = write_run(tmp_path / "case" / "run", {"A": "1:0"}, rows)
    figures, missing = draw_inline(Subject.read(run))
    assert [one.name for one in figures] == ["accelerator", "shares"]
    assert missing == [
        "Tokens over time: no tokens of the concurrent run",
        "Time between tokens: no dialog has two tokens of one query",
        "Time to the first token: no query with a token has ended",
        "Waiting for the accelerator: no step waited",
    ]


@pytest.mark.parametrize("left", ["", "steps.jsonl", "jobs.jsonl"])
def test_torn_missing_and_empty_files(tmp_path: Path, left: str) -> None:
    run = shared_run(tmp_path / "case" / "run", rounds=3)
    for name in ("steps.jsonl", "jobs.jsonl", "events.jsonl"):
        text = (run / name).read_text()
        (run / name).write_text(text[: -len(text.splitlines()[-1]) // 2] if name == left else "")
    (run / "env.json").unlink()
    subject = Subject.read(run)
    figures, missing = draw_inline(subject)
    assert "queries" not in [one.name for one in figures] or left == "jobs.jsonl"
    if left == "steps.jsonl":
        assert {one.name for one in figures} == {"accelerator", "tokens", "shares", "token_gaps", "waiting"}
        assert missing == ["Time to the first token: no query with a token has ended"]
    else:
        assert len(figures) == (left == "jobs.jsonl")
    assert "env.json is missing" in subject.notes
    assert any("torn" in note for note in subject.notes) == bool(left)
    assert ("no step of the concurrent run was recorded" in subject.notes) == (left != "steps.jsonl")


def test_no_share_is_cut_off(tmp_path: Path) -> None:
    """Panels have one axis; the widest bar is in the first one."""
    run = write_run(
        tmp_path / "case" / "run",
        {"A": "1:0,0:100", "B": "0:0,1:100", "C": "1:0"},
        [step("A", 10 * i, 10 * i + 9, index=i) for i in range(9)]
        + [step("C", 90, 99)]
        + [
            step(name, 100 + 20 * i + at, 109 + 20 * i + at, index=i)
            for i in range(5)
            for name, at in (("B", 0), ("C", 10))
        ],
    )
    subject = Subject.read(run)
    drawn = achieved_shares(subject, "wide", "")
    assert drawn is not None
    most = max(one.most for one in shares(subject.summary, subject.names))
    assert most > 0.85
    assert [axes.get_xlim()[1] >= most for axes in drawn.figure.axes] == [True, True]


def test_queries_of_a_run_whose_steps_nobody_saw(tmp_path: Path) -> None:
    jobs = [
        job("A", 0, 10),
        job("A", 10, 25, iteration=1),
        job("B", 5, 40, finish="failed", error="It broke."),
        job("A", 0, 7, repeat=1),
        job("A", 0, 7, part="solo:A"),
    ]
    run = write_run(tmp_path / "case" / "run", {"A": "1:0", "B": "1:0"}, [], jobs)
    subject = Subject.read(run)
    spans = [(one.dialog, one.start, one.end, one.complete) for one in query_spans(subject)]
    assert spans == [(0, 0, 10, True), (0, 10, 25, True), (1, 5, 40, False)]
    figures, missing = draw_inline(subject)
    assert [one.name for one in figures] == ["queries"]
    assert figures[0].captions[0].startswith("3 queries from release to end; no step of them was recorded. 1 of them ")
    assert missing == []


def test_names_may_hold_anything(tmp_path: Path) -> None:
    """Signs of mathematics and of markup, names that begin with an underscore, Chinese, and a very long one."""
    names = ["$x_1$ \\frac", "_<script>&\"'", "对话一", "long" * 40]
    rows = [step(name, at, at + 1, iteration=0) for at, name in enumerate(names * 3)]
    run = write_run(tmp_path / "case" / "run", dict.fromkeys(names, "1:0"), rows)
    figures, _ = draw_inline(Subject.read(run))
    text = "".join(one.wide + one.narrow for one in figures)
    assert "$x_1$ \\frac</text>" in text
    assert "_&lt;script&gt;&amp;" in text
    assert "对话一</text>" in text
    assert "<script" not in text
    assert "long" * 10 not in text


def test_many_dialogs(tmp_path: Path) -> None:
    """Twenty: more than there are colors."""
    names = [f"dialog-{number}" for number in range(20)]
    rows = [step(name, at, at + 1, ready=max(0, at - 5)) for at, name in enumerate(names * 3)]
    run = write_run(tmp_path / "case" / "run", dict.fromkeys(names, "1:0"), rows)
    figures, _ = draw_inline(Subject.read(run))
    by_name = {one.name: one for one in figures}
    assert by_name["accelerator"].wide.count("dialog-") == 20
    assert "stroke-dasharray" in by_name["tokens"].narrow


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("")
    with pytest.raises(OutputError, match="figures"):
        draw_files(Subject.read(GOLDENS / "simulated"), tmp_path / "figures")


def test_times_have_units_that_fit() -> None:
    assert [spelled(value) for value in (0, 0.25, 1500, 5000, 600_000, 3.6e7)] == [
        "0", "0.25 ms", "1500 ms", "5 s", "10 min", "10 h",
    ]  # fmt: skip
    assert time_unit(1999) == ("ms", 1.0)


def within(found: Any, written: Any) -> bool:
    """Whether everything that was written is found; more may be found."""
    if isinstance(written, dict):
        return all(key in found and within(found[key], value) for key, value in written.items())
    return bool(found == written)


@pytest.mark.parametrize("name", ["simulated", "mixed"])
def test_the_goldens_say_what_their_summaries_say(name: str) -> None:
    """What is made of the rows is what was written when they were recorded."""
    subject = Subject.read(GOLDENS / name)
    written = json.loads((GOLDENS / name / "summary.json").read_text())
    assert (subject.status, subject.notes) == ("complete", ())
    for key in ("dialogs", "system", "repeats"):
        assert within(subject.summary[key], written[key]), key
    for mine, other in zip(subject.summary["segments"], written["segments"], strict=True):
        assert within(mine, other)


def test_one_slow_first_token_does_not_squeeze_the_others(tmp_path: Path) -> None:
    """Bars and lines end with the 95th percentile, so there is nothing to be seen at the longest."""
    times = [10.0] * 39 + [900.0]
    steps = [step("A", 1000 * i, 1000 * i + time, iteration=i) for i, time in enumerate(times)]
    jobs = [job("A", 1000 * i, 1000 * i + time, iteration=i) for i, time in enumerate(times)]
    subject = Subject.read(write_run(tmp_path / "case" / "run", {"A": "1:0"}, steps, jobs))
    with drawing("test"):
        drawn = times_to_first_token(subject, "wide", "")
        assert drawn is not None
        assert drawn.figure.axes[0].get_xlim() == pytest.approx((0, 11.2))
