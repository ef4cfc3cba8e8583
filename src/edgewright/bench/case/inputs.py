"""Files that dialogs are asked with: texts and token ids."""

from __future__ import annotations

from pathlib import Path

from edgewright.errors import UsageError
from edgewright.nodes import shown

#: No prompt is as large; a larger file is another one, given by mistake.
_MOST_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """Return the whole text of a file, without a byte order mark; raises UsageError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is too large to be a prompt: correct the path.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UsageError(f"{path} can't be read ({reason}): correct the path, or the file.") from None


def read_token_ids(path: Path) -> list[int]:
    """Return the token ids of a file, decimal numbers with blanks or lines between; raises UsageError."""
    words = read_text(path).split()
    if not words:
        raise UsageError(f"{path} has no token ids: write decimal numbers with blanks between.")
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 20):
            raise UsageError(f"{path} has {shown(word)} where token ids stand: write decimal numbers, blanks between.")
    return [int(word) for word in words]
