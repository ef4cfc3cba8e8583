"""Jinja's filters and tests behind the checks their arguments need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS

from edgewright.runtime.template.formats import check_percent
from edgewright.runtime.template.limits import Size, current, is_scalar
from edgewright.runtime.template.methods import check_replace, check_strip, join, names

_CALL_BYTES = 128

# Of Jinja's filters these are left out, because no chat template uses them and each would need a limit of its own:
# filesizeformat, pprint, striptags, urlencode, urlize, wordcount, wordwrap, xmlattr.
_SEQUENCE_FILTERS = names(
    "batch groupby join list map max min reject rejectattr select selectattr slice sort sum unique"
)
_OTHER_FILTERS = names(
    "abs attr capitalize center count d default dictsort e escape first float forceescape format indent int items last "
    "length lower random replace reverse round safe string title tojson trim truncate upper"
)
_UNWALKED_FILTERS = names(
    "attr batch count d default first items last length list map random reject rejectattr reverse select selectattr "
    "slice sum"
)


def _guarded_filter(name: str) -> Callable[..., Any]:
    """One of Jinja's filters behind its checks; iterators come back as iterators over a list."""
    function: Any = _OWN_FILTERS.get(name, JINJA_FILTERS[name])
    offset = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = _CHECKS.get(name)

    @wraps(function)  # also takes over `jinja_pass_arg`
    def call(*args: Any, **kwargs: Any) -> Any:
        limits = current()
        limits.tick(_CALL_BYTES)
        before, (value, *rest) = args[:offset], args[offset:]
        if name in _SEQUENCE_FILTERS:
            value = limits.items(value)
        size = Size(0, 0, 0) if name in _UNWALKED_FILTERS else limits.walk(value)
        if name not in ("d", "default"):
            for argument in (*rest, *kwargs.values()):
                limits.walk(argument)
        if check is not None:
            check(_Call(value, rest, kwargs, size))
        result = function(*before, value, *rest, **kwargs)
        return iter(limits.collect(result)) if isinstance(result, Iterator) else limits.made(result)

    return call


def _guarded_test(name: str) -> Callable[..., Any]:
    function: Any = JINJA_TESTS[name]
    offset = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        limits = current()
        limits.tick()
        value, *rest = args[offset:]
        if name in ("odd", "even", "divisibleby") and isinstance(value, str):
            raise TypeError("a string isn't a number")  # `value % 2` would format it
        if name in ("lower", "upper") or not all(map(is_scalar, rest)):
            limits.walk(value)
        for argument in rest:
            limits.walk(argument)
        return function(*args, **kwargs)

    return call


# --- filters that aren't Jinja's ------------------------------------------------------------------------------------


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    text = current().text
    get = make_attrgetter(environment, attribute) if attribute is not None else lambda item: item
    return join(text(d), [text(get(item)) for item in value])


@jinja2.pass_context
def _sum(context: Context, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    environment = context.environment
    assert isinstance(environment, SandboxedEnvironment)
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    get = make_attrgetter(environment, attribute) if attribute is not None else lambda item: item
    total = start
    for item in iterable:
        total = environment.call_binop(context, "+", total, get(item))
    return total


_OWN_FILTERS: dict[str, Callable[..., Any]] = {"tojson": _tojson, "join": _join, "sum": _sum}


# --- checks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """A filter's value and arguments, and what walking the value found."""

    value: Any
    rest: list[Any]
    kwargs: Mapping[str, Any]
    size: Size

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.rest[position] if len(self.rest) > position else self.kwargs.get(name, default)

    @property
    def text(self) -> str:
        return current().text(self.value)


def _check_center(call: _Call) -> None:
    width = call.argument(0, "width")
    current().fits(width if isinstance(width, int) else 0)


def _check_indent(call: _Call) -> None:
    width = call.argument(0, "width", 4)
    amount = width if isinstance(width, int) else len(current().text(width))
    current().fits(call.size.chars + (len(call.text.splitlines()) + 1) * max(0, amount))


def _check_replace(call: _Call) -> None:
    text = current().text
    check_replace(call.text, text(call.argument(0, "old", "")), text(call.argument(1, "new", "")))


def _check_trim(call: _Call) -> None:
    check_strip(call.argument(0, "chars"))


def _check_round(call: _Call) -> None:
    precision = call.argument(0, "precision")
    if isinstance(precision, int) and abs(precision) > 300:
        raise SecurityError("rounding to more than 300 digits isn't allowed")


def _check_title(call: _Call) -> None:
    current().fits(8 * call.size.chars)  # makes a string of each word


def _check_groups(call: _Call) -> None:
    for count in (*call.rest[:1], *call.kwargs.values()):
        current().few(count if isinstance(count, int) else 0)


def _check_format(call: _Call) -> None:
    check_percent(call.text, [*call.rest, *call.kwargs.values()])


def _check_tojson(call: _Call) -> None:
    indent, separators = call.argument(1, "indent"), call.argument(2, "separators")
    step = indent if isinstance(indent, int) else len(indent) if isinstance(indent, str) else 0
    between = sum(len(each) for each in separators if isinstance(each, str)) if separators else 4
    current().fits(call.size.chars + call.size.nodes * (max(0, step) * (call.size.depth + 1) + between))


_CHECKS: dict[str, Callable[[_Call], None]] = {
    "center": _check_center,
    "indent": _check_indent,
    "replace": _check_replace,
    "trim": _check_trim,
    "round": _check_round,
    "title": _check_title,
    "batch": _check_groups,
    "slice": _check_groups,
    "format": _check_format,
    "tojson": _check_tojson,
}

FILTERS: dict[str, Any] = {name: _guarded_filter(name) for name in _SEQUENCE_FILTERS | _OTHER_FILTERS}
TESTS: dict[str, Any] = {name: _guarded_test(name) for name in JINJA_TESTS}
