"""The limits of one render on time, memory and sizes, and what is used up of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from sys import getsizeof
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2.utils import Namespace

from edgewright.errors import TemplateError

_MAX_INT_BITS = 4096
_MAX_ITEMS = 200_000
_MAX_NESTING = 100  # of calls, and of values inside values
_BYTES_PER_OUTPUT_CHAR = 64  # the allowance of memory, as a multiple of the longest output

_MAPPINGS = (dict, MappingProxyType)
_CONTAINERS: tuple[type[Iterable[Any]], ...] = (list, tuple, set, type({}.keys()), type({}.values()), type({}.items()))


class Size(NamedTuple):
    """How much C code has to do that walks a value."""

    nodes: int
    chars: int
    depth: int


class Limits:
    """A template is an untrusted program, so one render has three limits.

    - time: a deadline, looked at on every loop step, call, filter, test, comparison and operator;
    - memory: an allowance of bytes that every new string, list, tuple and dict is charged to, freed or not;
    - size: no string longer than the longest output, no list longer than `_MAX_ITEMS`, no huge integers.

    They hold without threads, signals or tracing, because nothing that may be long runs unchecked. Values that C code
    would walk recursively (`str`, `==`, hashing, `json.dumps`) are walked first, iteratively: ten lines of
    `{% set x = [x, x] %}` make a value whose text would fill any memory.
    """

    def __init__(self, timeout_s: float, max_chars: int) -> None:
        self._max_chars = max_chars
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._emitted_chars = 0
        self._bytes_left = max_chars * _BYTES_PER_OUTPUT_CHAR
        self._calls = 0

    def tick(self, charge_bytes: int = 0) -> bool:
        """Charges bytes and looks at the clock; always True, so that it can stand in a condition."""
        self._bytes_left -= charge_bytes
        if self._bytes_left < 0:
            raise TemplateError(
                f"the chat template built more than {self._max_chars * _BYTES_PER_OUTPUT_CHAR} bytes of values, "
                "probably in a loop without end; correct it or raise max_output_chars."
            )
        if time.monotonic() > self._deadline:
            raise TemplateError(
                f"the chat template takes longer than {self._timeout_s} s, probably in a loop without end; correct it "
                "or raise timeout_s."
            )
        return True

    def emit(self, piece: str) -> None:
        """Counts a piece of output."""
        self._emitted_chars += len(piece)
        self.fits(self._emitted_chars, "output")
        self.tick(8)

    def enter_call(self) -> None:
        """Counts calls inside each other; a `leave_call` belongs to each."""
        self._calls += 1
        if self._calls > _MAX_NESTING:
            raise TemplateError(
                f"the chat template nests more than {_MAX_NESTING} calls, probably a macro that calls itself without "
                "end; correct it."
            )

    def leave_call(self) -> None:
        self._calls -= 1

    def fits(self, length: int, what: str = "string") -> None:
        """Refuses a string of `length` characters before it is made, if it is too long."""
        if length > self._max_chars:
            raise TemplateError(
                f"the chat template makes a longer {what} than the {self._max_chars} characters allowed; shorten the "
                "messages, correct it or raise max_output_chars."
            )

    def few(self, count: int) -> None:
        """Refuses a list of `count` items before it is made, if it is too long."""
        if count > _MAX_ITEMS:
            raise TemplateError(
                f"the chat template builds a list of more than {_MAX_ITEMS} items; give fewer messages or correct it."
            )

    def small(self, bits: int) -> None:
        """Refuses an integer of `bits` bits before it is made, if it is too large."""
        if bits > _MAX_INT_BITS:
            raise TemplateError("the chat template computes a huge integer; correct it.")

    def made(self, value: Any) -> Any:
        """Charges a value that was just made, without what is inside it; returns it."""
        if isinstance(value, str):
            self.fits(len(value))
            self.tick(getsizeof(value))
        elif isinstance(value, list | tuple | dict | set):
            self.few(len(value))
            self.tick(getsizeof(value))
        elif isinstance(value, int):
            self.small(value.bit_length())
        return value

    def walk(self, value: Any) -> Size:
        """Measures a value as C code would walk it, shared parts each time; refuses what is too large or too deep."""
        if is_scalar(value):
            if isinstance(value, str):
                return Size(1, len(value), 0)
            self.made(value)
            return Size(1, 0, 0)
        count = chars = deepest = 0
        stack: list[tuple[Any, int]] = [(value, 0)]
        while stack:
            item, depth = stack.pop()
            count += 1
            if isinstance(item, str):
                chars += len(item)
            else:
                deepest = max(deepest, depth)
                stack += [(inner, depth + 1) for inner in _inner_values(item)]
            self.fits(count + chars + len(stack), "value")
            if depth > _MAX_NESTING:
                raise TemplateError(
                    f"the chat template works on values nested deeper than {_MAX_NESTING}; flatten the messages or "
                    "correct it."
                )
            if not count & 1023:
                self.tick()
        return Size(count, chars, deepest)

    def text(self, value: Any) -> str:
        """`str(value)`, checked."""
        if type(value) is not str:
            self.walk(value)
            value = str(value)
        self.made(value)
        return str(value)

    def items(self, values: Any) -> Any:
        """The values as something to iterate that isn't lazy: strings, lists, tuples, dicts as they are."""
        if isinstance(values, str | list | tuple | dict):
            self.few(len(values))
            return values
        return self.collect(values) if isinstance(values, Iterable) else values

    def collect(self, values: Iterable[Any]) -> list[Any]:
        """A list of an iterator's values, checked at each step."""
        result = []
        for value in values:
            self.tick(64)
            result.append(value)
            self.few(len(result))
        return result


def is_scalar(value: Any) -> bool:
    """Whether there is nothing inside a value."""
    return value is None or isinstance(value, str | int | float)


def current() -> Limits:
    """The limits of the render (or of compiling) that runs on this thread."""
    return _CURRENT.get()


@contextmanager
def limited(timeout_s: float, max_chars: int) -> Iterator[Limits]:
    """Runs a block under new limits; templates can't do anything outside of such a block."""
    limits = Limits(timeout_s, max_chars)
    token = _CURRENT.set(limits)
    try:
        yield limits
    finally:
        _CURRENT.reset(token)


_CURRENT: ContextVar[Limits] = ContextVar("the limits of a chat template")


def _inner_values(value: Any) -> Iterable[Any]:
    if isinstance(value, _MAPPINGS):
        return (*value.keys(), *value.values())
    if isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, Namespace):
        attributes: dict[str, Any] = object.__getattribute__(value, "_Namespace__attrs")
        return attributes.values()
    return ()
