"""Methods of built-in types: only listed ones, those that can grow a string after a look at their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import Any

from jinja2.exceptions import SecurityError

from edgewright.runtime.template.limits import current

_MAX_STRIP_CHARS = 1000
_MAX_SEARCH_WORK = 200_000_000  # haystack times needle, for CPython's quadratic searches from the right


def names(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


_METHODS = {
    str: names(
        "capitalize casefold center count endswith expandtabs find index isalnum isalpha isascii isdecimal isdigit "
        "isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition "
        "removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith "
        "strip swapcase title upper zfill"
    ),
    dict: names("get items keys values copy"),
    list: names("index count copy"),
    tuple: names("index count"),
    int: names("is_integer bit_length"),
    float: names("is_integer"),
}


def call_method(method: Any, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a method of `owner`, or raises SecurityError if it isn't listed or too much work."""
    limits = current()
    name = getattr(method, "__name__", "")
    allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), frozenset())
    if isinstance(method, type) or name not in allowed:
        raise SecurityError(f"calling {name} of a {type(owner).__name__} isn't allowed")
    if isinstance(owner, str):
        if name == "join" and len(args) == 1:
            return join(owner, [_only_str(item) for item in limits.items(args[0])])
        _check_str_method(owner, name, args, kwargs)
    elif not isinstance(owner, dict):
        limits.walk(owner)
    for value in (*args, *kwargs.values()):
        limits.walk(value)
    result = limits.made(method(*args, **kwargs))
    if isinstance(owner, str) and isinstance(result, list | tuple):
        limits.tick(sum(map(getsizeof, result)))
    return result


def join(separator: str, parts: list[str]) -> str:
    """`separator.join(parts)`, checked."""
    current().fits(sum(map(len, parts)) + len(separator) * max(0, len(parts) - 1))
    return str(current().made(separator.join(parts)))


def check_replace(text: str, old: Any, new: Any) -> None:
    """Looks at `text.replace(old, new)` before it is done; wrong argument types are left to the method."""
    if isinstance(old, str) and isinstance(new, str):
        current().fits(len(text) + text.count(old) * max(0, len(new) - len(old)))


def check_strip(chars: Any) -> None:
    """Refuses sets of characters that would make `strip` slow."""
    if isinstance(chars, str) and len(chars) > _MAX_STRIP_CHARS:
        raise SecurityError("strip with that many characters isn't allowed")


def _check_str_method(text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    given = (*args, *kwargs.values())
    first = given[0] if given else None
    if name in ("center", "ljust", "rjust", "zfill") and isinstance(first, int):
        current().fits(first)
    elif name == "expandtabs":
        current().fits(len(text) + text.count("\t") * (first if isinstance(first, int) else 8))
    elif name == "replace" and len(args) > 1:
        check_replace(text, args[0], args[1])
    elif name in ("strip", "lstrip", "rstrip"):
        check_strip(first)
    elif name in ("rfind", "rindex", "rsplit", "rpartition"):
        needle = max((len(value) for value in given if isinstance(value, str)), default=1)
        if len(text) * needle > _MAX_SEARCH_WORK:
            raise SecurityError(f"{name} of that much text isn't allowed")


def _only_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"join expects strings, found {type(value).__name__}")
    return value
