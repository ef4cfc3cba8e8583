"""Reads use-case lines: `NAME: llm,vlm,vlm --iter 2 --concurrent-stride 4,2,1`, one case a line, models by registry.

The first role is dialog D0. Blank lines and what follows a `#` are left out. What a line says of iterations wins over
the command line.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from edgewright.bench.case.fields import MOST, is_name, name_rule
from edgewright.bench.case.files import Registry, unknown_model, with_defaults
from edgewright.bench.case.problems import Problems
from edgewright.bench.case.sharing import count_of, sharing
from edgewright.bench.case.spec import Case, DialogSpec, InputSpec, RunnerSpec, RunSpec
from edgewright.bench.case.words import Option, Words, parse_words
from edgewright.errors import UsageError

_MOST_BYTES = 1 << 20
_FORM = "write NAME: ROLE,ROLE,... and options"
OPTIONS = (
    Option(("--iterations", "--iter"), "N", "how often each dialog is asked"),
    Option(("--max-tokens",), "N", "most tokens of an answer"),
    Option(("--concurrent-stride",), "W,W,...", "a weight for each dialog; --concurrent-strideN W:T,W:T over time"),
    Option(("--concurrent-priorities",), "P,P,...", "a priority for each dialog"),
    Option(("--priority",), "N", "priority of all dialogs"),
)


def read_usecases(
    path: Path, registry: Registry, *, iterations: int | None = None, runner: RunnerSpec | None = None
) -> tuple[Case, ...]:
    """Return the cases of a file of use-case lines; raises CaseError with everything that is wrong.

    `iterations` holds for the lines that don't say their own.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is too large to be a file of use cases: give one line a case.")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UsageError(f"The use cases {path} can't be read ({reason}): correct the path, or the file.") from None
    problems = Problems()
    cases: dict[str, Case] = {}
    for number, line in enumerate(lines, 1):
        at = f"{path.name}:{number}"
        with problems.noted(at):
            case = parse_usecase(line, registry, at, iterations=iterations)
            if case is None:
                continue
            if case.name.lower() in cases:
                raise UsageError(f"the name {case.name} stands twice, and both would write the same folder.")
            cases[case.name.lower()] = replace(
                case, sources=(path, *registry.sources), runner=runner or registry.runner
            )
    if not cases and not problems.found:
        problems.add(path.name, f"there is no use case in it: {_FORM}.")
    problems.raise_any()
    return tuple(cases.values())


def parse_usecase(line: str, registry: Registry, at: str, *, iterations: int | None = None) -> Case | None:
    """Return the case of a line, None for one without; raises UsageError. `at` is file and line."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        raise UsageError("a quote has no end.") from None
    if not words:
        return None
    name, colon, first = words[0].partition(":")
    if not colon and len(words) > 1 and words[1].startswith(":"):
        colon, first = ":", words.pop(1)[1:]
    if not colon:
        raise UsageError(f"there is no name and colon before the roles: {_FORM}.")
    if not is_name(name):
        raise UsageError(name_rule("the name", name))
    rest = [first, *words[1:]]
    end = next((place for place, word in enumerate(rest) if word.startswith("-")), len(rest))
    roles = _roles(" ".join(rest[:end]).strip(), registry)
    options = parse_words(rest[end:], OPTIONS)
    return _case(name, roles, options, registry, at, iterations)


def _roles(text: str, registry: Registry) -> list[str]:
    roles = [role.strip() for role in text.split(",")]
    if not all(roles):
        raise UsageError(f"the roles {text!r} have an empty one: {_FORM}.")
    if len(roles) > MOST:
        raise UsageError(f"there are more than {MOST} roles.")
    for role in roles:
        if role not in registry.models:
            raise UsageError(unknown_model(role, registry.models))
    return roles


def _case(name: str, roles: list[str], options: Words, registry: Registry, at: str, iterations: int | None) -> Case:
    said = options.values
    share = sharing(
        len(roles),
        stride=said.get("--concurrent-stride"),
        timelines=options.strides,
        priorities=said.get("--concurrent-priorities"),
        priority=said.get("--priority"),
    )
    times = count_of("--iter", said["--iter"]) if "--iter" in said else iterations or 1
    most = count_of("--max-tokens", said["--max-tokens"]) if "--max-tokens" in said else None
    dialogs = [
        DialogSpec(
            name=f"D{index}",
            model=role,
            input=InputSpec(),
            iterations=times,
            max_tokens=most,
            timeline=share.timelines[index],
            priority=share.priorities[index],
        )
        for index, role in enumerate(roles)
    ]
    return Case(
        name=name,
        models=tuple(registry.models[role] for role in dict.fromkeys(roles)),
        dialogs=tuple(with_defaults(dialog, registry.models[dialog.model]) for dialog in dialogs),
        scheduler=share.scheduler(registry.scheduler),
        run=registry.run or RunSpec(),
        places={**registry.places, "case": at},
    )
