"""Words and texts with placeholders: `{model}`, `{option:march}`, `{list:inputs}`; a brace is written twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgewright.errors import EdgewrightError
from edgewright.nodes import Node, shown

#: What may stand in braces by itself, and before a colon with a name after it.
PLAIN = ("model", "weights", "output", "calibration", "samples", "work", "stage", "platform")
NAMED = ("option", "list")
#: What may stand in the text for each input or output.
OF_PORT = ("name", "shape", "dtype", "folder")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True)
class Port:
    """An input or output as a program is told of it: sizes are numbers, or names where they are free.

    `folder` holds the input's calibration data, relative to where the program runs; empty where there are none.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    folder: str = ""


@dataclass(frozen=True)
class Each:
    """A text made of a piece for each input (or output): `item`, the pieces joined by `between`, sizes by `sizes`."""

    of: str
    item: str
    between: str = " "
    sizes: str = ","


@dataclass(frozen=True)
class Words:
    """Words of a command that stand there once for each input or output."""

    of: str
    words: tuple[str, ...]
    sizes: str = ","


@dataclass(frozen=True)
class Values:
    """What placeholders stand for, for one stage."""

    plain: Mapping[str, str]
    options: Mapping[str, str]
    lists: Mapping[str, Each] = field(default_factory=dict)
    ports: Mapping[str, Sequence[Port]] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        """Return a checked text with every placeholder replaced, once: values are never looked through again."""
        return _replaced(text, self._value)

    def words(self, argv: Sequence[str | Words]) -> list[str]:
        """Return a command's words."""
        found: list[str] = []
        for word in argv:
            if isinstance(word, str):
                found.append(self.filled(word))
            else:
                for port in self.ports[word.of]:
                    found += [_of_port(port, one, word.sizes) for one in word.words]
        return found

    def _value(self, inner: str) -> str:
        kind, _, name = inner.partition(":")
        if kind == "option":
            return self.options[name]
        if kind == "list":
            each = self.lists[name]
            return each.between.join(_of_port(port, each.item, each.sizes) for port in self.ports[each.of])
        return self.plain[inner]


def _of_port(port: Port, text: str, sizes: str) -> str:
    values = {"name": port.name, "dtype": port.dtype, "folder": port.folder, "shape": sizes.join(map(str, port.shape))}
    return _replaced(text, values.__getitem__)


def _replaced(text: str, value: Callable[[str], str]) -> str:
    return _PIECE.sub(lambda match: match[0][0] if match[1] is None else value(match[1]), text)


def check(node: Node, text: str, *, options: Sequence[str] = (), lists: Sequence[str] = (), port: bool = False) -> None:
    """Raise the node's error unless every placeholder of a text is a known one."""
    known = list(OF_PORT) if port else [*PLAIN, *(f"option:{n}" for n in options), *(f"list:{n}" for n in lists)]
    for match in _PIECE.finditer(text):
        if match[0] in ("{{", "}}"):
            continue
        if match[1] is None:
            raise node.wrong(f"a brace stands alone in {shown(text)}: write two for one that is meant.")
        if match[1] not in known:
            raise unknown(node, match[0], known)


def unknown(node: Node, placeholder: str, known: Sequence[str]) -> EdgewrightError:
    """Return the error on a placeholder that stands for nothing."""
    words = ", ".join(f"{{{name}}}" for name in known)
    return node.wrong(f"the placeholder {shown(placeholder)} is unknown; known are {words}.")
