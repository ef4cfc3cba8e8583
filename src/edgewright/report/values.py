"""Looks values up in JSON that may hold anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


def at(data: Any, *keys: str, kind: type[Value]) -> Value | None:
    """Return what is under `keys`, one in the other, None where it is not there or of another kind."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, kind) else None


def number(data: Any, *keys: str) -> float | None:
    """Return the finite number under `keys`, None where there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    if isinstance(data, bool) or not isinstance(data, int | float):
        return None
    return float(data) if math.isfinite(data) else None


def mapping(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return the object under `keys`, an empty one where there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}
