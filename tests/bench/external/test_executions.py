"""What others wrote into a run folder: read as far as it is whole, and no path leaves the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgewright.bench.external import run_external
from edgewright.bench.external.executions import executions_of
from edgewright.bench.external.outputs import write_external_outputs
from edgewright.bench.records import read_run

from .conftest import Desk, local


def edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        edit(row)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def folder(desk: Desk, out: Path) -> Path:
    """A run of a process for each of two dialogs."""
    return run_external(desk.case(desk.llm(), desk.llm("b")), local(process="dialog"), out).folder


def test_whole_ones(folder: Path) -> None:
    assert [one["name"] for one in executions_of(read_run(folder))] == ["run-0-d0-i0", "run-0-d1-i0"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../elsewhere"}, {"name": ".."}, {"name": None}, {"dialogs": ["zz"]}, {"dialogs": []},
        {"dialogs": 5}, {"dialogs": [["D0"]]}, {"started_ms": "x"}, {"started_ms": 1e300}, {"started_ms": True},
        {"error": {"a": 1}},
    ],
)  # fmt: skip
def test_events_that_are_none(folder: Path, change: dict[str, Any]) -> None:
    edited(folder / "events.jsonl", lambda row: row.update(change if row["event"] == "execution" else {}))
    (folder / "profile.json").unlink()
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "profile.json").write_bytes(
        (folder / "executions" / "run-0-d0-i0" / "profile.json").read_bytes()
    )
    run = read_run(folder)
    assert executions_of(run) == []
    assert write_external_outputs(run)["external"]["executions"] == []
    assert not (folder / "profile.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"genie": 5}, {"genie": {"time-to-first-token": "x"}}, {"genie": {"time-to-first-token": 1e400}},
        {"genie": [1]}, {"genie": {"time-to-first-token": True}},
    ],
)  # fmt: skip
def test_figures_that_are_none(folder: Path, change: dict[str, Any]) -> None:
    edited(
        folder / "jobs.jsonl",
        lambda row: row.update({**change, "recomputed": [1], "load_ms": {"a": 1}, "execution": [1]}),
    )
    one = write_external_outputs(read_run(folder))["dialogs"]["D0"]
    assert (one["jobs"], one["genie"], one["recomputed"], one["load_ms"]) == (1, {}, {}, None)
