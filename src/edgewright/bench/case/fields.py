"""The keys of case files and registries of models, and how the value of each is read: one table for each part."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from edgewright.bench.case.problems import Problems
from edgewright.bench.case.spec import Discipline, OnError, Requantize, Reset
from edgewright.bench.case.words import is_text
from edgewright.errors import UsageError
from edgewright.nodes import Node, shown
from edgewright.runtime.encoding import EmbeddingFile
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.scheduling.timeline import Timeline

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NAME_RULE = "of 1 to 64 letters, digits, '.', '_' and '-', the first a letter or a digit"
#: Most characters of a prompt, and of a path.
_LONGEST, _LONGEST_PATH = 1 << 20, 4096
#: Most dialogs of a case, models of a registry, stages of a cost model, words of a command.
MOST = 256
PHASES = ("vision", "prefix", "denoise")

#: (node, what it is called, the folder of relative paths, where problems go) -> value
Read = Callable[[Node, str, Path, Problems], Any]


def read_fields(node: Node, table: Mapping[str, Read], folder: Path, problems: Problems) -> dict[str, Any]:
    """Return {key: value} of a mapping; keys and values that are wrong are noted and left out."""
    result: dict[str, Any] = {}
    for key, value in known_pairs(node, tuple(table), problems).items():
        with problems.noted(value.at):
            result[key] = table[key](value, key, folder, problems)
    return result


def known_pairs(node: Node, allowed: Sequence[str], problems: Problems) -> dict[str, Node]:
    """Return a mapping's entries of known keys; every other key, and one that stands twice, is noted."""
    with problems.noted(node.at):
        return node.mapping(allowed)
    if not node.is_mapping:
        return {}
    pairs: dict[str, Node] = {}
    for single in node.singles():
        with problems.noted(single.at):
            pairs.update(single.mapping(allowed))
    with problems.noted(node.at):
        node.entries()
    return pairs


def is_name(text: str) -> bool:
    """Whether a text can be the name of a case, a dialog or a model, which become names of files."""
    return NAME.fullmatch(text) is not None


def name_rule(what: str, text: str) -> str:
    """Return the sentence on a name that can't be."""
    return f"{what} {shown(text)} can't be used: give a name {_NAME_RULE}."


def name(node: Node, what: str, folder: Path, problems: Problems) -> str:
    """Read a name; a number is one as well."""
    value = str(node.value) if type(node.value) is int else node.value
    if not isinstance(value, str) or not is_name(value):
        raise node.wrong(name_rule(what, value))
    return value


def _path(node: Node, what: str, folder: Path, problems: Problems) -> Path:
    return folder / node.text(what, _LONGEST_PATH)


def _file(node: Node, what: str, folder: Path, problems: Problems) -> EmbeddingFile:
    return EmbeddingFile.parse(node.text(what, _LONGEST_PATH), folder)


def _table(node: Node, what: str, folder: Path, problems: Problems) -> EmbeddingFile | str:
    text = node.text(what, _LONGEST_PATH)
    return text if text in ("bundle", "none") else EmbeddingFile.parse(text, folder)


def _prompt(node: Node, what: str, folder: Path, problems: Problems) -> str:
    value = node.value
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST:
        raise node.wrong(f"{what} must be text of 1 to {_LONGEST} characters, not {shown(value)}.")
    if not is_text(value):
        raise node.wrong(f"{what} has half a surrogate pair, which is no character: {shown(value)}.")
    return value


def _timeline(node: Node, what: str, folder: Path, problems: Problems) -> Timeline:
    return Timeline.parse(node.text(what))


def _weight(node: Node, what: str, folder: Path, problems: Problems) -> Timeline:
    return Timeline.constant(node.number(what, 0, 1e9))


def _text(node: Node, what: str, folder: Path, problems: Problems) -> str:
    return node.text(what, _LONGEST_PATH)


def _truth(node: Node, what: str, folder: Path, problems: Problems) -> bool:
    return node.truth(what)


def _whole(low: int, high: int = 2**31 - 1) -> Read:
    return lambda node, what, folder, problems: node.whole(what, low, high)


def _number(low: float, high: float, *, above: bool = False) -> Read:
    def read(node: Node, what: str, folder: Path, problems: Problems) -> float:
        value = node.number(what, low, high)
        if above and value == low:
            raise node.wrong(f"{what} must be above {low:g}.")
        return value

    return read


def _word(literal: Any) -> Read:
    return lambda node, what, folder, problems: node.one_of(get_args(literal), what)


def _sampling(node: Node, what: str, folder: Path, problems: Problems) -> dict[str, Any]:
    allowed = tuple(field.name for field in fields(SamplingParams))
    values = {key: value.value for key, value in node.mapping(allowed).items()}
    SamplingParams(**values)  # which says what is out of range
    return values


def _stages(node: Node, what: str, folder: Path, problems: Problems) -> tuple[tuple[str, float, int], ...]:
    stages = []
    for item in node.items(f"{what} must be a list of [phase, milliseconds, times]"):
        parts = item.items("a stage must be [phase, milliseconds, times]")
        if len(parts) != 3:
            raise item.wrong("a stage must be [phase, milliseconds, times].")
        phase = parts[0].one_of(PHASES, "the phase")
        stages.append(
            (phase, parts[1].number("a stage's milliseconds", 0, _MOST_MS), parts[2].whole("times", 1, 10000))
        )
    if not 1 <= len(stages) <= MOST:
        raise node.wrong(f"{what} must be 1 to {MOST} stages.")
    return tuple(stages)


def _stops(node: Node, what: str, folder: Path, problems: Problems) -> tuple[str, ...]:
    items = [node] if isinstance(node.value, str) else node.items(f"{what} must be a text or a list of texts")
    if len(items) > MOST:
        raise node.wrong(f"{what} has more than {MOST} texts.")
    return tuple(_prompt(item, what, folder, problems) for item in items)


def _words(node: Node, what: str, folder: Path, problems: Problems) -> tuple[str, ...]:
    """Read the words of a command: a list, or one text that is split as a shell would."""
    if isinstance(node.value, str):
        return command_words(node.text(what), node.at)
    words = tuple(item.text(what) for item in node.items(f"{what} must be text or a list of words"))
    if len(words) > MOST:
        raise node.wrong(f"{what} has more than {MOST} words.")
    return words


def command_words(text: str, where: str) -> tuple[str, ...]:
    """Split a command as a shell would; raises UsageError."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise UsageError(f"{where}: a quote in {shown(text)} has no end.") from None


_MOST_MS = 1e9
_MS = _whole(0, 10**9)
SIMULATED: dict[str, Read] = {
    "prefill_ms": _number(0, _MOST_MS),
    "chunk": _whole(1),
    "decode_ms": _number(0, _MOST_MS),
    "host_ms": _number(0, _MOST_MS),
    "jitter": _number(0, 1),
    "context": _whole(1),
    "stages": _stages,
}
INPUT: dict[str, Read] = {
    "prompt": _prompt,
    "prompt_file": _path,
    "tokens_file": _path,
    "embedding": _file,
    "observation": _path,
    "prompt_tokens": _whole(1),
}
MODEL: dict[str, Read] = {
    "bundle": _path,
    "genie": _path,
    "table": _table,
    **INPUT,
    "max_tokens": _whole(1),
}
DIALOG: dict[str, Read] = {
    "name": name,
    "model": name,
    "iterations": _whole(1),
    "max_tokens": _whole(1),
    "reset": _word(Reset),
    "start_ms": _MS,
    "think_ms": _MS,
    "period_ms": _number(0, _MOST_MS, above=True),
    "deadline_ms": _number(0, _MOST_MS, above=True),
    "weight": _weight,
    "timeline": _timeline,
    "priority": _whole(-(2**31), 2**31 - 1),
    "sampling": _sampling,
    "stop": _stops,
    "requantize": _word(Requantize),
    "ignore_eos": _truth,
    "raw": _truth,
}
SCHEDULER: dict[str, Read] = {
    "discipline": _word(Discipline),
    "hold_ms": _number(0, _MOST_MS),
    "prefill_chunk": _whole(1),
}
RUN: dict[str, Read] = {
    "warmup": _whole(0, 1000),
    "repeats": _whole(1, 1000),
    "seed": _whole(0),
    "timeout_s": _number(0, 1e9, above=True),
    "on_error": _word(OnError),
    "solo": _truth,
    "threads": _whole(1, 1024),
}
RUNNER: dict[str, Read] = {
    "command": _words,
    "process": _word(Literal["run", "dialog"]),
    "profile_dir": _text,
    "pull": _words,
    "shells": _whole(0, 16),
    "check_files": _truth,
    "prompt_flag": _text,
    "flags": _words,
}
