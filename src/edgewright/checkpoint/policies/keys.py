"""A JSON object of a checkpoint whose keys are each used, known to have no effect, or named in an error."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

from edgewright.checkpoint.text import shown
from edgewright.errors import ConfigError


class Keys:
    """The keys of one object; `where` names it in errors. Every reader raises ConfigError on a wrong value.

    A key that is null counts as not there. A reader without a default asks for its key.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where} is {shown(data)}, not a JSON object; write it as the original project does.")
        self.where = where
        self._data = data
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def raw(self, name: str) -> Any:
        """Return a key's value as it stands, or None."""
        self._used.add(name)
        return self._data.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text."""
        value = self._present(name, default)
        return value if isinstance(value, str) and value else self._wrong(name, value, "a text")

    def choice(self, name: str, choices: Collection[str], default: str | None = None) -> str:
        """Return one of `choices`."""
        value = self._present(name, default)
        known = isinstance(value, str) and value in choices
        return str(value) if known else self._wrong(name, value, f"one of {', '.join(choices)}")

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Return an integer of at least `least`."""
        value = self._present(name, default)
        if type(value) is not int or not least <= value < 1 << 31:
            self._wrong(name, value, f"an integer of at least {least}")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._present(name, default)
        return value if isinstance(value, bool) else self._wrong(name, value, "true or false")

    def integers(self, name: str, length: int) -> tuple[int, ...]:
        """Return a list of `length` positive integers."""
        value = self._present(name, None)
        if not isinstance(value, list | tuple) or len(value) != length or not all(map(_is_size, value)):
            self._wrong(name, value, f"a list of {length} positive integers")
        return tuple(value)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; an empty one if the key isn't there."""
        value = self.raw(name) or []
        if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
            self._wrong(name, value, "a list of texts")
        return list(value)

    def inner(self, name: str) -> Keys:
        """Return the object under a key; an empty one if it isn't there."""
        value = self.raw(name)
        return Keys({} if value is None else value, f"{self.where.removesuffix(',')}, {name},")

    def items(self) -> list[tuple[str, Any]]:
        """Return all keys and values, which counts as having used them."""
        self._used.update(self._data)
        return list(self._data.items())

    def must(self, name: str, values: Iterable[Any], why: str) -> None:
        """Raise ConfigError unless the key is missing or has one of `values`; `why` ends the sentence."""
        value = self.raw(name)
        if value is None:
            return
        if not any(isinstance(value, bool) == isinstance(allowed, bool) and value == allowed for allowed in values):
            raise ConfigError(f"{self.where} has {name} = {shown(value)}: {why}")

    def ignore(self, names: Iterable[str]) -> None:
        """Accept keys that have no effect on what the policy computes."""
        self._used.update(names)

    def finish(self) -> None:
        """Raise ConfigError if there are keys that nobody used."""
        unknown = sorted(str(name) for name in self._data if name not in self._used)
        if unknown:
            raise ConfigError(
                f"{self.where} has keys that are not known ({', '.join(map(shown, unknown))}), so what they change"
                " would be lost; remove them if they have no effect on the policy."
            )

    def _present(self, name: str, default: Any) -> Any:
        value = self.raw(name)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self.where} has no {name}, which the policy needs; add it as the original writes it.")
        return value

    def _wrong(self, name: str, value: Any, wanted: str) -> NoReturn:
        raise ConfigError(f"{self.where} has {name} = {shown(value)}, which must be {wanted}; correct the file.")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def numbers(value: Any, where: str) -> list[float]:
    """Return a flat list of finite numbers; raises ConfigError."""
    if not isinstance(value, list) or not value or not all(type(entry) in (int, float) for entry in value):
        raise ConfigError(f"{where} is not a flat list of numbers; compute the statistics again.")
    try:
        result = [float(entry) for entry in value]
    except OverflowError:
        result = [math.inf]
    if not all(map(math.isfinite, result)):
        raise ConfigError(f"{where} holds a number that is not finite; compute the statistics again.")
    return result
