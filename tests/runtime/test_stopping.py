"""Stop strings against a search in the whole text; end-of-sequence ids by transformers' precedence."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.errors import GenerationError
from edgewright.runtime.stopping import StopStrings, eos_token_ids


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool, list[str]]:
    watcher = StopStrings(stops)
    emitted = []
    for piece in pieces:
        text, stopped = watcher.push(piece)
        emitted.append(text)
        if stopped:
            return "".join(emitted), True, emitted
    emitted.append(watcher.flush())
    return "".join(emitted), False, emitted


def naive(stops: list[str], text: str) -> tuple[str, bool]:
    """Cut at the stop whose end comes first, the longest of those."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


@settings(max_examples=60)
@given(
    st.lists(st.text("ab<", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text("ab<", max_size=6), max_size=12),
)
def test_equals_search_in_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    text, stopped, _ = run(stops, pieces)
    assert (text, stopped) == naive(stops, "".join(pieces))


@settings(max_examples=60)
@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("ab", max_size=20))
def test_holds_back_exactly_the_longest_possible_beginning(stops: list[str], text: str) -> None:
    if any(stop in text for stop in stops):
        return
    emitted, stopped = StopStrings(stops).push(text)
    possible = [stop[:length] for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
    assert not stopped
    assert emitted == text[: len(text) - max(map(len, possible), default=0)]


def test_stop_over_pieces_is_never_shown() -> None:
    assert run(["<|end|>"], ["hello <", "|e", "nd", "|> more"]) == ("hello ", True, ["hello ", "", "", ""])


def test_false_alarm_is_released() -> None:
    assert run(["<|end|>"], ["a <|e", "h"]) == ("a <|eh", False, ["a ", "<|eh", ""])


def test_flush_gives_the_held_text_once() -> None:
    watcher = StopStrings(["xyz"])
    assert watcher.push("abxy") == ("ab", False)
    assert watcher.flush() == "xy"
    assert watcher.flush() == ""


def test_after_a_stop_nothing_comes() -> None:
    watcher = StopStrings(["."])
    assert watcher.push("a.b") == ("a", True)
    assert watcher.push("c") == ("", True)
    assert watcher.flush() == ""


def test_without_stops_text_passes() -> None:
    assert run([], ["a", "b"]) == ("ab", False, ["a", "b", ""])


@pytest.mark.parametrize("stops", [[""], ["a", ""], [3], "abc"])
def test_bad_stops_are_refused(stops: Any) -> None:
    with pytest.raises(GenerationError, match="give"):
        StopStrings(stops)


class _Eos:
    eos_token_id = 9


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        ({"eos_token_id": [128001, 128008, 128009]}, {"eos_token_id": 5}, (128001, 128008, 128009)),
        ({"eos_token_id": [7, 3, 7]}, {}, (7, 3)),
        ({"eos_token_id": 0}, {"eos_token_id": 5}, (0,)),
        ({"eos_token_id": None}, {"eos_token_id": [1, 106]}, (1, 106)),
        ({}, {"text_config": {"eos_token_id": 4}}, (4,)),
        ({}, {"eos_token_id": None}, (9,)),
        ({}, {}, (9,)),
    ],
)
def test_eos_precedence(generation: dict[str, Any], model: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert eos_token_ids(generation, model, _Eos()) == expected  # type: ignore[arg-type]


def test_no_eos_at_all() -> None:
    assert eos_token_ids({}, {}, None) == ()


@pytest.mark.parametrize("value", ["2", True, [1, "2"], -1, 1.0])
def test_eos_that_is_no_id_is_refused(value: Any) -> None:
    with pytest.raises(GenerationError, match=r"generation_config\.json holds"):
        eos_token_ids({"eos_token_id": value}, {}, None)
