"""Reads files that engines wrote: bounded in size, every value checked, and what is wrong is said with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.errors import ProfileError

#: The most bytes of a file, and the most layers, runs or events in it.
MOST_BYTES, MOST_ITEMS = 1 << 28, 2_000_000
#: The longest name of a layer; a longer one is no name.
MOST_NAME = 1 << 16
#: A time above this, in microseconds (11 days), is no time.
_MOST_US = 1e12


def read_text(path: Path) -> str:
    """Return a file's text; raises ProfileError when it can't be read, is too large or no UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ProfileError(f"{path.name} can't be read ({error.strerror or error}): give the engine's file.") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path.name} is no UTF-8 text: give the file that the engine wrote.") from None
    if len(data) > MOST_BYTES:
        raise ProfileError(f"{path.name} is larger than {MOST_BYTES >> 20} MiB: profile fewer runs.")
    return text


def read_json(path: Path) -> Any:
    """Return a JSON file's value; raises ProfileError."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise ProfileError(f"{path.name} is no JSON that can be read ({reason}): profile again.") from None


def items(path: Path, value: Any, what: str) -> list[Mapping[str, Any]]:
    """Return a list of JSON objects; raises ProfileError."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ProfileError(f"{path.name} has no list of {what}: give the file that the engine wrote.")
    if len(value) > MOST_ITEMS:
        raise ProfileError(f"{path.name} has more than {MOST_ITEMS:,} {what}: profile fewer runs.")
    return value


def number(path: Path, entry: Mapping[str, Any], key: str, place: int) -> float:
    """Return a time or a count of an entry: finite and not negative; raises ProfileError with the place."""
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ProfileError(f"{path.name}: entry {place} has {key} {_shown(value)} where a number is needed.")
    if not 0 <= value <= _MOST_US:
        raise ProfileError(f"{path.name}: entry {place} has {key} {value}, which is no time: profile again.")
    return float(value)


def text(path: Path, entry: Mapping[str, Any], key: str, place: int) -> str:
    """Return a name of an entry, printable; raises ProfileError with the place."""
    value = entry.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME:
        raise ProfileError(f"{path.name}: entry {place} has {key} {_shown(value)} where a name is needed.")
    return printable(value)


def word(entry: Mapping[str, Any], key: str) -> str:
    """Return a name of an entry, printable, nothing where there is none."""
    value = entry.get(key)
    return printable(value) if isinstance(value, str) and len(value) <= MOST_NAME else ""


def printable(name: str) -> str:
    """Return a name that goes to a terminal and into a file as it is: control characters and the like are spelled."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else char.encode("unicode-escape").decode() for char in name)


def _shown(value: Any) -> str:
    spelled = repr(value)
    return spelled if len(spelled) <= 40 else f"{spelled[:40]}..."
