"""Texts and dialogs a user gives as examples: plain text files, and JSONL with one text or dialog a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgewright.errors import UsageError

#: A text, or the messages of a dialog.
Document = str | list[Mapping[str, Any]]
#: Plain text that only is counted is taken in pieces of about this many characters, cut at the ends of lines.
PIECE_CHARACTERS = 1 << 16


def documents(path: Path) -> Iterator[Document]:
    """Yield a file's documents: a `.jsonl` file has one a line, any other is one UTF-8 text.

    A line of JSONL is a text, or an object with `text` or with `messages` (objects with `role` and `content`). Raises
    UsageError that names the file, and the line where there is one.
    """
    text = read_text(path)
    if path.suffix != ".jsonl":
        if not text.strip():
            raise UsageError(f"{path.name} holds no text: give a file that does.")
        yield text
        return
    found = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            found = True
            yield _document(line, f"{path.name}, line {number}")
    if not found:
        raise UsageError(f"{path.name} holds no lines: give a file that does.")


def read_text(path: Path) -> str:
    """Return a file's text; raises UsageError when it can't be read or is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror or error}): give a text file.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8 text at byte {error.start}: convert it.") from None


def pieces(text: str) -> Iterator[str]:
    """Yield a long text in pieces that end with a line."""
    held: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        held.append(line)
        size += len(line)
        if size >= PIECE_CHARACTERS:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def _document(line: str, where: str) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where} is not valid JSON: write one object a line.") from None
    if isinstance(value, Mapping):
        value = value.get("messages", value.get("text"))
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(m, Mapping) and "role" in m for m in value):
        return value
    raise UsageError(f'{where} has neither a text nor messages with a role: write {{"text": ...}}.')
