"""What the documentation's tests read out of Markdown: fenced blocks, commands, tables, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"\s+# exits (\d+)$")
_HEREDOC = re.compile(r"<<'(\w+)'")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the number of its first line in the page."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """One shell command, the exit code it must have, and its line in the page."""

    text: str
    exit_code: int
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1)


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a shell block: lines joined at a backslash, or up to the end of a here-document."""
    lines = enumerate(block.text.splitlines(), block.line)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        exits = _EXIT.search(line)
        text = _EXIT.sub("", line)
        if here := _HEREDOC.search(line):
            for _, more in lines:
                text += f"\n{more}"
                if more == here[1]:
                    break
        while text.endswith("\\"):
            text = f"{text}\n{next(lines)[1]}"
        yield Command(text, int(exits[1]) if exits else 0, number)


def tables(page: Path) -> list[list[list[str]]]:
    """Return the tables outside fences: rows of cells, the head first, the rule left out."""
    found: list[list[list[str]]] = []
    inside = False
    for line in _FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        is_row = line.startswith("|")
        if is_row and not inside:
            found.append([])
        if is_row and not re.fullmatch(r"[|\- :]+", line):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        inside = is_row
    return found


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links outside fences."""
    for match in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        yield match[1]
