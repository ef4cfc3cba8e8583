"""What a JSON document may hold, declared as blocks of keys, and what is wrong with one that breaks it.

The kinds of values are few. Integers are compared as the library compares them, as int64: 2**64 - 1 is -1 to it. An
integer written as 1.0 is none. What depends on other keys is a block's `choice` (which keys go with which value of one
key) or one of its `rules`. Every kind has `wanted`, what to give, and `problems`, what is wrong with a value at a
place.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgewright.genie.document import Place, in_one_line, spelled

#: The library's bound of numbers that it stores in a float32: the largest of them, written with ten digits.
FLOAT32 = 3.402823466e38
_SHOWN = 40


@dataclass(frozen=True)
class Problem:
    """Something wrong: where, and a sentence's end that says what and what to do. `unknown`: a key nobody knows."""

    place: Place
    text: str
    unknown: bool = False

    def __str__(self) -> str:
        return f"{spelled(self.place)} {self.text}"


@dataclass(frozen=True)
class Integer:
    """An integer within limits, as int64."""

    low: int | None = None
    high: int | None = None

    @property
    def wanted(self) -> str:
        return "an integer" + _limits(self.low, self.high)

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int) or not _within(signed(value), self.low, self.high):
            yield _wrong(value, place, self.wanted)


@dataclass(frozen=True)
class Number:
    """A number within limits."""

    low: float | None = None
    high: float | None = None

    @property
    def wanted(self) -> str:
        return "a number" + _limits(self.low, self.high)

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, self.low, self.high):
            yield _wrong(value, place, self.wanted)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    wanted = "true or false"

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        if not isinstance(value, bool):
            yield _wrong(value, place, self.wanted)


@dataclass(frozen=True)
class Text:
    """A string; with `choices` one of them."""

    choices: tuple[str, ...] = ()
    filled: bool = False

    @property
    def wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return "a string that is not empty" if self.filled else "a string"

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        if not isinstance(value, str):
            yield _wrong(value, place, self.wanted)
        elif self.choices and value not in self.choices:
            yield Problem(place, f"is {_shown(value)}{near(value, self.choices)}: give {self.wanted}")
        elif self.filled and not value:
            yield _wrong(value, place, self.wanted)


@dataclass(frozen=True)
class Exactly:
    """One integer: the version of a block."""

    value: int

    @property
    def wanted(self) -> str:
        return str(self.value)

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int) or value != self.value:
            yield _wrong(value, place, self.wanted)


@dataclass(frozen=True)
class Anything:
    """Whatever it is, the library doesn't look."""

    wanted = "any value"

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        yield from ()


@dataclass(frozen=True)
class Items:
    """An array of at least so many values of a kind."""

    of: Kind
    least: int = 0

    @property
    def wanted(self) -> str:
        return f"an array{' that is not empty' if self.least else ''}"

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        if not isinstance(value, list) or len(value) < self.least:
            yield _wrong(value, place, self.wanted)
            return
        for index, one in enumerate(value):
            yield from self.of.problems(one, (*place, index))


class Either:
    """A value of one of several kinds."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = kinds

    @property
    def wanted(self) -> str:
        return ", or ".join(kind.wanted for kind in self.kinds)

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        fitting = [kind for kind in self.kinds if _container(kind) is _container_of(value)]
        found = [list(kind.problems(value, place)) for kind in fitting]
        if not all(found) and found:
            return
        if len(found) == 1 and isinstance(value, list | dict):
            yield from found[0]
        else:
            yield _wrong(value, place, self.wanted)


def _container(kind: Kind) -> type | None:
    return list if isinstance(kind, Items) else dict if isinstance(kind, Block) else None


def _container_of(value: Any) -> type | None:
    return next((kind for kind in (list, dict) if isinstance(value, kind)), None)


@dataclass(frozen=True)
class Choice:
    """Which keys go with which value of `key`: names with blanks between, with "!" those that must be there.

    A name that goes with one value is refused with the others. `default` holds where the key is missing.
    """

    key: str
    goes_with: Mapping[str, str]
    default: str | None = None

    def problems(self, value: Mapping[str, Any], place: Place) -> Iterator[Problem]:
        chosen = value.get(self.key, self.default)
        if not isinstance(chosen, str) or chosen not in self.goes_with:
            return  # the key's own kind says so
        taken = {name.rstrip("!"): name.endswith("!") for name in self.goes_with[chosen].split()}
        said = f"the {self.key} {chosen!r}" if self.key in value else f"no {self.key}"
        for name, needed in taken.items():
            if needed and name not in value:
                yield Problem(place, f"lacks {name!r}, which {said} needs: add it")
        for other in dict.fromkeys(name.rstrip("!") for names in self.goes_with.values() for name in names.split()):
            if other in value and other not in taken:
                yield Problem((*place, other), f"does not go with {said}: take it out, or change the {self.key}")


Rule = Callable[[Mapping[str, Any], Place], Iterable[Problem]]


class Block:
    """An object: its keys with their kinds ("!" after a name: it must be there), its choice and its rules.

    An `open` block passes over keys it doesn't know.
    """

    wanted = "an object"

    def __init__(
        self,
        keys: Keys,
        *,
        choice: Choice | None = None,
        rules: Iterable[Rule] = (),
        open: bool = False,  # noqa: A002
    ) -> None:
        self.keys = {name.rstrip("!"): kind for name, kind in keys.items()}
        self.required = tuple(name[:-1] for name in keys if name.endswith("!"))
        self.choice, self.rules, self.open = choice, tuple(rules), open

    def changed(self, keys: Keys | None = None, *, without: str = "", rules: Iterable[Rule] | None = None) -> Block:
        """Return this block with other or more keys, without some, or with other rules."""
        marked = {f"{name}!" if name in self.required else name: kind for name, kind in self.keys.items()}
        changed = {name.rstrip("!") for name in keys or {}} | set(without.split())
        kept = {name: kind for name, kind in marked.items() if name.rstrip("!") not in changed}
        return Block(
            {**kept, **(keys or {})},
            choice=self.choice,
            rules=self.rules if rules is None else rules,
            open=self.open,
        )

    def problems(self, value: Any, place: Place) -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield _wrong(value, place, self.wanted)
            return
        for name in self.required:
            if name not in value:
                yield Problem(place, f"lacks {name!r}: add it ({self.keys[name].wanted})")
        for name, one in value.items():
            kind = self.keys.get(name)
            if kind is not None:
                yield from kind.problems(one, (*place, name))
            elif not self.open:
                known = near(name, self.keys) or f"; its keys are {', '.join(self.keys)}"
                yield Problem((*place, name), f"is a key that is not known there{known}: mend it or take it out", True)
        if self.choice is not None:
            yield from self.choice.problems(value, place)
        for rule in self.rules:
            yield from rule(value, place)


Kind = Integer | Number | Flag | Text | Exactly | Anything | Items | Either | Block
Keys = Mapping[str, Kind]


def near(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" with the nearest known spelling, or nothing."""
    names = list(known)
    folded = {name.replace("_", "-").lower(): name for name in names}
    plain = word.replace("_", "-").lower()
    found = [folded[plain]] if plain in folded else difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _wrong(value: Any, place: Place, wanted: str) -> Problem:
    return Problem(place, f"is {_shown(value)}: give {wanted}")


def _shown(value: Any) -> str:
    """Return a value as JSON, long ones cut."""
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    return in_one_line(json.dumps(value, ensure_ascii=False), _SHOWN)


def signed(value: int) -> int:
    """Return what an integer is as int64."""
    return value if value < 1 << 63 else value - (1 << 64)


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _limits(low: float | None, high: float | None) -> str:
    if high == FLOAT32:
        high = None
        return f" from {low} that float32 holds" if low is not None and low != -FLOAT32 else " that float32 holds"
    if low is None and high is None:
        return ""
    return f" from {low}{f' to {high}' if high is not None else ''}" if low is not None else f" up to {high}"
