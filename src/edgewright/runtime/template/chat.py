"""A compiled chat template, and the token ids it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from edgewright.errors import TemplateError
from edgewright.runtime.template.data import plain, prepared_message
from edgewright.runtime.template.limits import limited
from edgewright.runtime.template.sandbox import Sandbox
from edgewright.runtime.text import Tokenizer

MAX_SOURCE_CHARS = 1 << 16  # compiles in about a second; the longest published templates have 30,000 characters
_MIN_COMPILE_TIMEOUT_S = 2.0
_TEMPLATE_FILE = "<template>"  # the name Jinja gives to compiled code


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
        try:
            with limited(max(_MIN_COMPILE_TIMEOUT_S, timeout_s), max_output_chars):
                self._template = Sandbox().from_string(source)
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
        try:
            with limited(self._timeout_s, self._max_output_chars) as limits:
                pieces = []
                for piece in self._template.root_render_func(self._template.new_context(variables)):
                    limits.emit(piece)
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
                "messages": [prepared_message(message) for message in messages],
                "tools": None if tools is None else [plain(tool) for tool in tools],
                "add_generation_prompt": add_generation_prompt,
            }
            return {"documents": None, **self._special_tokens, **plain(extra), **given}
        except RecursionError as error:
            raise TemplateError("the messages are nested too deeply or contain themselves; flatten them.") from error

    def _line_of(self, error: BaseException) -> str:
        """Return " at line N" of the template, from the traceback; empty if no frame is the template's."""
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _TEMPLATE_FILE:
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


def _one_line(message: object) -> str:
    """An error's text for the inside of a one-sentence message."""
    return " ".join(str(message).split())[:500]
