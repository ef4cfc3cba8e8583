"""Whatever stands in a run folder, reading it ends in figures or in one sentence."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from edgewright.bench.records import CASE, ENVIRONMENT, EVENTS, JOBS, STEPS, summarize, write_outputs
from edgewright.errors import UsageError
from run_rows import job, served, write_run

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, 10**40, float("nan"), "", "x", "A", "run", [], ["A"], {}, {"A": 1},
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    steps = [*served("ABAB", {"A": 2.0, "B": 3.0}), *served("AA", {"A": 2.0}, part="solo:A")]
    facts = {"prompt_tokens": 3, "saturated": 0, "tokens": [1]}
    jobs = [job(name, 0, 10, facts=facts) for name in "AB"] + [job("A", 0, 4, part="solo:A", facts=facts)]
    events = [
        {"event": "load", "models": ["m"], "dialogs": ["A"], "start_ms": 0.5, "ms": 3, "error": None, "bytes": 5},
        {"event": "begin", "part": "run", "repeat": 0, "start_ms": 7},
        {"event": "part", "part": "run", "repeat": 0, "held_ns": 5, "lost_turns": 0, "bounds": {"A": 3}, "energy_j": 1},
        {"event": "note", "text": "hello"},
        {"event": "end", "how": "finished", "peak_rss_bytes": 5},
    ]
    return write_run(tmp_path / "case" / "run", {"A": "2:0", "B": "1:0,0:5"}, steps, jobs, events)


def spoil(data: Any, dice: random.Random) -> Any:
    """Put something strange at a random place of JSON data, or leave something out."""
    if isinstance(data, dict) and data and dice.random() < 0.8:
        key = dice.choice(sorted(data))
        if dice.random() < 0.15:
            return {name: value for name, value in data.items() if name != key}
        return {**data, key: spoil(data[key], dice)}
    if isinstance(data, list) and data and dice.random() < 0.6:
        place = dice.randrange(len(data))
        return [*data[:place], spoil(data[place], dice), *data[place + 1 :]]
    return dice.choice(STRANGE)


@pytest.mark.parametrize("name", [STEPS, JOBS, EVENTS, CASE, ENVIRONMENT])
def test_strange_values(folder: Path, tmp_path: Path, name: str) -> None:
    text = (folder / name).read_text()
    for seed in range(150):
        dice = random.Random(f"{name}{seed}")
        if name in (CASE, ENVIRONMENT):
            spoilt = json.dumps(spoil(json.loads(text), dice))
        else:
            lines = text.splitlines()
            place = dice.randrange(len(lines))
            lines[place] = json.dumps(spoil(json.loads(lines[place]), dice))
            spoilt = "\n".join([*lines, ""])
        (folder / name).write_text(spoilt)
        # Only without its case is nothing known of a run.
        with suppress(UsageError) if name == CASE else nullcontext():
            json.dumps(summarize(folder), allow_nan=False)
            if seed % 10 == 0:
                write_outputs(folder)


@pytest.mark.parametrize("name", [STEPS, JOBS, EVENTS, ENVIRONMENT])
def test_strange_bytes(folder: Path, tmp_path: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for seed in range(60):
        dice = random.Random(f"{name}{seed}")
        spoilt = bytearray(data)
        for _ in range(dice.randrange(1, 8)):
            spoilt[dice.randrange(len(spoilt))] = dice.randrange(256)
        (folder / name).write_bytes(spoilt[: dice.randrange(len(spoilt))] if seed % 3 == 0 else spoilt)
        json.dumps(summarize(folder), allow_nan=False)


def test_a_folder_in_the_place_of_a_file(folder: Path) -> None:
    for name in (STEPS, ENVIRONMENT):
        (folder / name).unlink()
        (folder / name).mkdir()
    found = summarize(folder)
    assert sum("can't be read" in one for one in found["findings"]) == 2
    shutil.rmtree(folder / STEPS)
