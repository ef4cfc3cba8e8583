"""What genie-t2t-run prints: answers by their tags."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TAG = re.compile(r"\[(COMPLETE|BEGIN|RESUME|ABORT|UNKNOWN|PROMPT TOKENS|PROMPT)\]: |\[END\]")


@dataclass(frozen=True)
class Spoken:
    """What one process printed.

    `answers` are the texts in their order, None where those of several dialogs ran into each other; `begun` and `ended`
    count their tags.
    """

    answers: tuple[str, ...] | None
    begun: int
    ended: int


def read_spoken(text: str) -> Spoken:
    """Take apart what a process printed; an answer that doesn't end goes to the end of the text."""
    text = text.replace("\r\n", "\n")
    answers: list[str] = []
    begun = ended = 0
    opened: int | None = None
    mixed = False
    for match in _TAG.finditer(text):
        tag = match[1]
        if tag in ("BEGIN", "COMPLETE"):
            mixed |= opened is not None
            begun, opened = begun + 1, match.end()
            if tag == "COMPLETE":
                ended, opened = ended + 1, None
                line_end = text.find("\n", match.end())
                answers.append(text[match.end() : line_end if line_end >= 0 else len(text)])
        elif match[0] == "[END]":
            mixed |= opened is None
            ended += 1
            answers.append(text[opened : match.start()] if opened is not None else "")
            opened = None
    if opened is not None:
        answers.append(text[opened:])
    return Spoken(None if mixed else tuple(answers), begun, ended)
