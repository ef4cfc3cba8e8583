"""The page of a run: what it says, that it loads nothing, and how a browser shows it."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import SCHEMES, Tab, browser
from edgewright.errors import EdgewrightError
from edgewright.report.compare import compare
from edgewright.report.compare_page import compare_page
from edgewright.report.figure_data import first_tokens, lanes, queues
from edgewright.report.figures import KINDS
from edgewright.report.page import page, percent, shown, warnings
from edgewright.report.subject import Subject
from html_pages import Reader
from made_runs import shared_run, step, write_run

GOLDENS = Path(__file__).parents[1] / "goldens" / "runs"


NAMES = ("simulated", "mixed", "partial", "compared")


class Pages:
    """Pages by name, each made once, when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> str:
        if name == "partial":
            return page(Subject.read(self._partial()))
        if name == "compared":
            runs = (shared_run(self._folder / "pair" / n, speed=speed, repeats=2) for n, speed in (("a", 1), ("b", 2)))
            return compare_page(compare(*map(Subject.read, runs)))
        return page(Subject.read(GOLDENS / name))

    def _partial(self) -> Path:
        """An interrupted run of many dialogs with strange and long names."""
        names = ["<b>&amp;</b>", "_$a$", *(f"very-long-name-of-a-dialog-{number}" for number in range(9))]
        rows = [step(name, at, at + 1, ready=at / 2) for at, name in enumerate(names * 4)]
        lines = {name: "0:0,1:40" if name == "_$a$" else "1:0" for name in names}
        return write_run(self._folder / "case" / "run", lines, rows, how="interrupted", case={"name": "<i>case</i>"})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory.mktemp("runs"))


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", NAMES)
def test_pages_need_nothing_else(pages: Pages, name: str) -> None:
    assert read(pages[name]).loads == []
    assert not re.findall(r'(?:xlink:href|href|src)="(?!#)', pages[name])
    assert not re.findall(r"url\((?!#)|@import|javascript:", pages[name])
    ids = re.findall(r' id="([^"]*)"', pages[name])
    assert len(ids) == len(set(ids))


def test_what_the_page_of_a_simulated_run_says(pages: Pages) -> None:
    text = re.sub(r"\s+", " ", " ".join(read(pages["simulated"]).text))
    assert "No device was measured: every time on this page follows from a cost model." in text
    assert "3 dialogs · scheduled weighted · held up to 3 ms · 1 repeat" in text
    drawn = [kind for kind in KINDS if kind.name != "queries"]
    assert all(kind.title in text for kind in drawn)
    assert text.count("simulated device") == 1 + 2 * len(drawn)
    summary = Subject.read(GOLDENS / "simulated").summary
    assert f"first token, median [ms] {shown(summary['dialogs']['chat']['ttft_ms']['p50'])} " in text
    assert f"accelerator busy {percent(summary['system']['busy'])}" in text


def test_what_the_page_of_a_real_run_says(pages: Pages) -> None:
    text = re.sub(r"\s+", " ", " ".join(read(pages["mixed"]).text))
    assert "simulated device" not in text
    assert "3 repeats, the first is drawn · after a warm-up" in text
    assert "a made-up CPU" in text
    assert "95 % interval" in text
    assert "the tokens of its run alone" in text
    assert "models/table.bin,uint16,0.000105,-30393" in text


def test_what_the_page_of_a_broken_run_says(pages: Pages) -> None:
    text = " ".join(read(pages["partial"]).text)
    assert "interrupted" in text
    assert "Not drawn: Time to the first token: no query with a token has ended." in text
    assert "<b>&amp;</b>" in text
    assert "<i>case</i>" in text


def test_warnings_are_said_once(tmp_path: Path) -> None:
    run = shared_run(tmp_path / "case" / "run", rounds=2)
    with (run / "steps.jsonl").open("a") as file:
        file.write('{"part": "run"')
    found = warnings(Subject.read(run))
    assert found == ["The files are not whole: the last line of steps.jsonl is torn and was left out."]


def test_what_a_library_says_stands_beside_what_is_recomputed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "case" / "run", {"A": "1:0", "B": "1:0"}, [], env={"external": {"command": ["adb"]}})
    one = {"genie": {"token-generation-rate": {"p50": 22.036}, "num-prompt-tokens": {"p50": 5}},
           "recomputed": {"token-generation-rate": {"p50": 20.986}, "num-prompt-tokens": {"p50": 5}}}  # fmt: skip
    (run / "summary.json").write_text(json.dumps({"status": "partial", "dialogs": {"A": one, "B": {}}}))
    text = re.sub(r"\s+", " ", " ".join(read(page(Subject.read(run))).text))
    assert "token-generation-rate 22 - recomputed 21 - num-prompt-tokens 5 - Medians" in text
    assert "run by an external program" in text
    assert "No step was recorded: the figures are those that the run's own summary says." in text
    assert "external: command adb" in text


def test_the_page_of_two_runs(pages: Pages) -> None:
    text = re.sub(r"\s+", " ", " ".join(read(pages["compared"]).text))
    assert "whole run [ms]" in text
    assert re.search(r"A: prefill \[tokens/s\] \S+ \S+ 2\.000 ", text)
    assert "higher" in text
    assert "lower" in text


def test_numbers_as_people_read_them() -> None:
    assert [shown(value) for value in (None, 3.0, 12345.6, 0.12345, 1e9)] == ["-", "3", "12346", "0.123", "1e+09"]
    assert [percent(value) for value in (None, 0.5, 1.0)] == ["-", "50 %", "100 %"]


def changed(data: Any, chance: random.Random) -> Any:
    """Return JSON data with something in it replaced or left out."""
    if isinstance(data, dict | list) and data and chance.random() < 0.85:
        key = chance.choice(list(data)) if isinstance(data, dict) else chance.randrange(len(data))
        twin: Any = data.copy()
        if chance.random() < 0.1:
            del twin[key]
        else:
            twin[key] = changed(twin[key], chance)
        return twin
    return chance.choice([None, 3, -1, 1e300, "x", [], {}, [None], True, 10**30, "4:0"])


@pytest.mark.parametrize("name", ["case.resolved.json", "env.json", "events.jsonl", "jobs.jsonl", "steps.jsonl"])
def test_hostile_files_give_a_page_or_a_named_error(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewright.report.page.draw_inline", lambda subject: ([], []))
    chance = random.Random(name)
    base = Subject.read(GOLDENS / "mixed")
    run = tmp_path / "case" / "run"
    shutil.copytree(GOLDENS / "mixed", run)
    lines = (GOLDENS / "mixed" / "steps.jsonl").read_text().splitlines()[::20]
    (run / "steps.jsonl").write_text("\n".join(lines))
    text = (run / name).read_text()
    named: list[str] = []
    for _ in range(25):
        whole = name.endswith(".json")
        rows = [json.loads(text)] if whole else [json.loads(line) for line in text.splitlines()]
        for _ in range(1 if whole else 4):
            place = chance.randrange(len(rows))
            rows[place] = changed(rows[place], chance)
        (run / name).write_text("\n".join(map(json.dumps, rows)) + "\n")
        try:
            subject = Subject.read(run)
        except EdgewrightError as error:
            named.append(str(error))
            continue
        read(page(subject))
        json.dumps(compare(base, subject).to_json(), allow_nan=False)
        lanes(subject.shown, subject.paused), first_tokens(subject), queues(subject)
    assert all(str(run) in one for one in named)


def test_the_browser_sees_faults(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        '<section class="figure"><h2>Hidden</h2><svg style="display: none"></svg></section><section>'
        '<svg viewBox="0 0 100 100" width="200"><text x="90" y="50">cut off</text>'
        '<text x="5" y="20" font-size="2">small</text></svg>'
        '<p style="width: 2rem">unbreakable-word</p><div style="width: 500px">wide</div></section>'
        '<img src="other.png"><script>console.log("a word")</script>'
    )
    tab.open(path, 400)
    found = " | ".join(tab.faults())
    for part in ("nothing is seen of Hidden", "cut: cut off", "tiny: small", "spills over: unbreakable", "pixels wider",
                 "a word", "asked for file:"):  # fmt: skip
        assert part in found


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as found:
        yield found


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", NAMES)
def test_in_a_browser(pages: Pages, tab: Tab, tmp_path: Path, name: str, width: int) -> None:
    path = tmp_path / "page.html"
    path.write_text(pages[name])
    for scheme in SCHEMES:
        tab.open(path, width, scheme)
        assert tab.faults() == []
