"""Two runs side by side: ratios and intervals with known values, and what can't be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.bench.records.statistics import interval, t95
from edgewright.report.compare import Comparison, Figure, Row, compare, ratio_interval
from edgewright.report.subject import Subject
from made_runs import shared_run


def figure(*values: float) -> Figure:
    return Figure(**interval(values))


def change(path: Path, **values: Any) -> None:
    """Change values of a JSON file; one of a dialog is named DIALOG__KEY."""
    data = json.loads(path.read_text())
    for key, value in values.items():
        dialog, _, inner = key.rpartition("__")
        place = next(d for d in data["dialogs"] if d["name"] == dialog) if dialog else data
        place[inner] = value
    path.write_text(json.dumps(data))


def compared(first: Path, second: Path) -> Comparison:
    return compare(Subject.read(first), Subject.read(second))


def row(found: Comparison, name: str, dialog: str | None = None) -> Row:
    return next(one for one in found.rows if (one.name, one.dialog) == (name, dialog))


def test_the_interval_of_a_ratio_by_hand() -> None:
    """Means 10 and 20, standard errors 1/sqrt(3) and 4/sqrt(3): Welch's degrees of freedom are 2.94, so 2."""
    first, second = figure(9, 10, 11), figure(16, 20, 24)
    errors = (1 / math.sqrt(3) / 10, 4 / math.sqrt(3) / 20)
    squares = [one**2 for one in errors]
    freedom = sum(squares) ** 2 / (squares[0] ** 2 / 2 + squares[1] ** 2 / 2)
    assert freedom == pytest.approx(2.94, abs=0.01)
    half = t95(2) * math.sqrt(sum(squares))
    found = ratio_interval(first, second)
    assert found == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-4)


def test_the_interval_of_a_ratio_holds_it_as_often_as_it_says() -> None:
    """Five repeats of two machines whose times scatter by 5 and 2 %, the second 1.3 times as slow."""
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(1000):
        first = figure(*random.normal(10, 0.5, 5).tolist())
        second = figure(*random.normal(13, 0.26, 5).tolist())
        low, high = ratio_interval(first, second) or (0, 0)
        hits += low <= 1.3 <= high
    assert 0.93 <= hits / 1000 <= 0.985


def test_there_is_no_interval_without_repeats() -> None:
    assert ratio_interval(figure(3), figure(3, 4)) is None
    assert ratio_interval(figure(0, 0), figure(3, 4)) is None
    assert ratio_interval(figure(2, 2), figure(3, 3)) == pytest.approx((1.5, 1.5))


def test_runs_of_one_case(tmp_path: Path) -> None:
    first = shared_run(tmp_path / "case" / "a", repeats=3)
    second = shared_run(tmp_path / "case" / "b", repeats=3, speed=2)
    found = compared(first, second)
    assert (found.reasons, found.apart, found.changed) == ((), {}, ())
    whole, decode = row(found, "whole run"), row(found, "decode", "A")
    assert whole.ratio == pytest.approx(0.5)
    assert whole.finding == "lower"
    assert decode.ratio == pytest.approx(2, rel=1e-4)
    assert decode.finding == "higher"
    assert whole.first is not None
    assert (whole.first.n, whole.first.mean) == (3, pytest.approx(760 * 1.01, rel=1e-3))
    data = found.to_json()
    assert data["comparable"] is True
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert {one["finding"] for one in data["figures"]} >= {"lower", "higher"}


def test_one_repeat_has_no_interval(tmp_path: Path) -> None:
    found = compared(shared_run(tmp_path / "case" / "a"), shared_run(tmp_path / "case" / "b", speed=2))
    whole = row(found, "whole run")
    assert (whole.ratio, whole.low, whole.high, whole.finding) == (0.5, None, None, None)


def test_small_differences_are_not_shown(tmp_path: Path) -> None:
    first = shared_run(tmp_path / "case" / "a", repeats=3)
    found = compared(first, shared_run(tmp_path / "case" / "b", repeats=3, speed=1.001))
    assert row(found, "whole run").finding == "no difference shown"


def test_other_machines_are_not_compared(tmp_path: Path) -> None:
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    change(second / "env.json", machine={"cpu": "another cpu"})
    found = compared(first, second)
    assert found.reasons == ("they were made on different machines: cpu a cpu / another cpu",)
    assert not found.comparable
    assert row(found, "whole run").first is not None
    change(second / "env.json", machine={})
    change(first / "env.json", machine={})
    assert compared(first, second).reasons == ("neither says on which machine it was made",)


def test_simulated_and_real_ones_are_not_compared(tmp_path: Path) -> None:
    first = shared_run(tmp_path / "case" / "a")
    second = shared_run(tmp_path / "case" / "b", simulated=True)
    assert compared(first, second).reasons == ("case / b is of a simulated device and the other of a real one",)
    third = shared_run(tmp_path / "case" / "c", simulated=True, speed=2)
    change(third / "env.json", machine={"cpu": "another cpu"})
    assert row(compared(second, third), "whole run").ratio == 0.5


def test_cold_and_warm_ones_are_not_compared(tmp_path: Path) -> None:
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    lines = [line for line in (second / "steps.jsonl").read_text().splitlines(True) if '"warmup"' not in line]
    (second / "steps.jsonl").write_text("".join(lines))
    assert compared(first, second).reasons == (
        "case / b had no warm-up, the other had one: a cold run and a warm one are not compared",
    )


def test_dialogs_that_do_other_work_are_not_compared(tmp_path: Path) -> None:
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    change(first / "case.resolved.json", A__max_tokens=10)
    change(second / "case.resolved.json", A__max_tokens=20)
    found = compared(first, second)
    assert found.apart == {"A": "it does not do the same in both: max_tokens 10 / 20"}
    assert row(found, "decode", "A").ratio is None
    assert row(found, "whole run").ratio is None
    assert row(found, "decode", "B").ratio == 1
    third = shared_run(tmp_path / "case" / "c", {"A": "4:0", "B": "2:0"}, order="ABA")
    assert compared(first, third).apart == {
        "A": "it does not do the same in both: max_tokens 10 / unsaid", "C": "case / c does not have it"
    }  # fmt: skip


def test_what_else_was_different_is_told(tmp_path: Path) -> None:
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    change(second / "case.resolved.json", scheduler={"discipline": "fifo"}, B__timeline="3:0", name="other")
    change(first / "env.json", versions={"onnxruntime": "1.32.0"})
    found = compared(first, second)
    assert found.changed == (
        "case: case / other",
        "scheduler.discipline weighted / fifo",
        "B: timeline 2:0 / 3:0",
        "version of onnxruntime 1.32.0 / unsaid",
    )
    assert found.comparable


def test_failed_queries_keep_a_dialog_apart(tmp_path: Path) -> None:
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    text = (second / "jobs.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in text]
    for one in rows:
        if one["dialog"] == "B" and one["part"] == "run":
            one |= {"finish": "failed", "error": "It broke."}
    (second / "jobs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = compared(first, second)
    assert found.apart == {"B": "queries of it failed in case / b"}
    assert found.changed == ("status: complete / partial",)


def test_a_run_without_steps(tmp_path: Path) -> None:
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    (second / "steps.jsonl").write_text("")
    (second / "jobs.jsonl").write_text("")
    assert "case / b has no step of a concurrent run" in compared(first, second).reasons


def test_what_was_cut_off_is_not_compared_with_what_was_not(tmp_path: Path) -> None:
    """Half a run takes half the time."""
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    rows = [json.loads(line) for line in (second / "jobs.jsonl").read_text().splitlines()]
    for one in rows:
        if one["dialog"] == "B" and one["part"] == "run":
            one |= {"finish": "stopped"}
    (second / "jobs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = compared(first, second)
    assert found.apart == {"B": "not all of its queries came to their end in case / b"}
    assert row(found, "whole run").ratio is None
    assert row(found, "decode", "A").ratio == 1
    # Both came to a time limit, so they had the same time.
    assert compared(second, second).apart == {}
    # A run that was killed has no rows of what it did not come to.
    (second / "events.jsonl").write_text("")
    (second / "jobs.jsonl").write_text("")
    assert set(compared(first, second).apart) == set(compared(second, second).apart) == {"A", "B", "C"}


def test_other_lengths_are_told(tmp_path: Path) -> None:
    first, second = (shared_run(tmp_path / "case" / name) for name in "ab")
    rows = [json.loads(line) for line in (second / "jobs.jsonl").read_text().splitlines()]
    for one in rows:
        one |= {"generated_tokens": 7}
    (second / "jobs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert any(text.startswith("A: generated tokens of a query ") for text in compared(first, second).changed)
