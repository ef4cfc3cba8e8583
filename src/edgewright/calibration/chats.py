"""JSON lines for calibration: one chat or one text a line, tokenized as the model is used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright.calibration.documents import Ids, TextFile
from edgewright.calibration.order import shuffled
from edgewright.checkpoint.text import shown
from edgewright.errors import CalibrationDataError, GenerationError, TemplateError
from edgewright.runtime.template import ChatTemplate, encode_chat
from edgewright.runtime.text import Tokenizer


@dataclass(frozen=True)
class Line:
    """A line of a file: either messages, perhaps with tools, or a text. `where` names it in errors."""

    where: str
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    text: str | None


def read_lines(files: Sequence[TextFile]) -> list[Line]:
    """Return all lines that are not blank; raises CalibrationDataError that names the first wrong one."""
    found = []
    for file in files:
        for number, text in enumerate(file.text.split("\n"), 1):
            if text.strip():
                found.append(_parse(text, f"Line {number} of {file.record['name']}"))
    return found


def _parse(text: str, where: str) -> Line:
    try:
        data = json.loads(text)
    except RecursionError:
        raise CalibrationDataError(f"{where} nests brackets too deeply to be read: flatten it.") from None
    except json.JSONDecodeError as error:
        raise CalibrationDataError(
            f"{where} is not valid JSON at column {error.colno} ({error.msg}): write one JSON object a line."
        ) from None
    except ValueError:  # an integer of thousands of digits
        raise CalibrationDataError(f"{where} holds a number too long to be read: correct it.") from None
    keys = data.keys() & {"messages", "text"} if isinstance(data, dict) else set()
    if len(keys) != 1:
        has = f"has the keys {shown(', '.join(data))}" if isinstance(data, dict) else f"is {shown(data)}"
        problem = "both messages and text" if keys else "neither messages nor text"
        raise CalibrationDataError(
            f'{where} has {problem} (it {has}): write {{"messages": [{{"role": ..., "content": ...}}]}} or '
            '{"text": ...}.'
        )
    if "text" in data:
        if not isinstance(data["text"], str):
            raise CalibrationDataError(f"{where} has a text that is {shown(data['text'])}: write a JSON string.")
        return Line(where, None, None, data["text"])
    return Line(where, _objects(data["messages"], "messages", where), _tools(data, where), None)


def _objects(value: Any, what: str, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise CalibrationDataError(f"{where} has {what} that are no list of objects: write at least one object.")
    if what == "messages" and (wrong := [item for item in value if not isinstance(item.get("role"), str)]):
        raise CalibrationDataError(f"{where} has a message without a role ({shown(wrong[0])}): name who speaks.")
    return value


def _tools(data: dict[str, Any], where: str) -> list[dict[str, Any]] | None:
    return None if data.get("tools") is None else _objects(data["tools"], "tools", where)


def encoded(lines: Sequence[Line], tokenizer: Tokenizer, template: ChatTemplate | None, seed: int) -> Iterator[Ids]:
    """Yield the ids of the lines in an order that the seed decides, each when it is asked for.

    Raises CalibrationDataError for a chat when there is no template, or when the template refuses it.
    """
    for index in shuffled(len(lines), seed, "lines"):
        line = lines[index]
        try:
            if line.text is not None:
                ids = tokenizer.encode(line.text)
            elif template is None:
                raise CalibrationDataError(
                    f"{line.where} is a chat and the model has no chat template (a base model?): write lines with text "
                    "instead of messages."
                )
            else:
                ids = encode_chat(tokenizer, template, line.messages or [], False, tools=line.tools)
        except (TemplateError, GenerationError) as error:
            raise CalibrationDataError(f"{line.where} does not fit the model: {error}") from None
        yield np.array(ids, np.int64)
