"""The data a template sees: copies made of plain JSON types, so no method of a caller's object can be reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def prepared_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data without keys that are None, reasoning text under the names templates read, as transformers does."""
    copy = {key: value for key, value in plain(message).items() if value is not None}
    reasoning = next((copy[field] for field in _REASONING_FIELDS if field in copy), None)
    if reasoning is not None:
        copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
    return copy


def plain(value: Any) -> Any:
    """A copy made of plain JSON types; any other object becomes "<its type>"."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return f"<{type(value).__name__}>"
