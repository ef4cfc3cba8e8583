"""YAML nodes that know their line: typed access whose errors name file and line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from edgewright.errors import RecipeError
from edgewright.quant.recipe import shown

_DEEPEST = 50
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Node:
    """A YAML node of `source`."""

    node: Any
    source: str

    @property
    def at(self) -> str:
        """File and line."""
        return self.source if self.node is None else f"{self.source}:{self.node.start_mark.line + 1}"

    @property
    def value(self) -> Any:
        """The plain value."""
        try:
            return yaml.SafeLoader("").construct_object(self.node, deep=True)
        except (yaml.YAMLError, ValueError, ArithmeticError) as error:  # such as the date 2020-99-99
            raise RecipeError(f"{self.at}: a value can't be read ({shown(_reason(error))}).") from None

    def entries(self) -> list[tuple[str, Node]]:
        """Return the entries of a mapping; a key that stands twice is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            raise RecipeError(f"{self.at}: expected a mapping.")
        result: dict[str, Node] = {}
        for key_node, value_node in self.node.value:
            key = self._key(key_node)
            if key in result:
                raise RecipeError(f"{Node(key_node, self.source).at}: the key {shown(key)} stands twice.")
            result[key] = Node(value_node, self.source)
        return list(result.items())

    def mapping(self, allowed: Sequence[str]) -> dict[str, Node]:
        """Return a mapping's entries, all keys being allowed ones."""
        if not isinstance(self.node, yaml.MappingNode):
            raise RecipeError(f"{self.at}: expected a mapping with the keys {', '.join(allowed)}.")
        for key_node, _ in self.node.value:
            key = self._key(key_node)
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(allowed)}."
                raise RecipeError(f"{Node(key_node, self.source).at}: unknown key {shown(key)}; {hint}")
        return dict(self.entries())

    def _key(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise RecipeError(f"{Node(node, self.source).at}: a key must be a word.")
        return str(node.value)

    def items(self, complaint: str) -> list[Node]:
        """Return a list's items."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise RecipeError(f"{self.at}: {complaint}.")
        return [Node(item, self.source) for item in self.node.value]

    def one_of(self, known: Sequence[str], what: str) -> str:
        """Return a word that must be a known one."""
        word = self.value
        if word not in known or not isinstance(word, str):
            raise RecipeError(f"{self.at}: {what} {shown(word)} is unknown; known are {', '.join(known)}.")
        return word

    def text(self, what: str, longest: int = 4096) -> str:
        """Return a printable text of at most so many characters."""
        value = self.value
        if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= longest:
            raise RecipeError(f"{self.at}: {what} must be text of 1 to {longest} printable characters.")
        return value

    def truth(self, what: str) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise RecipeError(f"{self.at}: {what} must be true or false, not {shown(self.value)}.")
        return self.value

    def number(self, what: str, low: float, high: float) -> float:
        """Return a number within bounds."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise RecipeError(f"{self.at}: {what} must be a number from {low:g} to {high:g}, not {shown(value)}.")
        return float(value)

    def whole(self, what: str, low: int) -> int:
        """Return a whole number from `low` upwards."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _LARGEST:
            raise RecipeError(f"{self.at}: {what} must be a whole number from {low} upwards, not {shown(value)}.")
        return value


class _Loader(yaml.SafeLoader):
    """Composes plain trees: no aliases, which can stand for more than memory holds, no tags, 50 levels at most."""

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


def read_yaml(text: str, source: str) -> Node:
    """Parse YAML without making objects; raises RecipeError with the line."""
    try:
        return Node(yaml.compose(text, Loader=_Loader), source)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(f"{source}{line}: not valid YAML ({_reason(error)}).") from None


def _reason(error: Exception) -> str:
    text = str(getattr(error, "problem", None) or error)
    return " ".join(text.split())
