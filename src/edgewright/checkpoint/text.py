"""Text from files that nobody vouches for: shown in errors, read as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgewright.errors import MalformedHeaderError

MAX_JSON_BYTES = 256 << 20
_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """Return `value` as it may stand in an error message: quoted, printable, at most 80 characters."""
    text = repr(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 4]}...{text[-1]}"


def parse_json(data: bytes, where: str, *, constants: bool = True) -> Any:
    """Return the JSON value in `data`, refusing duplicate keys.

    `where` starts the error message. `constants` allows NaN and Infinity, which Python writes into configs.
    Raises MalformedHeaderError.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise MalformedHeaderError(
                        f"{where} has the key {shown(key)} twice, so its meaning is unclear; {REMAKE}."
                    )
                seen.add(key)
        return result

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedHeaderError(f"{where} is not UTF-8 text (byte {error.start}); {REMAKE}.") from None
    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=None if constants else refuse)
    except RecursionError:
        raise MalformedHeaderError(f"{where} nests brackets too deeply to be read; {REMAKE}.") from None
    except ValueError as error:
        reason = str(error).split(";", 1)[0].rstrip(".")
        raise MalformedHeaderError(f"{where} is not valid JSON ({reason}); {REMAKE}.") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file `path`; raises MalformedHeaderError."""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise MalformedHeaderError(
            f"{path} is larger than the {MAX_JSON_BYTES >> 20} MiB that are read as JSON; {REMAKE}."
        )
    value = parse_json(path.read_bytes(), str(path))
    if not isinstance(value, dict):
        raise MalformedHeaderError(f"{path} holds a JSON {type(value).__name__}, not an object; {REMAKE}.")
    return value


REMAKE = "download the file again or write it anew"
