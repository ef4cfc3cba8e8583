"""Chat templates: a Jinja program that came with a checkpoint turns messages into the prompt's text.

What a template sees and may use is transformers 5 (`utils/chat_template_utils.py`): an immutable sandbox with
`trim_blocks` and `lstrip_blocks`, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, an unescaped
`tojson`, the special tokens as variables. Messages, tools and extra values are rebuilt from plain JSON types first;
their text is data and is never evaluated.

A template is an untrusted program, so one render has three limits, kept in a `_Run`:

- **time**: a deadline, looked at on every loop step, call, filter, test, comparison and operator;
- **memory**: an allowance of bytes that every new string, list, tuple and dict is charged to, freed or not;
- **size**: no string longer than the longest output, no list longer than `_MAX_ITEMS`, no huge integers.

They hold without threads, signals or tracing, because nothing that may be long runs unchecked: the compiled code is
instrumented (`_CodeGenerator`, `_Environment._parse`), operators go through `call_binop`, and only listed filters,
tests and methods of built-in types can be called, those that can grow a value after a look at their arguments.
Values that C code would walk recursively (`str`, `==`, hashing, `json.dumps`) are walked first, iteratively: ten
lines of `{% set x = [x, x] %}` make a value whose text would fill any memory.
"""

# ruff: noqa: N802 - Jinja looks its visitors up by node name

from __future__ import annotations

import dataclasses
import json
import math
import operator
import re
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from string import Formatter
from sys import getsizeof
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from edgewright.errors import TemplateError
from edgewright.runtime.text import Tokenizer

MAX_SOURCE_CHARS = (
    1 << 16
)  # keeps compiling below about a second; the longest published chat templates have about 30,000 characters
_MIN_COMPILE_TIMEOUT_S = 2.0
_MAX_ITEMS = 200_000
_MAX_INT_BITS = 4096
_MAX_NESTING = 100  # of calls, and of values inside values
_MAX_FORMAT_NUMBER = 1000  # width or precision in a format string
_MAX_SEARCH_WORK = 200_000_000  # haystack times needle, for CPython's quadratic searches from the right
_CALL_BYTES = 128
_BYTES_PER_OUTPUT_CHAR = 64  # the allowance of memory, as a multiple of the longest output

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEMPLATE_NAME = "<template>"


class ChatTemplate:
    """A compiled chat template; `render` may be called from several threads at once."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        timeout_s: float = 2.0,
        max_output_chars: int = 4_000_000,
    ) -> None:
        """Compiles `source`; TemplateError, with the line, if it is malformed or uses what isn't allowed.

        `special_tokens` are variables of the template (`bos_token`, ...). `timeout_s` and `max_output_chars` bound
        one render, and with it the memory: 64 bytes for each of `max_output_chars` at the most.
        """
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(
                f"the chat template has {len(source)} characters, more than the {MAX_SOURCE_CHARS} allowed; shorten it."
            )
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._timeout_s = timeout_s
        self._max_output_chars = max_output_chars
        self._environment = _Environment()
        self._environment.run = _Run(max(_MIN_COMPILE_TIMEOUT_S, timeout_s), max_output_chars)
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is malformed at line {error.lineno} ({_one_line(error.message)}); correct it there."
            ) from error
        except TemplateError:
            raise
        except (RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateError(
                f"the chat template can't be compiled ({type(error).__name__}: {_one_line(error)}), it is nested too "
                "deeply; simplify it."
            ) from error
        except Exception as error:
            raise TemplateError(
                f"the chat template can't be compiled ({type(error).__name__}: {_one_line(error)}); correct it."
            ) from error
        finally:
            self._environment.run = _NO_RUN

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """Returns the prompt's text; `extra` are further variables (`enable_thinking`, `documents`, ...).

        Raises TemplateError if the template refuses the messages, fails, or passes a limit.
        """
        variables = self._variables(messages, add_generation_prompt, tools, extra)
        run = _Run(self._timeout_s, self._max_output_chars)
        environment = self._environment
        outer, environment.run = environment.run, run
        try:
            pieces = []
            for piece in self._template.root_render_func(self._template.new_context(variables)):
                run.emit(piece)
                pieces.append(piece)
            return "".join(pieces)
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            # raise_exception, the sandbox, undefined values
            reason = _one_line(error.message or type(error).__name__)
            raise TemplateError(
                f"the chat template stopped{self._line_of(error)} ({reason}); change the messages or the template."
            ) from error
        except (MemoryError, RecursionError) as error:
            raise TemplateError(
                f"the chat template ran out of memory or stack{self._line_of(error)}; the template is broken, "
                "correct it."
            ) from error
        except Exception as error:
            raise TemplateError(
                f"the chat template failed{self._line_of(error)} ({type(error).__name__}: {_one_line(error)}); change "
                "the messages or the template."
            ) from error
        finally:
            environment.run = outer

    def _variables(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        if not messages or not all(isinstance(each, Mapping) for each in messages):
            raise TemplateError("the chat has no messages or one that is no object; give a non-empty list of objects.")
        if tools is not None and not all(isinstance(tool, Mapping) for tool in tools):
            raise TemplateError("a tool is no object; give each tool as a JSON schema.")
        try:
            given = {
                "messages": [_prepared_message(message) for message in messages],
                "tools": None if tools is None else [_plain(tool) for tool in tools],
                "add_generation_prompt": add_generation_prompt,
            }
            return {"documents": None, **self._special_tokens, **_plain(extra), **given}
        except RecursionError as error:
            raise TemplateError("the messages are nested too deeply or contain themselves; flatten them.") from error

    def _line_of(self, error: BaseException) -> str:
        """ " at line N" of the template, from the traceback; empty if no frame is the template's."""
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _TEMPLATE_NAME:
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return f" at line {line}" if line else ""


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> list[int]:
    """Token ids of a chat, as transformers' `apply_chat_template`: no special tokens beside the template's own."""
    text = template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **extra)
    return tokenizer.encode(text, add_special_tokens=False)


# --- the data a template sees ---------------------------------------------------------------------------------------


def _prepared_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data without keys that are None, reasoning text under the names templates read, as transformers does."""
    plain = {key: value for key, value in _plain(message).items() if value is not None}
    reasoning = next((plain[field] for field in _REASONING_FIELDS if field in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any) -> Any:
    """A copy made of plain JSON types; any other object becomes "<its type>", so no method of it can be reached."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return f"<{type(value).__name__}>"


# --- the limits -----------------------------------------------------------------------------------------------------

_Size = tuple[int, int, int]  # nodes, characters, depth


class _Run:
    """The limits of one render and what is used up of them."""

    def __init__(self, timeout_s: float, max_chars: int) -> None:
        self.max_chars = max_chars
        self.depth = 0
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._emitted_chars = 0
        self._bytes_left = max_chars * _BYTES_PER_OUTPUT_CHAR

    def tick(self, charge_bytes: int = 0) -> bool:
        """Charges bytes and looks at the clock; always True, so that it can stand in a condition."""
        self._bytes_left -= charge_bytes
        if self._bytes_left < 0:
            raise TemplateError(
                f"the chat template built more than {self.max_chars * _BYTES_PER_OUTPUT_CHAR} bytes of values, "
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
        if self._emitted_chars > self.max_chars:
            self.too_large("output")
        self.tick(8)

    def fits(self, length: int, what: str = "string") -> None:
        """Refuses a string of `length` characters before it is made, if it is too long."""
        if length > self.max_chars:
            self.too_large(what)

    def few(self, count: int) -> None:
        """Refuses a list of `count` items before it is made, if it is too long."""
        if count > _MAX_ITEMS:
            raise TemplateError(
                f"the chat template builds a list of more than {_MAX_ITEMS} items; give fewer messages or correct it."
            )

    def too_large(self, what: str) -> NoReturn:
        raise TemplateError(
            f"the chat template makes a longer {what} than the {self.max_chars} characters allowed; shorten the "
            "messages, correct it or raise max_output_chars."
        )

    def made(self, value: Any) -> Any:
        """Charges a value that was just made, without what is inside it; returns it."""
        if isinstance(value, str):
            self.fits(len(value))
            self.tick(getsizeof(value))
        elif isinstance(value, list | tuple | dict):
            self.few(len(value))
            self.tick(getsizeof(value))
        elif isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
            raise TemplateError("the chat template computes a huge integer; correct it.")
        return value

    def walk(self, value: Any) -> _Size:
        """Measures a value as C code would walk it, shared parts each time; refuses what is too large or too deep."""
        if value is None or isinstance(value, str | int | float):
            if isinstance(value, str):
                return 1, len(value), 0
            self.made(value)
            return 1, 0, 0
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
            if count + chars + len(stack) > self.max_chars:
                self.too_large("value")
            if depth > _MAX_NESTING:
                raise TemplateError(
                    f"the chat template works on values nested deeper than {_MAX_NESTING}; flatten the messages or "
                    "correct it."
                )
            if not count & 1023:
                self.tick()
        return count, chars, deepest

    def text(self, value: Any) -> str:
        """`str(value)`, checked."""
        if type(value) is not str:
            self.walk(value)
            value = str(value)
        self.made(value)
        return str(value)

    def items(self, values: Any) -> Any:
        """The values as something to iterate that isn't lazy: strings, lists, tuples, dicts as they are."""
        if isinstance(values, str | list | tuple | dict | jinja2.Undefined):
            if not isinstance(values, jinja2.Undefined):
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


def _inner_values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, list | tuple | type({}.keys()) | type({}.values()) | type({}.items())):
        return value
    if isinstance(value, Namespace):
        attributes: dict[str, Any] = object.__getattribute__(value, "_Namespace__attrs")
        return attributes.values()
    return ()


# --- the instrumented sandbox ---------------------------------------------------------------------------------------


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks what the assistant wrote: renders its body."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _CodeGenerator(CodeGenerator):
    """Compiles comparisons, literals, `~` and slices to checked calls; Jinja writes the plain Python for them."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self.environment, _Environment)
        self.environment.run.tick()  # Jinja's analysis of names is quadratic, so compiling has a deadline as well
        return super().visit(node, *args, **kwargs)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        if len(node.ops) == 1:
            self._call(f"compare({node.ops[0].op!r}, ", [node.expr, node.ops[0].expr], frame)
            return
        node.expr = _checked_value(node.expr)
        for operand in node.ops:
            operand.expr = _checked_value(operand.expr)
        super().visit_Compare(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._call("joined(", node.nodes, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.made(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = _checked_value(pair.key)
        self.write("environment.made(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            none = nodes.Const(None)
            part = node.arg
            self._call("sliced(", [node.node, part.start or none, part.stop or none, part.step or none], frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.writeline(f"environment.{node.node.name}", node)
        else:
            super().visit_ExprStmt(node, frame)

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        # `environment.walked(x)` in disguise: an expression node of our own, which Jinja doesn't allow
        if node.name == _WALKED and node.node is not None:
            self._call("walked(", [node.node], frame)
        else:
            super().visit_Filter(node, frame)

    def _call(self, start: str, arguments: Iterable[nodes.Node], frame: Frame) -> None:
        self.write(f"environment.{start}")
        for argument in arguments:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


_WALKED = "edgewright walked"  # no template can spell a filter's name with a space


def _checked_value(node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, _WALKED, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of one template. `run` is the current render's limits, one per thread."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            finalize=_finalize,
            optimized=False,  # the optimizer would compute constants while compiling, outside of any limit
        )
        self._local = threading.local()
        self.filters = {name: _guarded_filter(self, name) for name in _FILTERS}
        self.tests = {name: _guarded_test(self, name) for name in TESTS}
        self.globals = {
            "range": self.globals["range"],
            "dict": self._make_dict,
            "namespace": lambda *args, **kwargs: _TemplateNamespace.make(self._make_dict(*args, **kwargs)),
            "cycler": lambda *items: Cycler(*items),
            "joiner": lambda sep=", ": Joiner(sep),
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    @property
    def run(self) -> _Run:
        run: _Run = getattr(self._local, "run", _NO_RUN)
        return run

    @run.setter
    def run(self, run: _Run) -> None:
        self._local.run = run

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parses and instruments: a tick in every loop body, loop condition, macro and call block."""
        tree = super()._parse(source, name, filename)
        for refused in tree.find_all(tuple(_REFUSED_NODES)):
            raise TemplateError(
                f"the chat template uses {_REFUSED_NODES[type(refused)]} at line {refused.lineno}, which reads other "
                "templates or changes escaping and isn't allowed; take it out."
            )
        loops = list(tree.find_all(nodes.For))
        for loop in loops:
            tick = _instrument(loop.body, loop.lineno)
            if loop.test is not None:
                loop.test = nodes.And(tick, loop.test, lineno=loop.lineno)
        for macro in tree.find_all(nodes.Macro):
            _instrument(macro.body, macro.lineno)
        for block in tree.find_all(nodes.CallBlock):
            _instrument(block.body, block.lineno)
        tree.set_environment(self)
        return tree

    # What the compiled code calls.

    def tick(self, charge_bytes: int) -> bool:
        return self.run.tick(charge_bytes)

    def made(self, value: Any) -> Any:
        return self.run.made(value)

    def walked(self, value: Any) -> Any:
        self.run.walk(value)
        return value

    def concat(self, pieces: Iterable[str]) -> str:  # a static method in Jinja
        parts = list(pieces)
        self.run.fits(sum(map(len, parts)))
        return str(self.run.made("".join(parts)))

    def joined(self, *values: Any) -> str:
        return self.concat([self.run.text(value) for value in values])

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return self.run.made(value[slice(start, stop, step)])

    def compare(self, name: str, left: Any, right: Any) -> Any:
        self.run.tick()
        if name in ("in", "notin"):
            self.run.walk(left)
            if not isinstance(right, dict):  # a dict is only hashed into
                self.run.walk(right)
        elif not _is_scalar(left) and not _is_scalar(right):
            self.run.walk(left)
            self.run.walk(right)
        return _COMPARISONS[name](left, right)

    def _make_dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        for value in args:  # its keys will be hashed
            self.run.walk(value)
        made: dict[Any, Any] = self.run.made(dict(*args, **kwargs))
        return made

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.run.tick()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.run.tick()  # filters with a long `attribute` come here as well
        if isinstance(argument, tuple):
            self.run.walk(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        run = self.run
        run.tick(32)
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(other, int) and isinstance(one, str):
                    run.fits(len(one) * other)
                elif isinstance(other, int) and isinstance(one, list | tuple):
                    run.few(len(one) * other)
        elif operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                run.fits(len(left) + len(right))
            elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
                run.few(len(left) + len(right))
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_INT_BITS:
                run.made(1 << _MAX_INT_BITS)
        elif operator == "%" and isinstance(left, str):
            _check_percent(run, left, right)
        return run.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        run = self.run
        run.tick(_CALL_BYTES)
        owner = getattr(obj, "__self__", None)
        if isinstance(obj, type | types.BuiltinFunctionType | types.MethodWrapperType) or isinstance(owner, str):
            for name in ("_loop_vars", "_block_vars"):  # the compiler adds these for functions that take the context
                kwargs.pop(name, None)
            return _call_builtin_method(run, obj, owner, args, kwargs)
        if isinstance(owner, LoopContext):  # loop.changed compares its arguments
            for value in args:
                run.walk(value)
        run.depth += 1
        try:
            if run.depth > _MAX_NESTING:
                raise TemplateError(
                    f"the chat template nests more than {_MAX_NESTING} calls, probably a macro that calls itself "
                    "without end; correct it."
                )
            return run.made(super().call(context, obj, *args, **kwargs))
        finally:
            run.depth -= 1

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `format_map` with our formatter; Jinja asks this at every attribute access."""
        if not isinstance(value, types.MethodType | types.BuiltinMethodType):
            return None
        text = value.__self__
        if value.__name__ not in ("format", "format_map") or not isinstance(text, str):
            return None
        is_map = value.__name__ == "format_map"
        escape = getattr(text, "escape", None)  # Markup has it, which is what |safe makes
        formatter: Formatter = _Format(self) if escape is None else _EscapeFormatter(self, escape=escape)
        kind = type(text)

        def call(*args: Any, **kwargs: Any) -> str:
            if is_map:
                (kwargs,), args = args, ()
            return kind(formatter.vformat(text, args, kwargs))

        return call


def _instrument(body: list[nodes.Node], line: int) -> nodes.Expr:
    """Puts a tick in front of `body` and returns it; one step can buffer a reference to each constant text."""
    cost = 16 + 8 * len([data for node in body for data in node.find_all(nodes.TemplateData)])
    tick = nodes.EnvironmentAttribute(f"tick({cost})", lineno=line)
    body.insert(0, nodes.ExprStmt(tick, lineno=line))
    return tick


_NO_RUN = _Run(math.inf, 1 << 40)  # outside of compiling and rendering nothing of the template runs

_REFUSED_NODES: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from ... import",
    nodes.Extends: "extends",
    nodes.EvalContextModifier: "autoescape",
    nodes.ScopedEvalContextModifier: "autoescape",
}
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
def _finalize(context: Context, value: Any) -> str:
    """Checks each `{{ value }}`. Takes the context so that Jinja can't call it while compiling."""
    environment = context.environment
    assert isinstance(environment, _Environment)
    return environment.run.text(value)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


# --- globals --------------------------------------------------------------------------------------------------------


class _TemplateNamespace(Namespace):
    """`namespace(...)` that takes no underscore names, as in transformers."""

    @classmethod
    def make(cls, attributes: Mapping[str, Any]) -> _TemplateNamespace:
        namespace = cls()
        for name, value in attributes.items():
            namespace[name] = value
        return namespace

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace can't hold the name {name[:100]!r}")
        super().__setitem__(name, value)


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(message if isinstance(message, str) else f"<{type(message).__name__}>")


def _strftime_now(form: str) -> str:
    if len(form) > _MAX_FORMAT_NUMBER or re.search(r"%[^a-zA-Z%]*\d{3}", form):
        raise jinja2.exceptions.SecurityError("a date format is too long")
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


# --- methods of built-in types --------------------------------------------------------------------------------------


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STR_METHODS = _names(
    "capitalize casefold center count endswith expandtabs find index isalnum isalpha isascii isdecimal isdigit "
    "isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix "
    "removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title "
    "upper zfill"
)
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, _STR_METHODS),
    (dict, frozenset(("get", "items", "keys", "values", "copy"))),
    (list, frozenset(("index", "count", "copy"))),
    (tuple, frozenset(("index", "count"))),
    ((int, float), frozenset(("is_integer", "bit_length"))),
)


def _call_builtin_method(run: _Run, method: Any, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    name = getattr(method, "__name__", "")
    allowed = next((names for kind, names in _METHODS if isinstance(owner, kind)), frozenset())
    if isinstance(method, type) or name not in allowed:
        raise jinja2.exceptions.SecurityError(f"calling {name} of a {type(owner).__name__} isn't allowed")
    if isinstance(owner, str):
        if name == "join" and len(args) == 1:
            return _join(run, owner, [_only_str(item) for item in run.items(args[0])])
        _check_str_method(run, owner, name, args, kwargs)
    elif not isinstance(owner, dict):
        run.walk(owner)
    for value in (*args, *kwargs.values()):
        run.walk(value)
    result = run.made(method(*args, **kwargs))
    if isinstance(owner, str) and isinstance(result, list | tuple):
        run.tick(sum(map(getsizeof, result)))
    return result


def _check_str_method(run: _Run, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuses what would make a huge string or take very long; wrong argument types are left to the method."""
    first = args[0] if args else next(iter(kwargs.values()), None)
    if name in ("center", "ljust", "rjust", "zfill") and isinstance(first, int):
        run.fits(first)
    elif name == "expandtabs":
        run.fits(len(text) + text.count("\t") * (first if isinstance(first, int) else 8))
    elif name == "replace" and len(args) > 1:
        _check_replace(run, text, args[0], args[1])
    elif name in ("strip", "lstrip", "rstrip"):
        _check_strip(first)
    elif name in ("rfind", "rindex", "rsplit", "rpartition"):
        needle = len(first) if isinstance(first, str) else 1
        if len(text) * needle > _MAX_SEARCH_WORK:
            raise jinja2.exceptions.SecurityError(f"{name} of that much text isn't allowed")


def _check_replace(run: _Run, text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        run.fits(len(text) + text.count(old) * max(0, len(new) - len(old)))


def _check_strip(chars: Any) -> None:
    if isinstance(chars, str) and len(chars) > _MAX_FORMAT_NUMBER:
        raise jinja2.exceptions.SecurityError("strip with that many characters isn't allowed")


def _only_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"join expects strings, found {type(value).__name__}")
    return value


def _join(run: _Run, separator: str, parts: list[str]) -> str:
    run.fits(sum(map(len, parts)) + len(separator) * max(0, len(parts) - 1))
    return str(run.made(separator.join(parts)))


# --- format strings -------------------------------------------------------------------------------------------------

_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")


def _check_percent(run: _Run, form: str, values: Any) -> None:
    specifiers = _PERCENT.findall(form)
    for number in (number for pair in specifiers for number in pair if number):
        if number == "*" or len(number) > 4 or int(number) > _MAX_FORMAT_NUMBER:
            raise jinja2.exceptions.SecurityError(f"a width or precision above {_MAX_FORMAT_NUMBER} isn't allowed")
    _, chars, _ = run.walk(values)
    run.fits(len(form) + len(specifiers) * (_MAX_FORMAT_NUMBER + chars))


class _Format(SandboxedFormatter):
    """The sandbox's `str.format` with the limits on widths and sizes."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._run.walk(value)
        return self._run.made(super().convert_field(value, conversion))

    def format_field(self, value: Any, format_spec: str) -> Any:
        if any(len(number) > 4 or int(number) > _MAX_FORMAT_NUMBER for number in re.findall(r"\d+", format_spec)):
            raise jinja2.exceptions.SecurityError(f"a width or precision above {_MAX_FORMAT_NUMBER} isn't allowed")
        self._run.walk(value)
        return self._run.made(super().format_field(value, format_spec))

    @property
    def _run(self) -> _Run:
        assert isinstance(self._env, _Environment)
        return self._env.run


class _EscapeFormatter(_Format, SandboxedEscapeFormatter):
    """The same for `Markup`, which escapes what it inserts."""


# --- filters and tests ----------------------------------------------------------------------------------------------

# Of Jinja's filters these are left out, because no chat template uses them and each would need a limit of its own:
# filesizeformat, pprint, striptags, urlencode, urlize, wordcount, wordwrap, xmlattr.
_SEQUENCE_FILTERS = _names(
    "batch groupby join list map max min reject rejectattr select selectattr slice sort sum unique"
)
_UNWALKED_FILTERS = _names(
    "attr batch count d default first items last length list map random reject rejectattr reverse select selectattr "
    "slice sum"
)
_FILTERS = _SEQUENCE_FILTERS | _names(
    "abs attr capitalize center count d default dictsort e escape first float forceescape format indent int items last "
    "length lower random replace reverse round safe string title tojson trim truncate upper"
)


def _guarded_filter(environment: _Environment, name: str) -> Callable[..., Any]:
    """One of Jinja's filters behind the checks its arguments need; iterators come back as iterators over a list."""
    own: dict[str, Callable[..., Any]] = {"tojson": _tojson, "join": _filter_join, "sum": _filter_sum}
    function: Any = own.get(name, FILTERS[name])
    offset = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = _FILTER_CHECKS.get(name)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = environment.run
        run.tick(_CALL_BYTES)
        before, (value, *rest) = args[:offset], args[offset:]
        if name in _SEQUENCE_FILTERS:
            value = run.items(value)
        size = (0, 0, 0) if name in _UNWALKED_FILTERS else run.walk(value)
        for argument in (*rest, *kwargs.values()):
            if name not in ("d", "default"):
                run.walk(argument)
        if check is not None:
            check(run, value, rest, kwargs, size)
        result = function(*before, value, *rest, **kwargs)
        if isinstance(result, Iterator):
            return iter(run.collect(result))
        return run.made(result)

    return call


def _guarded_test(environment: _Environment, name: str) -> Callable[..., Any]:
    function: Any = TESTS[name]
    offset = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = environment.run
        run.tick()
        value, *rest = args[offset:]
        if name in ("odd", "even", "divisibleby") and isinstance(value, str):
            raise TypeError("a string isn't a number")  # `value % 2` would format it
        if name in ("lower", "upper") or not all(map(_is_scalar, rest)):
            run.walk(value)
        for argument in rest:
            run.walk(argument)
        return function(*args, **kwargs)

    return call


@jinja2.pass_environment
def _filter_join(
    environment: _Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    get = make_attrgetter(environment, attribute) if attribute is not None else lambda item: item
    return _join(environment.run, environment.run.text(d), [environment.run.text(get(item)) for item in value])


@jinja2.pass_context
def _filter_sum(context: Context, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    environment = context.environment
    assert isinstance(environment, _Environment)
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    get = make_attrgetter(environment, attribute) if attribute is not None else lambda item: item
    total = start
    for item in iterable:
        total = environment.call_binop(context, "+", total, get(item))
    return total


_Check = Callable[[_Run, Any, list[Any], Mapping[str, Any], _Size], None]


def _argument(rest: list[Any], kwargs: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return rest[position] if len(rest) > position else kwargs.get(name, default)


def _check_center(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    width = _argument(rest, kwargs, 0, "width", 80)
    run.fits(width if isinstance(width, int) else 0)


def _check_indent(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    width = _argument(rest, kwargs, 0, "width", 4)
    amount = width if isinstance(width, int) else len(run.text(width))
    run.fits(size[1] + (run.text(value).count("\n") + 1) * max(0, amount))


def _check_filter_replace(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    old, new = _argument(rest, kwargs, 0, "old", ""), _argument(rest, kwargs, 1, "new", "")
    _check_replace(run, run.text(value), run.text(old), run.text(new))


def _check_trim(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    _check_strip(_argument(rest, kwargs, 0, "chars", None))


def _check_round(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    precision = _argument(rest, kwargs, 0, "precision", 0)
    if isinstance(precision, int) and abs(precision) > 300:
        raise jinja2.exceptions.SecurityError("rounding to more than 300 digits isn't allowed")


def _check_title(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    run.fits(8 * size[1])  # makes a string of each word


def _check_groups(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    for count in (*rest[:1], *kwargs.values()):
        run.few(count if isinstance(count, int) else 0)


def _check_format(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    _check_percent(run, run.text(value), [*rest, *kwargs.values()])


def _check_tojson(run: _Run, value: Any, rest: list[Any], kwargs: Mapping[str, Any], size: _Size) -> None:
    indent = _argument(rest, kwargs, 1, "indent", None)
    separators = _argument(rest, kwargs, 2, "separators", None)
    count, chars, depth = size
    step = indent if isinstance(indent, int) else len(indent) if isinstance(indent, str) else 0
    between = sum(len(each) for each in separators if isinstance(each, str)) if separators else 4
    run.fits(chars + count * (max(0, step) * (depth + 1) + between))


_FILTER_CHECKS: dict[str, _Check] = {
    "center": _check_center,
    "indent": _check_indent,
    "replace": _check_filter_replace,
    "trim": _check_trim,
    "round": _check_round,
    "title": _check_title,
    "batch": _check_groups,
    "slice": _check_groups,
    "format": _check_format,
    "tojson": _check_tojson,
}


def _one_line(message: object) -> str:
    """An error's text for the inside of a one-sentence message."""
    return " ".join(str(message).split())[:500]
