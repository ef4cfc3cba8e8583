"""What the accelerator did, from a few steps written down by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.report.columns import NO_SPANS, gaps, intersection, share_of_bins, token_times, total, union, waiting
from edgewright.report.subject import Subject
from made_runs import step, write_run


def spans(*pairs: tuple[float, float]) -> np.ndarray:
    return np.array(pairs, np.float64).reshape(-1, 2)


def test_union_joins_what_overlaps_or_touches() -> None:
    found = union(spans((5, 6), (0, 2), (1, 3), (3, 4), (7, 7)))
    assert found.tolist() == [[0, 4], [5, 6]]
    assert union(NO_SPANS).shape == (0, 2)


def test_intersection_and_gaps() -> None:
    one, other = spans((0, 4), (6, 9)), spans((1, 2), (3, 7), (9, 12))
    assert intersection(one, other).tolist() == [[1, 2], [3, 4], [6, 7]]
    assert intersection(one, NO_SPANS).shape == (0, 2)
    assert gaps(one, -1, 10).tolist() == [[-1, 0], [4, 6], [9, 10]]
    assert gaps(NO_SPANS, 2, 3).tolist() == [[2, 3]]


pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


@given(pairs, pairs)
def test_spans_are_sets_of_moments(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """Against a grid of half moments."""
    grid = np.arange(0, 50) + 0.5

    def inside(found: np.ndarray) -> np.ndarray:
        return ((found[:, :1] < grid) & (grid < found[:, 1:])).any(axis=0)

    a, b = union(spans(*one)), union(spans(*other))
    assert (inside(a) == inside(spans(*one))).all()
    assert (a[1:, 0] > a[:-1, 1]).all()
    assert (inside(intersection(a, b)) == (inside(a) & inside(b))).all()
    assert (inside(gaps(a, 0, 50)) == ~inside(a)).all()
    shares = share_of_bins(a, np.linspace(0, 50, 11))
    assert shares.sum() * 5 == pytest.approx(total(np.clip(a, 0, 50)))
    assert shares == pytest.approx(inside(a).reshape(10, 5).mean(axis=1))


def test_waiting_leaves_out_pauses(tmp_path: Path) -> None:
    """B asks at 0 and runs at 60, but is paused from 10 to 40 and from 50 on to 55."""
    timelines = {"A": "1:0", "B": "1:0,0:10,1:40,0:50,1:55"}
    rows = [step("A", 0, 5), step("A", 30, 35), step("B", 60, 70, ready=0)]
    subject = Subject.read(write_run(tmp_path / "case" / "run", timelines, rows))
    assert waiting(subject.shown, subject.paused).tolist() == [[0, 10], [40, 50], [55, 60]]
    assert waiting(subject.shown, {}).tolist() == [[0, 60]]


def test_tokens_are_known_when_host_work_is_done(tmp_path: Path) -> None:
    rows = [
        step("B", 1, 3, done=4),
        step("A", 0, 1, done=2, emits=False),
        step("A", 3, 4, done=9),
        step("A", 9.5, 10, done=11),
    ]
    subject = Subject.read(write_run(tmp_path / "case" / "run", {"A": "1:0", "B": "1:0"}, rows))
    assert subject.shown.start.tolist() == [0, 1, 3, 9.5]
    assert token_times(subject.shown, 0).tolist() == [9, 11]
    assert token_times(subject.shown, 1).tolist() == [4]
    assert subject.shown.busy.tolist() == [[0, 4], [9.5, 10]]
