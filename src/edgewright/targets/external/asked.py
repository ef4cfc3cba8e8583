"""What a build asks of a tool: the options of the target, read and checked before any work is done."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgewright.errors import ToolError, UsageError
from edgewright.files import sha256_of
from edgewright.nodes import shown
from edgewright.targets.external.process import Ended, find_program, run_program
from edgewright.targets.external.tool import Tool, find_tool, tool_names
from edgewright.targets.platform import Platform

#: The target's options and their help.
OPTIONS: Mapping[str, str] = {
    "tool": "the compiler: the name of a tool file that ships, or the path of one of yours",
    "shapes": "sizes that are fixed before the compiler is asked, SYMBOL=SIZE,...",
    "samples": "how many samples of calibration data are made",
    "seed": "the seed of calibration data that are not a text (default 0)",
    "set": "options of the tool's own, NAME=VALUE,...",
    "timeout": "seconds that a command of the tool may take",
}
_VERSION_S = 120.0
_SHOWN_LINES = 3
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class Asked:
    """A tool and what it is told; `options` has all of its own."""

    tool: Tool
    options: Mapping[str, str]
    shapes: Mapping[str, int]
    samples: int
    seed: int
    timeout_s: float


def read_options(given: Mapping[str, str], platform: Platform | None) -> Asked:
    """Read the target's options; raises UsageError on a wrong value, and on a platform that the tool doesn't know."""
    if "tool" not in given:
        raise UsageError(
            f"The target external needs to know the compiler: add --target-option tool=NAME, one of "
            f"{', '.join(tool_names())}, or tool=FILE."
        )
    tool = find_tool(given["tool"])
    settings = {name: option.default for name, option in tool.options.items()}
    settings |= _platform_settings(tool, platform)
    for name, value in _pairs(given, "set"):
        if name not in tool.options:
            known = ", ".join(tool.options) or "none"
            raise UsageError(f"{tool.title} has no option {shown(name)}; it has {known}.")
        values = tool.options[name].values
        if (values and value not in values) or not value or not value.isprintable():
            raise UsageError(f"{name} can't be {shown(value)}; it is one of {', '.join(values) or 'any text'}.")
        settings[name] = value
    shapes = {name: _whole(f"the size of {name}", value, 1) for name, value in _pairs(given, "shapes")}
    return Asked(
        tool,
        settings,
        shapes,
        samples=_whole("samples", given["samples"], 0, 10000) if "samples" in given else tool.calibration,
        seed=_whole("seed", given.get("seed", "0"), 0),
        timeout_s=float(_whole("timeout", given["timeout"], 1)) if "timeout" in given else tool.timeout_s,
    )


def goal_key(platform: Platform | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what besides the options' words decides over a build: the tool's file, its version, files it is told of.

    Of a tool that can't be asked for its version the programs themselves stand for it.
    """
    asked = read_options(options, platform)
    tool, version = asked.tool, check_programs(asked.tool)
    programs = [] if tool.version else [Path(find_program(name, tool.title, tool.package)) for name in tool.programs]
    words = [word for command in tool.commands for word in command[1:] if isinstance(word, str)]
    named = [Path(word) for word in (*words, *tool.environment.values(), *asked.options.values())]
    files = [*programs, *(path for path in named if path.is_absolute() and path.is_file())]
    return {"file": tool.digest, "version": version, "files": [_digest(path, tool.title) for path in files]}


def _digest(path: Path, title: str) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        reason = error.strerror or error
        raise ToolError(f"{title} needs {path}, which can't be read ({reason}): check its permissions.") from None


def _platform_settings(tool: Tool, platform: Platform | None) -> Mapping[str, str]:
    if platform is None or not tool.platforms:
        return {}
    for name in (platform.name, *platform.aliases):
        if name in tool.platforms:
            return tool.platforms[name]
    raise UsageError(f"{tool.title} doesn't compile for {platform.title}; it does for {', '.join(tool.platforms)}.")


def _pairs(given: Mapping[str, str], option: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for word in given.get(option, "").split(",") if option in given else ():
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            raise UsageError(f"--target-option {option}={given[option]!r} isn't of the form NAME=VALUE,NAME=VALUE.")
        found[name] = value
    return list(found.items())


def _whole(what: str, text: str, low: int, high: int = 2**31 - 1) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= high:
        raise UsageError(f"{what} must be a whole number from {low} to {high}, not {shown(text)}.")
    return int(text)


def check_programs(tool: Tool) -> str:
    """Return the tool's version, empty where its file has no way to ask; raises ToolError for a missing program."""
    for program in tool.programs:
        find_program(program, tool.title, tool.package)
    return _version(tool, find_program(tool.version.command[0], tool.title, tool.package)) if tool.version else ""


@functools.cache
def _cached_version(digest: str, program: str, words: tuple[str, ...], pattern: str, title: str) -> str:
    with TemporaryDirectory(prefix="edgewright-") as folder:
        ended = run_program(
            [program, *words], Path(folder), environment={}, timeout_s=_VERSION_S, limit=_SHOWN_CHARACTERS * 100
        )
    found = re.search(pattern, f"{ended.stdout}\n{ended.stderr}", re.MULTILINE)
    if found is None or not found[1]:
        raise ToolError(
            f"{title} doesn't say its version when it is asked by {' '.join((Path(program).name, *words))} "
            f"({last_words(ended, None) or 'it says nothing'}): correct the tool file's version, or the installation."
        )
    return found[1]


def _version(tool: Tool, program: str) -> str:
    assert tool.version is not None
    command, pattern = tool.version.command, tool.version.pattern.pattern
    return _cached_version(tool.digest, program, command[1:], pattern, tool.title)


def last_words(ended: Ended, errors: re.Pattern[str] | None) -> str:
    """Return what a program said of its failure, in one line: the lines that look like errors, else the last ones."""
    lines = [line for text in (ended.stderr, ended.stdout) for line in text.splitlines() if line.strip()]
    found = [line for line in lines if errors is not None and errors.search(line)][:_SHOWN_LINES]
    if not found:
        spoken = ended.stderr if ended.stderr.strip() else ended.stdout
        found = [line for line in spoken.splitlines() if line.strip()][-_SHOWN_LINES:]
    words = " / ".join("".join(c if c.isprintable() else " " for c in line).strip() for line in found)
    return words if len(words) <= _SHOWN_CHARACTERS else f"{words[:_SHOWN_CHARACTERS]}..."
