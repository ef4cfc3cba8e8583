"""Which component is which dialog, and what its queries say."""

from __future__ import annotations

import random

import pytest

from edgewright.bench.external.mapping import components_of, queries_of, zero_us
from edgewright.genie import Component, Event, Profile
from edgewright.genie.profile import natural


def component(name: str, created: tuple[int, int] | None = None, *queries: Event) -> Component:
    events = () if created is None else (Event("GenieDialog_create", created[0], created[1] - created[0]),)
    return Component(name, "dialog", (*events, *queries))


def profile(*components: Component, timestamp: int | None = None) -> Profile:
    return Profile(tuple(sorted(components, key=lambda one: natural(one.name))), timestamp)


def named(found: tuple[Component | None, ...]) -> list[str | None]:
    return [None if one is None else one.name for one in found]


def test_eleven_dialogs_in_the_order_of_their_numbers() -> None:
    parts = [component(f"dialog{n}", (10 * n, 10 * n + 5)) for n in range(11)]
    random.Random(3).shuffle(parts)
    found = components_of(profile(*parts), 11)
    assert named(found.components) == [f"dialog{n}" for n in range(11)]
    assert (found.notes, found.error) == ((), None)


def test_engines_are_no_dialogs() -> None:
    found = components_of(Profile((Component("engine_dialog0", "engine"), component("dialog0", (0, 1)))), 1)
    assert named(found.components) == ["dialog0"]


def test_one_dialog_may_have_any_name() -> None:
    assert named(components_of(profile(component("pipeline7")), 1).components) == ["pipeline7"]


@pytest.mark.parametrize(
    ("created", "text"),
    [
        (((0, 10), (20, 30)), None),
        (((0, 10), (10, 30)), None),
        (((0, 10), (5, 30)), "at the same time"),
        (((20, 30), (0, 10)), "not created in the order"),
        (((0, 10), None), "doesn't say when"),
    ],
)
def test_the_order_of_creation(created: tuple[tuple[int, int] | None, ...], text: str | None) -> None:
    found = components_of(profile(*(component(f"dialog{n}", span) for n, span in enumerate(created))), 2)
    assert named(found.components) == ["dialog0", "dialog1"]
    assert (text is None) == (found.notes == ())
    assert text is None or text in found.notes[0]


@pytest.mark.parametrize(
    ("names", "dialogs", "expected"),
    [
        (["dialog0", "dialog2"], 3, ["dialog0", None, "dialog2"]),
        (["dialog2"], 3, [None, None, "dialog2"]),
        (["dialog0", "dialog1"], 3, None),  # dialog1 may be the second or the third
        (["dialog0"], 2, None),
        (["dialog0", "dialog1", "dialog2"], 2, None),
        (["dialog1", "dialog2"], 2, None),
        (["chat", "dialog1"], 2, None),
        (["dialog1", "talk1"], 2, None),
        ([], 2, None),
        ([], 1, None),
        (["dialog99999999999999999999", "dialog0"], 2, None),
    ],
)
def test_another_number_of_components(names: list[str], dialogs: int, expected: list[str | None] | None) -> None:
    found = components_of(profile(*(component(name, (n, n)) for n, name in enumerate(names))), dialogs)
    if expected is None:
        assert found.error is not None
        assert named(found.components) == [None] * dialogs
    else:
        assert found.error is None
        assert named(found.components) == expected


def test_thousands_of_components_make_a_short_message() -> None:
    found = components_of(profile(*(component(f"dialog{n}" + "x" * 500, (n, n)) for n in range(5000))), 2)
    assert found.error is not None
    assert len(found.error) < 600


def test_queries() -> None:
    """The worked figures of the library's definitions: 21 tokens in 953,000 us are 20 steps."""
    kpis = {
        "num-prompt-tokens": (273, ""),
        "time-to-first-token": (500_000, "us"),
        "num-generated-tokens": (21, ""),
        "token-generation-rate": (22.036, "toks/sec"),
        "token-generation-time": (953_000, "us"),
    }
    failed, good = Event("GenieDialog_query", 50, 7), Event("GenieDialog_query", 9, 30, kpis)
    first, second = queries_of(component("dialog0", (0, 5), failed, good, Event("GenieDialog_applyLora", 6, 1)))
    assert (first.start_us, first.stop_us, first.error) == (9, 39, None)
    assert first.facts["prompt_tokens"] == 273
    assert first.facts["generated_tokens"] == 21
    assert first.genie["token-generation-rate"] == 22.036
    assert first.recomputed["token-generation-rate"] == pytest.approx(20.98636)
    assert first.recomputed["prompt-processing-rate"] == pytest.approx(546.0)
    assert second.error is not None
    assert (second.facts["prompt_tokens"], second.facts["generated_tokens"]) == (None, None)
    assert second.genie == second.recomputed == {}


def test_times_and_counts_that_cant_be() -> None:
    kpis = {"num-prompt-tokens": (-3, ""), "num-generated-tokens": (2.5, "")}
    (query,) = queries_of(component("dialog0", None, Event("GenieDialog_query", 9, -5, kpis)))
    assert (query.start_us, query.stop_us) == (9, 9)
    assert query.error is not None
    assert (query.facts["prompt_tokens"], query.facts["generated_tokens"]) == (None, None)


def test_no_rate_is_made_of_nothing() -> None:
    kpis = {"num-prompt-tokens": (5, ""), "num-generated-tokens": (1, ""), "token-generation-time": (0, "us")}
    (query,) = queries_of(component("dialog0", None, Event("GenieDialog_query", 0, 9, kpis)))
    assert query.error is None
    assert "token-generation-rate" not in query.recomputed
    assert "prompt-processing-rate" not in query.recomputed


def test_when_a_program_began() -> None:
    assert zero_us(profile(component("dialog0", (30, 40)), timestamp=20)) == 20
    assert zero_us(profile(component("dialog0", (30, 40)))) == 30
    # Another clock than that of the events.
    assert zero_us(profile(component("dialog0", (30, 40)), timestamp=1_700_000_000)) == 30
    assert zero_us(profile()) is None
