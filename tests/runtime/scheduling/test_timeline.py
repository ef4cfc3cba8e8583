"""Weights over time: the grammar, its errors, and which weight holds when."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_cases import THREE_SEGMENTS

from edgewright.errors import UsageError
from edgewright.runtime.scheduling.timeline import NS_PER_MS, Segment, Timeline, parse_weight, segments


@pytest.mark.parametrize(
    ("ms", "weights"),
    [
        (0, (0, 4, 1)),
        (4999, (0, 4, 1)),
        (5000, (1, 0, 0)),
        (19999, (1, 0, 0)),
        (20000, (1, 4, 1)),
        (10**9, (1, 4, 1)),
    ],
)
def test_the_requirements_timeline(ms: int, weights: tuple[float, ...]) -> None:
    lines = [Timeline.parse(text) for text in THREE_SEGMENTS]
    assert tuple(line.at(ms * NS_PER_MS) for line in lines) == weights


def test_its_segments_and_shares() -> None:
    found = segments([Timeline.parse(text) for text in THREE_SEGMENTS])
    second = 1000 * NS_PER_MS
    assert found == [
        Segment(0, 5 * second, (0, 4, 1)),
        Segment(5 * second, 20 * second, (1, 0, 0)),
        Segment(20 * second, None, (1, 4, 1)),
    ]
    assert [segment.shares for segment in found] == [(0, 0.8, 0.2), (1, 0, 0), (1 / 6, 4 / 6, 1 / 6)]
    assert Segment(0, None, (0, 0)).shares == (0, 0)


def test_changes_are_found_and_repeated_weights_are_none() -> None:
    line = Timeline.parse("2:0,2:100,3:200")
    assert line.next_change(-1) == line.next_change(0) == line.next_change(200 * NS_PER_MS - 1) == 200 * NS_PER_MS
    assert line.next_change(200 * NS_PER_MS) is None
    assert line.at(-5) == 2
    assert [segment.start_ns for segment in segments([line])] == [0, 200 * NS_PER_MS]
    assert str(line) == "2:0,2:100,3:200"


def test_when_a_paused_task_may_go_on() -> None:
    line = Timeline.parse("0:0,3:10,0:20")
    assert line.eligible(0) == 10 * NS_PER_MS
    assert line.eligible(15 * NS_PER_MS) == 15 * NS_PER_MS
    assert line.eligible(20 * NS_PER_MS) is None
    assert Timeline.constant(0).eligible(0) is None


def test_spaces_are_allowed_and_equality_is_by_value() -> None:
    assert Timeline.parse(" 4 : 0 , 0.5:5000 ") == Timeline.parse("4.0:0,.5:5000")
    assert Timeline.parse("4:0") == Timeline.constant(4) != Timeline.constant(2)
    assert len({Timeline.parse("4:0"), Timeline.constant(4)}) == 1


weights = st.just(0.0) | st.floats(1e-6, 1e9)


@given(weights, st.lists(st.tuples(st.integers(1, 10**6), weights), max_size=6))
def test_what_is_written_is_read_again(first: float, later: list[tuple[int, float]]) -> None:
    changes, time = [(0, first)], 0
    for step, weight in later:
        time += step
        changes.append((time * NS_PER_MS, weight))
    line = Timeline(tuple(changes))
    assert Timeline.parse(str(line)) == line
    for (begin, weight), (end, _) in zip(changes, [*changes[1:], (changes[-1][0] + 2, 0.0)], strict=True):
        assert line.at(begin) == line.at(end - 1) == weight


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4@0", r"the separator is ':' \(4:0\)"),
        ("4:0,0@5000", r"the separator is ':' \(0:5000\)"),
        ("", "is not a weight and a time"),
        ("4", "is not a weight and a time"),
        ("4:", "is not a weight and a time"),
        (":0", "is not a weight and a time"),
        ("4:0,", "is not a weight and a time"),
        ("4:5", "begins at 5 ms: its first time must be 0"),
        ("4:0,1:50,2:20", "must increase: 20 ms comes after 50 ms"),
        ("4:0,1:50,2:50", "must increase: 50 ms comes after 50 ms"),
        ("4:0,1:0", "must increase"),
        ("-1:0", "'-1' is not a decimal number"),
        ("nan:0", "'nan' is not a decimal number"),
        ("inf:0", "'inf' is not a decimal number"),
        ("1e3:0", "'1e3' is not a decimal number"),
        ("٤:0", "is not a decimal number"),
        ("9999999999:0", "can't be used"),
        ("0.0000001:0", "can't be used"),
        ("1" * 500 + ":0", "can't be used"),
        ("1:0,2:1.5", "'1.5' .* is not a whole number"),
        ("1:-5", "'-5' .* is not a whole number"),
        ("1:0:5", "'0:5' .* is not a whole number"),
        ("1:0,2:9999999999999", "later than"),
        ("1:0,2:" + "9" * 5000, "later than"),
    ],
)
def test_bad_timelines(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Timeline.parse(text)
    assert re.search(says, str(caught.value))


def test_bad_values() -> None:
    for weight in (float("nan"), float("inf"), -1.0, 1e-9, 1e10):
        with pytest.raises(UsageError, match="can't be used"):
            Timeline.constant(weight)
    with pytest.raises(UsageError, match="is empty"):
        Timeline(())
    assert parse_weight("0") == 0.0
    assert parse_weight("1.5") == 1.5
