"""The functions every template has: `range`, `dict`, `namespace`, `raise_exception`, `strftime_now`, ..."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import safe_range
from jinja2.utils import Cycler, Joiner, Namespace

from edgewright.runtime.template.formats import MAX_FORMAT_NUMBER
from edgewright.runtime.template.limits import current


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    for value in args:  # its keys will be hashed
        current().walk(value)
    made: dict[Any, Any] = current().made(dict(*args, **kwargs))
    return made


class _TemplateNamespace(Namespace):
    """`namespace(...)` that takes no underscore names, as in transformers."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace can't hold the name {name[:100]!r}")
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    namespace = _TemplateNamespace()
    for name, value in _dict(*args, **kwargs).items():
        namespace[name] = value
    return namespace


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(message if isinstance(message, str) else f"<{type(message).__name__}>")


def _strftime_now(form: str) -> str:
    if len(form) > MAX_FORMAT_NUMBER or re.search(r"%[^a-zA-Z%]*\d{3}", form):
        raise SecurityError("a date format is too long")
    return datetime.now().strftime(form)


GLOBALS: dict[str, Any] = {
    "range": safe_range,
    "dict": _dict,
    "namespace": _namespace,
    "cycler": lambda *items: Cycler(*items),  # a class can't be called in the sandbox
    "joiner": lambda sep=", ": Joiner(sep),
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}
