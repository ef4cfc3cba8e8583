"""Format strings, whose widths could ask for any length: `%` and `str.format`."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from string import Formatter
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter

from edgewright.runtime.template.limits import current

MAX_FORMAT_NUMBER = 1000  # width or precision

# The key's own parentheses and length are bounded, or finding its end would be quadratic and not what Python finds.
_PERCENT = re.compile(r"%(?:\([^()]{0,200}\))?[#0\- +]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?[hlL]?(.?)", re.DOTALL)


def check_percent(form: str, values: Any) -> None:
    """Looks at `form % values` before it is done."""
    specifiers = 0
    for match in _PERCENT.finditer(form):
        specifiers += 1
        width, precision, kind = match.groups("")
        if kind == "(":
            raise SecurityError("a key with parentheses or more than 200 characters isn't allowed in a format")
        _check_number(width)
        _check_number(precision)
    current().fits(len(form) + specifiers * (MAX_FORMAT_NUMBER + current().walk(values).chars))


def checked_format(environment: Environment, method: Any) -> Callable[..., str] | None:
    """`str.format` and `str.format_map` with the sandbox's attributes and our limits; None for any other method."""
    if not isinstance(method, types.MethodType | types.BuiltinMethodType):
        return None
    text = method.__self__
    if method.__name__ not in ("format", "format_map") or not isinstance(text, str):
        return None
    is_map = method.__name__ == "format_map"
    escape = getattr(text, "escape", None)  # Markup has it, which is what |safe makes
    formatter: Formatter = _Format(environment) if escape is None else _EscapeFormat(environment, escape=escape)
    kind = type(text)

    def call(*args: Any, **kwargs: Any) -> str:
        if is_map:
            (kwargs,), args = args, ()
        return kind(formatter.vformat(text, args, kwargs))

    return call


class _Format(SandboxedFormatter):
    """The sandbox's `str.format` with limits on widths and sizes."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        current().walk(value)
        return current().made(super().convert_field(value, conversion))

    def format_field(self, value: Any, format_spec: str) -> Any:
        for number in re.findall(r"\d+", format_spec):
            _check_number(number)
        current().walk(value)
        return current().made(super().format_field(value, format_spec))


class _EscapeFormat(_Format, SandboxedEscapeFormatter):
    """The same for `Markup`, which escapes what it inserts."""


def _check_number(number: str) -> None:
    if number == "*" or len(number) > 4 or int(number or 0) > MAX_FORMAT_NUMBER:
        raise SecurityError(f"a width or precision above {MAX_FORMAT_NUMBER} isn't allowed")
