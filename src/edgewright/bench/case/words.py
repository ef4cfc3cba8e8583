"""The words of a command line as genie-t2t-run takes them: no abbreviations, nothing twice, nothing dropped."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgewright.errors import UsageError

#: An option stands once, or as often as one likes, or the program here doesn't do it.
Kind = Literal["once", "each", "refused"]
STRIDE = re.compile(r"--concurrent-stride([0-9]{1,6})", re.ASCII)


def is_text(word: str) -> bool:
    """Whether a text can be written as UTF-8: bytes that are none, and halves of pairs, can't."""
    return not re.search("[\ud800-\udfff]", word)


@dataclass(frozen=True)
class Option:
    """An option: its spellings, the usual one last, what its value is (None: it takes none), and a sentence of help.

    A refused one's help says what to do instead.
    """

    names: tuple[str, ...]
    value: str | None
    help: str
    kind: Kind = "once"

    @property
    def name(self) -> str:
        """The usual spelling."""
        return self.names[-1]


@dataclass
class Words:
    """What a command line says: `values` of options that stand once ("" where they take none), by the usual spelling;
    `each` (option, value) of those that may stand often, in order; `strides` the timelines by number; `refused` the
    words of options that are not done here."""

    values: dict[str, str] = field(default_factory=dict)
    each: list[tuple[str, str]] = field(default_factory=list)
    strides: dict[int, str] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)


def parse_words(words: Sequence[str], options: Sequence[Option]) -> Words:
    """Return what the words say; raises UsageError for an unknown option, a missing value, or one given twice."""
    known = {name: option for option in options for name in option.names}
    found = Words()
    rest = iter(words)
    if any("\0" in word for word in words):
        raise UsageError("A word has a NUL character, which no text or path can hold: leave it out.")
    broken = next((word for word in words if not is_text(word)), None)
    if broken is not None:
        raise UsageError(f"The word {broken!a} is no text in UTF-8, so no record of it could be written: mend it.")
    for word in rest:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        number = STRIDE.fullmatch(name)
        if number is not None and "--concurrent-stride" in known:
            _add_stride(found, int(number.group(1)), value if equals else _next(name, rest, known))
            continue
        option = known.get(name)
        if option is None:
            raise UsageError(_unknown(word, known))
        if option.value is None:
            if equals:
                raise UsageError(f"Invalid parameter for argument: {name}: it takes no value.")
        elif not equals:
            value = _next(name, rest, known)
        _add(found, option, name, value)
    return found


def _add(found: Words, option: Option, name: str, value: str) -> None:
    if option.kind == "each":
        found.each.append((option.name, value))
        return
    if option.name in found.values or option.name in found.refused:
        raise UsageError(
            f"{name} stands twice, and genie-t2t-run would take the last one without a word: keep one of them."
        )
    if option.kind == "refused":
        found.refused[option.name] = [name] if option.value is None else [name, value]
    else:
        found.values[option.name] = value


def _add_stride(found: Words, number: int, value: str) -> None:
    if number in found.strides:
        raise UsageError(f"--concurrent-stride{number} stands twice: keep one of them.")
    found.strides[number] = value


def _next(name: str, rest: Iterator[str], known: Mapping[str, Option]) -> str:
    value = next(rest, None)
    if value is None:
        raise UsageError(f"Invalid parameter for argument: {name}: its value is missing.")
    if value in known or STRIDE.fullmatch(value):
        raise UsageError(
            f"Invalid parameter for argument: {name}: its value is missing, the next word is the option {value}."
        )
    return value


def _unknown(word: str, known: Mapping[str, Option]) -> str:
    if not word.startswith("-"):
        return f"Unknown option: {word!r}: a word that belongs to no option."
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.5)
    return f"Unknown option: {word}{f' (did you mean {near[0]}?)' if near else ''}."
