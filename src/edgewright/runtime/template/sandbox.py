"""The Jinja environment that chat templates are compiled for and run in."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgewright.runtime.template.compiler import CheckedCodeGenerator, GenerationBlock, Instrumentation
from edgewright.runtime.template.filters import FILTERS, TESTS
from edgewright.runtime.template.formats import check_percent, checked_format
from edgewright.runtime.template.globals import GLOBALS
from edgewright.runtime.template.limits import current, is_scalar
from edgewright.runtime.template.methods import call_method

_CALL_BYTES = 128
_MAX_ARGUMENTS = 1000  # Jinja copies them about a dozen times on the way

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


@jinja2.pass_context
def _finalize(_: Context, value: Any) -> str:
    """Checks each `{{ value }}`. Takes the context so that Jinja can't call it while compiling."""
    return current().text(value)


class Sandbox(ImmutableSandboxedEnvironment):
    """What a template sees and may use is transformers 5 (`utils/chat_template_utils.py`), within `Limits`.

    That is: an immutable sandbox with `trim_blocks` and `lstrip_blocks`, loop controls, `{% generation %}`,
    `raise_exception`, `strftime_now`, an unescaped `tojson`. The text of messages is data and is never evaluated.

    The limits hold because the compiled code comes here for every operation, and only listed filters, tests and
    methods of built-in types can be called, those that can grow a value after a look at their arguments.
    """

    code_generator_class = CheckedCodeGenerator
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
            finalize=_finalize,
            optimized=False,  # the optimizer would compute constants while compiling
        )
        self.filters = FILTERS
        self.tests = TESTS
        self.globals = GLOBALS

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        Instrumentation().visit(tree)
        tree.set_environment(self)
        return tree

    # What `Instrumentation` puts calls of into the compiled code.

    def tick(self, charge_bytes: int) -> bool:
        return current().tick(charge_bytes)

    def made(self, value: Any) -> Any:
        return current().made(value)

    def walked(self, value: Any) -> Any:
        current().walk(value)
        return value

    def joined(self, *values: Any) -> str:
        return self.concat([current().text(value) for value in values])

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return current().made(value[slice(start, stop, step)])

    def compare(self, name: str, left: Any, right: Any) -> Any:
        limits = current()
        limits.tick()
        if name in ("in", "notin"):
            limits.walk(left)
            if not isinstance(right, dict):  # a dict is only hashed into
                limits.walk(right)
        elif not is_scalar(left) and not is_scalar(right):
            limits.walk(left)
            limits.walk(right)
        return _COMPARISONS[name](left, right)

    # What Jinja calls in an environment.

    def concat(self, pieces: Iterable[str]) -> str:
        parts = list(pieces)
        current().fits(sum(map(len, parts)))
        return str(current().made("".join(parts)))

    def getattr(self, obj: Any, attribute: str) -> Any:
        current().tick()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        current().tick()  # filters with a long `attribute` come here as well
        current().walk(argument)  # it will be hashed, or named in an error
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits = current()
        limits.tick(32)
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(other, int) and isinstance(one, str):
                    limits.fits(len(one) * other)
                elif isinstance(other, int) and isinstance(one, list | tuple):
                    limits.few(len(one) * other)
        elif operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                limits.fits(len(left) + len(right))
            elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
                limits.few(len(left) + len(right))
        elif operator == "-":  # of the keys of a dict, which hashes
            limits.walk(left)
            limits.walk(right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                limits.small(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            check_percent(left, right)
        return limits.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        limits = current()
        limits.tick(_CALL_BYTES + 8 * len(args) + 64 * len(kwargs))
        if len(args) + len(kwargs) > _MAX_ARGUMENTS:
            raise SecurityError(f"a call with more than {_MAX_ARGUMENTS} arguments isn't allowed")
        owner = getattr(obj, "__self__", None)
        builtin = isinstance(obj, type | types.BuiltinFunctionType | types.MethodWrapperType)
        if builtin or isinstance(owner, str | type):
            for name in ("_loop_vars", "_block_vars"):  # the compiler adds these for functions that take the context
                kwargs.pop(name, None)
            return call_method(obj, owner, args, kwargs)
        if isinstance(owner, LoopContext):  # loop.changed compares its arguments
            for value in args:
                limits.walk(value)
        try:
            limits.enter_call()
            return limits.made(super().call(context, obj, *args, **kwargs))
        finally:
            limits.leave_call()

    def is_safe_callable(self, obj: Any) -> bool:
        return True  # of what can be reached; Jinja asks `obj` itself and puts its text in the error

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return checked_format(self, value)  # Jinja asks this at every attribute access
