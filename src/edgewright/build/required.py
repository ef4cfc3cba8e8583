"""The tokens that a reduced vocabulary can't do without, whatever the texts say."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import tokenizers

from edgewright.errors import TemplateError
from edgewright.runtime.template import ChatTemplate, encode_chat
from edgewright.runtime.text import Tokenizer

#: Keys of a config whose whole numbers are token ids.
_ID_KEYS = re.compile(r"(?:^|_)(?:token_ids?|suppress_tokens|bad_words_ids|forced_decoder_ids)$")
_DATES = re.compile(r"""strftime_now\(\s*(["'])(.{1,60}?)\1""")
_TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Returns the weather.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "A place."}},
        "required": ["place"],
    },
}
_CALL = {"role": "assistant", "content": "", "tool_calls": [{
    "id": "a1b2c3d4e", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Rome"}},
}]}  # fmt: skip


def base_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the tokens that any text can be made of: 256 bytes where the tokenizer has them, else all characters.

    Where only unknown characters become bytes, the printable ones of ASCII and the mark of a space are kept as well.
    """
    names: Iterator[str]
    if "ByteLevel" in tokenizer.decoder_types():
        names = iter(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    elif tokenizer.byte_fallback:
        names = itertools.chain((f"<0x{byte:02X}>" for byte in range(256)), map(chr, range(33, 127)), "\u2581")
    else:
        ids = range(tokenizer.vocab_size)
        return {i for i in ids if len((tokenizer.id_to_token(i) or "").removeprefix("##")) == 1}
    found = (tokenizer.token_to_id(name) for name in names)
    return {i for i in found if i is not None}


def named_ids(config: Any) -> set[int]:
    """Return the token ids that a config (of the model, or of generation) names, at any depth."""
    found: set[int] = set()
    if isinstance(config, Mapping):
        for key, value in config.items():
            found |= _integers(value) if _ID_KEYS.search(str(key)) else named_ids(value)
    return found


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return all added tokens, special or not, and the tokenizer's named ones."""
    named = (tokenizer.token_to_id(token) for token in tokenizer.special_tokens.values())
    return set(tokenizer.added_ids) | {i for i in named if i is not None}


def template_ids(tokenizer: Tokenizer, template: ChatTemplate) -> set[int]:
    """Return the tokens of the template's own words: of dialogs with every role, with tools, with any date.

    What the template refuses, for instance a system message, adds nothing.
    """
    found: set[int] = set()
    options: list[dict[str, Any]] = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
    options += [{"tools": [{"type": "function", "function": _TOOL}]}, {"date_string": "26 Jul 2024"}]
    for messages, extra, prompt in itertools.product(_dialogs(), options, (True, False)):
        try:
            text = template.render(messages, add_generation_prompt=prompt, **extra)
        except TemplateError:
            continue
        found.update(tokenizer.encode(_at_a_fixed_date(text, template), add_special_tokens=False))
    for form in _forms(template):
        for day in _days():
            for text in (day.strftime(form), f" {day.strftime(form)}"):
                found.update(tokenizer.encode(text, add_special_tokens=False))
    return found


def chat_ids(tokenizer: Tokenizer, template: ChatTemplate, messages: list[Mapping[str, Any]]) -> list[int]:
    """Return the token ids of a dialog, with and without the beginning of the next answer."""
    return [
        token
        for prompt in (True, False)
        for token in encode_chat(tokenizer, template, messages, add_generation_prompt=prompt)
    ]


def _dialogs() -> Iterator[list[dict[str, Any]]]:
    """Yield dialogs that together have every role, and first and later turns of each."""
    user, answer = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello"}
    thought = {**answer, "reasoning_content": "Hello"}
    tool = {"role": "tool", "content": "Hello", "name": "get_weather", "tool_call_id": "a1b2c3d4e"}
    bodies: list[list[dict[str, Any]]] = [[user], [user, answer, user, answer, user], [user, thought, user]]
    bodies += [[user, _CALL, tool, answer], [user, _CALL, tool]]
    for body in bodies:
        yield body
        for role in ("system", "developer"):
            yield [{"role": role, "content": "Hello"}, *body]


def _forms(template: ChatTemplate) -> list[str]:
    """Return the formats of dates that a template writes."""
    return sorted({form for _, form in _DATES.findall(template.source)})


def _days() -> Iterator[date]:
    yield from (date(2026, month, day) for month in range(1, 13) for day in range(1, 29))
    yield from (date(year, 1, day) for year in range(2024, 2041) for day in (1, 29, 30, 31))


def _at_a_fixed_date(text: str, template: ChatTemplate) -> str:
    """Put a fixed date in the place of today's, so that the same inputs give the same tokens tomorrow."""
    for form in _forms(template):
        today = date.today().strftime(form)  # as the template does
        text = text.replace(today, date(2026, 1, 1).strftime(form)) if today else text
    return text


def _integers(value: Any) -> set[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        return {value}
    return set().union(*map(_integers, value)) if isinstance(value, list | tuple) else set()
