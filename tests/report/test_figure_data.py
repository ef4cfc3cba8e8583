"""What figures show, from runs made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgewright.report.columns import total
from edgewright.report.figure_data import (
    MOST_COLUMNS,
    MOST_POINTS,
    closeup,
    first_tokens,
    lanes,
    queues,
    shares,
    token_gap_curves,
    tokens,
)
from edgewright.report.subject import Subject
from made_runs import job, shared_run, step, write_run


def test_lanes_tell_stalled_from_idle(tmp_path: Path) -> None:
    """Idle until 2 and from 8 to 9; from 5 to 6 the accelerator stands though B waits."""
    rows = [
        step("A", 2, 4, ready=2, phase="prefill"),
        step("A", 4, 5, ready=4),
        step("B", 6, 8, ready=4.5),
        step("B", 9, 10, ready=9),
    ]
    subject = Subject.read(write_run(tmp_path / "case" / "run", {"A": "1:0", "B": "1:0"}, rows))
    found = lanes(subject.shown, subject.paused)
    assert found is not None
    assert (found.start, found.end, found.busy) == (0, 10, 6)
    assert {key: own.tolist() for key, own in found.spans.items()} == {
        (0, "prefill"): [[2, 4]],
        (0, "decode"): [[4, 5]],
        (1, "decode"): [[6, 8], [9, 10]],
    }
    assert found.stalled.tolist() == [[5, 6]]
    assert found.idle.tolist() == [[0, 2], [8, 9]]
    assert found.phases == ("prefill", "decode")
    assert found.columns is None


def test_lanes_of_a_window(tmp_path: Path) -> None:
    rows = [step("A", at, at + 1, ready=at) for at in range(0, 20, 2)]
    subject = Subject.read(write_run(tmp_path / "case" / "run", {"A": "1:0"}, rows))
    found = lanes(subject.shown, subject.paused, (4.5, 9.5))
    assert found is not None
    assert found.busy == pytest.approx(0.5 + 1 + 1)
    assert total(found.idle) == pytest.approx(2.5)
    assert lanes(subject.shown, subject.paused, (100, 101)) is None


def test_many_steps_become_columns_that_keep_their_time(tmp_path: Path) -> None:
    subject = Subject.read(shared_run(tmp_path / "case" / "run", rounds=200, costs={"A": 7, "B": 11, "C": 5}, hold=4))
    found = lanes(subject.shown, subject.paused)
    assert found is not None
    assert found.columns is not None
    assert {len(part) for part in found.columns.values()} == {MOST_COLUMNS}
    width = found.length / MOST_COLUMNS
    for key, part in found.columns.items():
        own = found.stalled if key == (-1, "stalled") else found.idle if key == (-1, "idle") else found.spans[key]
        assert part.sum() * width == pytest.approx(total(own))
    assert sum(found.columns.values()) == pytest.approx(np.ones(MOST_COLUMNS))
    narrow = lanes(subject.shown, subject.paused, part=0.5)
    assert narrow is not None
    assert narrow.columns is not None
    assert {len(part) for part in narrow.columns.values()} == {MOST_COLUMNS // 2}


def test_the_closeup_is_around_the_first_change_of_weights(tmp_path: Path) -> None:
    subject = Subject.read(shared_run(tmp_path / "case" / "run", rounds=40))
    steps = subject.shown
    assert closeup(steps, [1500.0], 20) == (steps.start[np.searchsorted(steps.start, 1500) - 10],
                                            steps.end[np.searchsorted(steps.start, 1500) + 9])  # fmt: skip
    window = closeup(steps, [], 20)
    assert window is not None
    seen = steps.take((steps.start >= window[0]) & (steps.end <= window[1]))
    assert len(seen) == 20
    assert set(seen.dialog.tolist()) == {0, 1, 2}
    few = Subject.read(shared_run(tmp_path / "case" / "few", rounds=17))
    assert closeup(few.shown, [500.0], 20) is None


def test_tokens_over_time(tmp_path: Path) -> None:
    subject = Subject.read(shared_run(tmp_path / "case" / "run", rounds=500))
    found = tokens(subject.shown, subject.names)
    assert [one.count for one in found] == [2000, 1000, 500]
    for one in found:
        assert (one.x[0], one.y[0]) == (subject.shown.done[subject.shown.dialog == one.dialog][0], 1)
        assert (one.x[-1], one.y[-1]) == (subject.shown.done[subject.shown.dialog == one.dialog][-1], one.count)
        assert len(one.x) == min(one.count, MOST_POINTS)
        assert (np.diff(one.y) >= 1).all()


def test_times_between_tokens_are_those_of_one_query(tmp_path: Path) -> None:
    rows = [step("A", at, at + 1, iteration=query) for query, at in ((0, 0), (0, 10), (0, 30), (1, 1000), (1, 1003))]
    again = [{**row, "repeat": 1} for row in rows[:2]]
    subject = Subject.read(write_run(tmp_path / "case" / "run", {"A": "1:0"}, [*rows, *again]))
    (curve,) = token_gap_curves(subject)
    assert curve.x.tolist() == [3, 10, 10, 20]
    assert curve.y.tolist() == [0.25, 0.5, 0.75, 1]


def test_shares_come_from_the_summary(tmp_path: Path) -> None:
    subject = Subject.read(shared_run(tmp_path / "case" / "run", {"A": "4:0,1:700", "B": "2:0", "C": "1:0"}, rounds=20))
    first, second = shares(subject.summary, subject.names)
    assert (first.start, first.end, first.unit, first.weights) == (0, 700, "quanta", (4, 2, 1))
    assert (second.start, second.end, second.weights) == (700, None, (1, 2, 1))
    assert second.quanta == pytest.approx((4 / 7, 2 / 7, 1 / 7), abs=0.02)
    assert second.requested == pytest.approx((0.25, 0.5, 0.25), abs=0.03)


@pytest.mark.parametrize(
    "segments",
    [None, 3, [], [3, None], [{}], [{"start_ms": "0", "achieved": {}}], [{"start_ms": 0, "achieved": {"A": 1}}]],
)
def test_shares_of_a_strange_summary(segments: object) -> None:
    assert shares({"segments": segments}, ["A"]) == []


def test_first_tokens_at_once_and_alone(tmp_path: Path) -> None:
    """A is eligible 10 ms after its release; alone it has its token 4 ms after it."""
    rows = [
        step("A", 20, 24, done=25, ready=0),
        step("A", 30, 34),
        step("A", 0, 4, part="solo:A"),
        step("B", 26, 29, ready=0),
    ]
    jobs = [
        job("A", 0, 34, eligible_ns=10_000_000),
        job("A", 0, 4, part="solo:A"),
        job("B", 0, 29),
    ]
    subject = Subject.read(write_run(tmp_path / "case" / "run", {"A": "0:0,1:10", "B": "1:0"}, rows, jobs))
    (together, alone), (other, none) = first_tokens(subject)
    assert (together.dialog, together.count, together.middle) == (0, 1, 15)
    assert alone is not None
    assert alone.middle == 4
    assert (other.dialog, other.middle, none) == (1, 29, None)


def test_queues_leave_out_pauses(tmp_path: Path) -> None:
    rows = [step("A", 20, 24, ready=0), step("B", 0, 20, ready=0), step("B", 30, 31, ready=20)]
    subject = Subject.read(write_run(tmp_path / "case" / "run", {"A": "0:0,1:15", "B": "1:0"}, rows))
    first, second = queues(subject)
    assert (first.dialog, first.count, first.middle, first.most) == (0, 1, 5, 5)
    assert (second.count, second.middle, second.most) == (2, 5, 10)
