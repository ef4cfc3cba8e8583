from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from edgewright.bench.records.rows import JobRow, StepRow, line, step_line, step_prefix
from edgewright.runtime.scheduling.work import JobRecord, StepRecord

STEP = StepRecord(1, 2, 3, "prefill", 17, 128, 273, False, 10, 20, 30, 40, 0.5)
JOB = JobRecord(0, 4, 100, 110, None, 900, 1000, "failed", 'It "broke".\nBadly.', {"saturated": 3, "tokens": [1, 2]})


def test_a_step_line_is_json_of_its_row() -> None:
    name = 'D "ä"\n'
    text = step_line(step_prefix("solo:x", 7), json.dumps(name), STEP)
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    row = StepRow.of(STEP, "solo:x", 7, name)
    assert json.loads(text) == row._asdict()
    assert StepRow.from_json(json.loads(text)) == row
    assert row.padded == 128
    assert row.weight == 0.5


def test_nothing_padded_is_null() -> None:
    record = dataclasses.replace(STEP, padded=None, emits=True, phase="decode")
    data = json.loads(step_line(step_prefix("run", 0), '"A"', record))
    assert data["padded"] is None
    assert data["emits"] is True


def test_a_job_line_has_its_facts_beside_the_rest() -> None:
    row = JobRow.of(JOB, "run", 1, "A")
    data = json.loads(line(row.to_json()))
    assert data["saturated"] == 3
    assert data["eligible_ns"] is None
    assert data["error"] == 'It "broke".\nBadly.'
    assert JobRow.from_json(data) == row


def test_a_fact_does_not_hide_a_field() -> None:
    record = dataclasses.replace(JOB, facts={"dialog": "another", "end_ns": -1, "text": "hello"})
    data = JobRow.of(record, "run", 0, "A").to_json()
    assert (data["dialog"], data["end_ns"], data["text"]) == ("A", 900, "hello")


def test_numbers_that_json_lacks_become_null() -> None:
    data = {"a": float("nan"), "b": [np.float32(0.5), float("inf")], "c": np.arange(2), "d": {"e": np.array([np.nan])}}
    assert json.loads(line(data)) == {"a": None, "b": [0.5, None], "c": [0, 1], "d": {"e": [None]}}


@pytest.mark.parametrize(
    "other",
    [
        {"dialog": 3},
        {"start_ns": 1.5},
        {"start_ns": 5},
        {"tokens": True},
        {"weight": "4"},
        {"weight": float("nan")},
        {"tokens": 10**30},
        {"ready_ns": -1},
        {"done_ns": 10**19},
        {"held": None},
        {"part": ...},
    ],
)
def test_rows_that_are_none(other: dict[str, object]) -> None:
    data = StepRow.of(STEP, "run", 0, "A")._asdict() | other
    data = {name: value for name, value in data.items() if value is not ...}
    with pytest.raises((KeyError, TypeError, ValueError)):
        StepRow.from_json(data)
