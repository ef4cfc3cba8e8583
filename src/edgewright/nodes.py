"""YAML and JSON that people write, as trees that know their lines: typed access whose errors name file and line."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgewright.errors import EdgewrightError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import yaml

_DEEPEST = 50
_LARGEST = 2**31 - 1
_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """Return a value of a file as it may stand in a message: quoted, in one line, at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python spells no number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 4]}...{text[-1]}"


@dataclass(frozen=True)
class Key:
    """A key of a mapping and its line; `name` None where it is no word."""

    name: str | None
    line: int


@dataclass(frozen=True)
class Node:
    """A value of `source`: a plain one, a tuple of nodes or a `Mapping`; `error` is what mistakes are raised as."""

    content: Any
    source: str
    line: int | None = None
    error: type[EdgewrightError] = UsageError

    @property
    def at(self) -> str:
        """File and line."""
        return self.source if self.line is None else f"{self.source}:{self.line}"

    @property
    def value(self) -> Any:
        """The plain value."""
        if isinstance(self.content, Mapping):
            return {key.name: node.value for key, node in self.content.pairs}
        if isinstance(self.content, tuple):
            return [node.value for node in self.content]
        return self.content

    @property
    def is_mapping(self) -> bool:
        """Whether this is a mapping."""
        return isinstance(self.content, Mapping)

    def has(self, name: str) -> bool:
        """Whether this is a mapping with a key of that name."""
        return isinstance(self.content, Mapping) and any(key.name == name for key, _ in self.content.pairs)

    def wrong(self, what: str) -> EdgewrightError:
        """Return the error that says `what` is wrong here."""
        return self.error(f"{self.at}: {what}")

    def entries(self) -> list[tuple[str, Node]]:
        """Return the entries of a mapping; a key that stands twice is an error."""
        result: dict[str, Node] = {}
        for key, name, node in self._pairs("expected a mapping."):
            if name in result:
                raise self.error(f"{self.source}:{key.line}: the key {shown(name)} stands twice.")
            result[name] = node
        return list(result.items())

    def mapping(self, allowed: Sequence[str]) -> dict[str, Node]:
        """Return a mapping's entries, all keys being allowed ones."""
        for key, name, _ in self._pairs(f"expected a mapping with the keys {', '.join(allowed)}."):
            if name not in allowed:
                near = difflib.get_close_matches(name, allowed, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(allowed)}."
                raise self.error(f"{self.source}:{key.line}: unknown key {shown(name)}; {hint}")
        return dict(self.entries())

    def singles(self) -> list[Node]:
        """Return a mapping for each pair of a mapping, so that each can be asked by itself; [] of anything else."""
        pairs = self.content.pairs if isinstance(self.content, Mapping) else ()
        return [Node(Mapping((pair,)), self.source, pair[0].line, self.error) for pair in pairs]

    def _pairs(self, complaint: str) -> list[tuple[Key, str, Node]]:
        if not isinstance(self.content, Mapping):
            raise self.wrong(complaint)
        pairs = []
        for key, node in self.content.pairs:
            if key.name is None:
                raise self.error(f"{self.source}:{key.line}: a key must be a word.")
            pairs.append((key, key.name, node))
        return pairs

    def items(self, complaint: str) -> list[Node]:
        """Return a list's items."""
        if not isinstance(self.content, tuple):
            raise self.wrong(f"{complaint}.")
        return list(self.content)

    def one_of(self, known: Sequence[str], what: str) -> str:
        """Return a word that must be a known one."""
        word = self.value
        if not isinstance(word, str) or word not in known:
            raise self.wrong(f"{what} {shown(word)} is unknown; known are {', '.join(known)}.")
        return word

    def text(self, what: str, longest: int = 4096) -> str:
        """Return a printable text of at most so many characters."""
        value = self.value
        if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= longest:
            raise self.wrong(f"{what} must be text of 1 to {longest} printable characters.")
        return value

    def truth(self, what: str) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise self.wrong(f"{what} must be true or false, not {shown(self.value)}.")
        return self.value

    def number(self, what: str, low: float, high: float) -> float:
        """Return a number within bounds."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(f"{what} must be a number from {low:g} to {high:g}, not {shown(value)}.")
        return float(value)

    def whole(self, what: str, low: int, high: int = _LARGEST) -> int:
        """Return a whole number from `low` to `high`."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            bounds = f"{low} upwards" if high >= _LARGEST else f"{low} to {high}"
            raise self.wrong(f"{what} must be a whole number from {bounds}, not {shown(value)}.")
        return value


@dataclass(frozen=True)
class Mapping:
    """The pairs of a mapping, as they stand: keys may repeat."""

    pairs: tuple[tuple[Key, Node], ...]


def small_text(file: Traversable, what: str, most: str, limit: int, error: type[EdgewrightError]) -> str:
    """Return the text of a small YAML file, UTF-8 and at most `limit` bytes; raises `error`.

    `what` is what the file is of, such as "platform", and `most` how much a user should give instead.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(limit + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        words = getattr(reason, "strerror", None) or "it is no UTF-8 text"
        raise error(f"The {what} {shown(str(file))} can't be read ({words}): give a YAML file.") from None
    if len(data) > limit:
        raise error(f"{file.name} is too large to be a {what}: give {most} of YAML.")
    return text


def read_yaml(text: str, source: str, error: type[EdgewrightError] = UsageError) -> Node:
    """Parse YAML without making objects; raises `error` with the line, and MissingExtraError without PyYAML."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{source} is YAML, and the package yaml is not installed: pip install pyyaml, or write it as JSON."
        ) from None
    try:
        tree = yaml.compose(text, Loader=_loader())
    except (yaml.YAMLError, ValueError) as reason:
        mark = getattr(reason, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise error(f"{source}{line}: not valid YAML ({_reason(reason)}).") from None
    return Node(None, source, error=error) if tree is None else _converted(tree, source, error)


@functools.cache
def _loader() -> Any:
    """Return a loader of plain trees: no aliases, which can stand for more than memory holds, no tags, 50 levels."""
    import yaml

    class Loader(yaml.SafeLoader):
        _depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            named = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None
            if named or getattr(event, "tag", None) is not None:
                raise yaml.MarkedYAMLError(
                    problem="anchors, aliases and tags have no place here", problem_mark=event.start_mark
                )
            if self._depth >= _DEEPEST:
                raise yaml.MarkedYAMLError(problem=f"more than {_DEEPEST} levels", problem_mark=event.start_mark)
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            return node

    return Loader


def _converted(tree: yaml.Node, source: str, error: type[EdgewrightError]) -> Node:
    """Return a YAML tree as ours; raises `error` for a value that can't be, such as the date 2020-99-99."""
    import yaml

    line = tree.start_mark.line + 1
    content: Any
    if isinstance(tree, yaml.MappingNode):
        pairs = []
        for key, value in tree.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else None
            pairs.append((Key(name, key.start_mark.line + 1), _converted(value, source, error)))
        content = Mapping(tuple(pairs))
    elif isinstance(tree, yaml.SequenceNode):
        content = tuple(_converted(item, source, error) for item in tree.value)
    else:
        try:
            content = yaml.SafeLoader("").construct_object(tree, deep=True)
        except (yaml.YAMLError, ValueError, ArithmeticError) as reason:
            raise error(f"{source}:{line}: a value can't be read ({shown(_reason(reason))}).") from None
    return Node(content, source, line, error)


def _reason(error: Exception) -> str:
    text = str(getattr(error, "problem", None) or error)
    return " ".join(text.split())


def read_json(text: str, source: str, error: type[EdgewrightError] = UsageError) -> Node:
    """Parse JSON; raises `error` with the line."""
    return _Json(text, source, error).document()


class _Json:
    """A reader of JSON that notes lines. Scalars are left to the standard library."""

    _BLANK = re.compile(r"[ \t\r\n]*")

    def __init__(self, text: str, source: str, error: type[EdgewrightError]) -> None:
        self._text, self._source, self._error = text, source, error
        self._scalar = json.JSONDecoder(parse_constant=self._constant)
        self._place, self._line, self._counted = 0, 1, 0

    def document(self) -> Node:
        node = self._value(0)
        if self._peek():
            raise self._wrong("there is more after its end")
        return node

    def _value(self, depth: int) -> Node:
        if depth >= _DEEPEST:
            raise self._wrong(f"more than {_DEEPEST} levels")
        first = self._peek()
        line = self._now()
        content: Any
        if first == "{":
            content = Mapping(tuple(self._members(depth)))
        elif first == "[":
            content = tuple(self._elements(depth))
        else:
            content = self._plain("a value")
        return Node(content, self._source, line, self._error)

    def _members(self, depth: int) -> list[tuple[Key, Node]]:
        pairs = []
        for _ in self._separated("}"):
            if self._peek() != '"':
                raise self._wrong("a key in quotes is missing")
            key = Key(str(self._plain("a key")), self._now())
            if self._peek() != ":":
                raise self._wrong(f"a colon is missing after {shown(key.name)}")
            self._place += 1
            pairs.append((key, self._value(depth + 1)))
        return pairs

    def _elements(self, depth: int) -> list[Node]:
        return [self._value(depth + 1) for _ in self._separated("]")]

    def _separated(self, end: str) -> Any:
        """Step over the bracket that opens, the commas, and the bracket that ends."""
        self._place += 1
        if self._peek() == end:
            self._place += 1
            return
        while True:
            yield
            found = self._peek()
            if found not in (",", end):
                raise self._wrong(f"a comma or {end!r} is missing")
            self._place += 1
            if found == end:
                return

    def _plain(self, what: str) -> Any:
        try:
            value, self._place = self._scalar.raw_decode(self._text, self._place)
        except (ValueError, RecursionError) as reason:
            text = str(reason).split(":")[0].lower() if self._place < len(self._text) else f"{what} is missing"
            raise self._wrong(text) from None
        return value

    def _constant(self, name: str) -> Any:
        raise ValueError(f"{name} is no JSON number")

    def _peek(self) -> str:
        """Return the next character that is no blank, "" at the end."""
        match = self._BLANK.match(self._text, self._place)
        assert match is not None
        self._place = match.end()
        return self._text[self._place : self._place + 1]

    def _now(self) -> int:
        """Return the line of the current place."""
        self._line += self._text.count("\n", self._counted, self._place)
        self._counted = max(self._counted, self._place)
        return self._line

    def _wrong(self, what: str) -> EdgewrightError:
        return self._error(f"{self._source}:{self._now()}: not valid JSON ({what}).")
