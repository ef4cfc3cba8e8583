"""JSON as Genie's library takes it: read strictly, with the line of every value and every repeated key.

Stricter than Python's reader: no NaN, no lone surrogates, no numbers beyond double. A byte order mark is passed over.
Of a repeated key the last value holds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, NoReturn

from edgewright.errors import GenieError

#: Where a value is: keys and indices from the top.
Place = tuple[str | int, ...]
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGERS = (-(1 << 63), (1 << 64) - 1)
#: Deeper than any file of Genie's, and shallower than Python's recursion goes.
_DEEPEST = 200
#: Deeper than any place that a message names; further down the line around it is enough.
_LINED = 24
#: Larger than any configuration: a value takes some hundred bytes here.
_LARGEST_BYTES = 1 << 20


@dataclass
class Document:
    """A parsed text: its plain `value`, the 1-based `lines` of values by place, and the `repeated` keys in order."""

    name: str
    value: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    repeated: list[Place] = field(default_factory=list)

    def line_of(self, place: Place) -> int:
        """Return the line of a place, or of the nearest one around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def spelled(place: Place) -> str:
    """Return a place as people write it: dialog.engine[0].model; long keys are cut."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{in_one_line(part, 80)}" for part in place)
    return text.removeprefix(".") or "the top level"


def in_one_line(text: str, longest: int) -> str:
    """Return a text of a file as it may stand in a message: what a terminal would act on escaped, a long one cut."""
    cut = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(char if char.isprintable() else char.encode("unicode-escape").decode() for char in cut)


def parse_file(path: Path) -> Document:
    """Parse a file; raises GenieError where it can't be read or is not JSON."""
    return parse(read_bytes(path), str(path))


def read_bytes(path: Path, largest: int = _LARGEST_BYTES) -> bytes:
    """Return a file's bytes; raises GenieError where it can't be read or is larger than any file of its kind."""
    try:
        with path.open("rb") as file:
            raw = file.read(largest + 1)  # a device has no size to ask for
    except OSError as error:
        raise GenieError(f"{path} can't be read ({error.strerror or error}): check the path.") from None
    if len(raw) > largest:
        raise GenieError(f"{path} has more than {largest} bytes, which no such file has: give the JSON file.")
    return raw


def parse(text: str | bytes, name: str = "the text") -> Document:
    """Parse JSON. `name` is what the text is called in messages. Raises GenieError where it is not JSON."""
    if isinstance(text, bytes):
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            raise GenieError(f"{name}, line {line}: a byte is not UTF-8: save the file as UTF-8.") from None
    else:
        decoded = text
    return _Parser(decoded.removeprefix("\ufeff"), name).document()


class _Parser:
    """One pass over a text."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._at = text, 0
        self._found = Document(name)
        self._breaks, self._counted = 1, 0  # the line of the character that was counted to

    def document(self) -> Document:
        self._found.value = self._value(())
        self._skip()
        if self._at < len(self._text):
            self._refuse("something follows after the end of the JSON value")
        return self._found

    def _line(self) -> int:
        self._breaks += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._breaks

    def _refuse(self, what: str) -> NoReturn:
        raise GenieError(f"{self._found.name}, line {self._line()}: {what}, so it is not JSON: mend it.")

    def _skip(self) -> str:
        """Pass over blanks and return the next character, nothing at the end."""
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _value(self, place: Place) -> Any:
        char = self._skip()
        if len(place) > _DEEPEST:
            self._refuse(f"values are nested more than {_DEEPEST} deep")
        self._note(place, self._line())
        if char == "{":
            return self._object(place)
        if char == "[":
            return self._array(place)
        if char == '"':
            return self._string()
        if char and char in "-0123456789":
            return self._number()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        return self._refuse(f"{char!r} begins no value" if char and char not in ",]}" else "a value is missing")

    def _note(self, place: Place, line: int) -> None:
        if len(place) <= _LINED:
            self._found.lines[place] = line

    def _object(self, place: Place) -> dict[str, Any]:
        self._at += 1
        found: dict[str, Any] = {}
        if self._skip() == "}":
            self._at += 1
            return found
        while True:
            if self._skip() != '"':
                self._refuse("a key in quotation marks is missing")
            line, key = self._line(), self._string()
            inner = (*place, key)
            if key in found:
                self._found.repeated.append(inner)
            if self._skip() != ":":
                self._refuse(f"a colon is missing after {in_one_line(key, 80)!r}")
            self._at += 1
            found[key] = self._value(inner)
            self._note(inner, line)
            if self._closes("}"):
                return found

    def _array(self, place: Place) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        if self._skip() == "]":
            self._at += 1
            return found
        while True:
            found.append(self._value((*place, len(found))))
            if self._closes("]"):
                return found

    def _closes(self, end: str) -> bool:
        char = self._skip()
        if char not in (",", end):
            self._refuse(f"a comma or {end} is missing")
        self._at += 1
        return char == end

    def _string(self) -> str:
        try:
            text, self._at = scanstring(self._text, self._at + 1, True)
        except json.JSONDecodeError as error:
            self._at = min(error.pos, len(self._text))
            self._refuse(f"a string is wrong ({error.msg.lower()})")
        if _SURROGATE.search(text):
            self._refuse("a string holds half a surrogate pair")
        return str(text)

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._refuse("a number is wrong")
        whole = match[2] is None and match[3] is None
        value = float(match[0])
        if not math.isfinite(value):
            self._refuse("a number is too large")
        self._at = match.end()
        if whole and len(match[0]) <= 20 and _INTEGERS[0] <= int(match[0]) <= _INTEGERS[1]:
            return int(match[0])
        return value


def dumped(data: Mapping[str, Any]) -> str:
    """Return the JSON text of plain values, in their order, with a final newline."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
