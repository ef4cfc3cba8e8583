"""What the program prints."""

from __future__ import annotations

import pytest

from edgewright.bench.external.spoken import read_spoken


@pytest.mark.parametrize(
    ("text", "answers", "begun", "ended"),
    [
        ("[PROMPT]: hi\n[BEGIN]:  a b[END]\n", (" a b",), 1, 1),
        ("[PROMPT]: hi\r\n[BEGIN]:  a\r\nb[END]\r\n", (" a\nb",), 1, 1),
        ("[BEGIN]: a[END]\n[BEGIN]: b[END]\n", ("a", "b"), 2, 2),
        ("[COMPLETE]: all of it\nmore", ("all of it",), 1, 1),
        ("[BEGIN]: [END]\n", ("",), 1, 1),
        ("[END]\n", None, 0, 1),
        ("[BEGIN]: torn", ("torn",), 1, 0),
        ("[BEGIN]: a[BEGIN]: b[END]\n[END]\n", None, 2, 2),
        ("nothing", (), 0, 0),
        ("", (), 0, 0),
    ],
)
def test_answers(text: str, answers: tuple[str, ...] | None, begun: int, ended: int) -> None:
    found = read_spoken(text)
    assert (found.answers, found.begun, found.ended) == (answers, begun, ended)
