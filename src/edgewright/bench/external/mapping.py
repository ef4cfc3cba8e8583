"""Which component of a profile is which dialog of a case, and what each of its queries says.

The library numbers components as it creates them: `dialog0`, `dialog1`. The numbers are not those of the command line
where dialogs are created by several threads, and a dialog that could not be created may or may not have used one up.
So components are told apart by their numbers only where this can't be wrong; where it may be, that is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from edgewright.genie import Component, Event, Profile
from edgewright.genie.kpis import GENERATED_TOKENS, PROMPT_TOKENS, recomputed

CREATE = "GenieDialog_create"
#: Of names that a message shows, how many, and how much of each.
_SHOWN = 20
_NUMBER = re.compile(r"[A-Za-z_-]*(\d+)", re.ASCII)


@dataclass(frozen=True)
class Mapped:
    """The components of dialogs by their place among the dialogs, None where there is none; what is odd about it."""

    components: tuple[Component | None, ...]
    notes: tuple[str, ...] = ()
    #: Why nothing could be told apart; `components` are all None then.
    error: str | None = None


@dataclass(frozen=True)
class Query:
    """A query of a dialog: times in microseconds of the program's clock, figures as the library gives them.

    `error` is None where it succeeded. Figures that the library didn't give are not there.
    """

    start_us: int
    stop_us: int
    genie: Mapping[str, float] = field(default_factory=dict)
    recomputed: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its job: counts are null where the library gave none."""
        return {
            "prompt_tokens": self._count(PROMPT_TOKENS),
            "generated_tokens": self._count(GENERATED_TOKENS),
            "genie": dict(self.genie),
            "recomputed": dict(self.recomputed),
        }

    def _count(self, name: str) -> int | None:
        value = self.genie.get(name)
        return int(value) if value is not None and value >= 0 and value == int(value) else None


def components_of(profile: Profile, dialogs: int) -> Mapped:
    """Return the component of each of the dialogs that one process ran."""
    found = profile.dialogs
    if dialogs == 1 and len(found) == 1:
        return Mapped((found[0],))
    nothing: tuple[Component | None, ...] = (None,) * dialogs
    names = ", ".join(component.name[:_SHOWN] for component in found[:_SHOWN]) or "none"
    names += ", ..." * (len(found) > _SHOWN)
    if len(found) > dialogs:
        return Mapped(
            nothing, error=f"The profile has more components ({names}) than the case has dialogs ({dialogs})."
        )
    numbers = [_number(component) for component in found]
    known = [number for number in numbers if number is not None]
    if not found or len(known) < len(found) or len(set(known)) < len(known) or max(known) >= dialogs:
        return Mapped(nothing, error=f"The profile's components ({names}) are not those of {dialogs} dialogs.")
    if len(found) < dialogs and max(known) != dialogs - 1:
        # A dialog that was not created may have left its number to the next one.
        missing = f"The profile has {len(found)} components ({names}) for {dialogs} dialogs"
        return Mapped(nothing, error=f"{missing}: which are missing can't be told.")
    by_number = dict(zip(known, found, strict=True))
    return Mapped(tuple(by_number.get(number) for number in range(dialogs)), tuple(_order_notes(found)))


def _number(component: Component) -> int | None:
    match = _NUMBER.fullmatch(component.name)
    return int(match[1]) if match and len(match[1]) < 10 else None


def _order_notes(found: tuple[Component, ...]) -> list[str]:
    """Return why the numbers may not be the order of the command line."""
    made = [event for component in found for event in component.of_type(CREATE)[:1]]
    if len(made) < len(found):
        return ["The profile doesn't say when its dialogs were created, so their order is taken from their names."]
    if any(after.start_us < before.start_us for before, after in pairwise(made)):
        return ["The dialogs were not created in the order of their numbers: which component is which may be wrong."]
    if any(after.start_us < before.stop_us for before, after in pairwise(made)):
        return ["Dialogs were created at the same time: which component is which dialog may be wrong."]
    return []


def queries_of(component: Component) -> list[Query]:
    """Return the queries of a component in the order of their start."""
    return [_query(event) for event in sorted(component.queries, key=lambda event: event.start_us)]


def _query(event: Event) -> Query:
    own = {name: value for name, (value, _) in event.kpis.items()}
    error = None if event.complete else "The query failed: the profile has it without figures."
    if event.duration_us < 0:
        error = "The profile says that the query ended before it began, so its times are not used."
    return Query(
        start_us=event.start_us,
        stop_us=max(event.start_us, event.stop_us),
        genie=own,
        recomputed={name: value for name, (value, _) in recomputed(event.kpis).items()},
        error=error,
    )


def zero_us(profile: Profile) -> int | None:
    """Return when the program began by its own clock: the profile's handle, or the first thing that it did."""
    starts = [event.start_us for component in profile.components for event in component.events]
    if not starts:
        return profile.timestamp_us
    first = min(starts)
    return first if profile.timestamp_us is None or profile.timestamp_us > first else profile.timestamp_us
