"""How a command line shares the accelerator: flat weights, weight timelines and priorities, which don't go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgewright.bench.case.spec import Discipline, SchedulerSpec
from edgewright.errors import UsageError
from edgewright.runtime.scheduling.timeline import Timeline, parse_weight

NORMAL = 100
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_INT32 = 2**31


@dataclass(frozen=True)
class Sharing:
    """A timeline and a priority for each dialog, and the discipline that follows of them."""

    timelines: tuple[Timeline, ...]
    priorities: tuple[int, ...]
    discipline: Discipline

    def scheduler(self, usual: SchedulerSpec | None) -> SchedulerSpec:
        """Return `usual` (None: ours), under which weights mean what it says and priorities go first strictly."""
        scheduler = usual or SchedulerSpec()
        return replace(scheduler, discipline="priority") if self.discipline == "priority" else scheduler


def sharing(
    count: int,
    *,
    stride: str | None = None,
    timelines: Mapping[int, str] | None = None,
    priorities: str | None = None,
    priority: str | None = None,
) -> Sharing:
    """Return how `count` dialogs share the accelerator.

    `stride` are flat weights `4,2,1`, `timelines` W:T lists by dialog, which win over the flat weight; `priorities` one
    for each dialog, `priority` one for all. Raises UsageError where lengths and indices don't fit, where priorities
    stand beside weights, and for what is no weight or no integer.
    """
    timelines = timelines or {}
    weighted = [*(["--concurrent-stride"] if stride is not None else []), *map(_numbered, sorted(timelines))]
    if priorities is not None and weighted:
        raise UsageError(
            f"{weighted[0]} and --concurrent-priorities exclude each other: share by weights or by priorities."
        )
    if priorities is not None and priority is not None:
        raise UsageError("--priority and --concurrent-priorities both say priorities: keep one of them.")
    for index in timelines:
        if index >= count:
            raise UsageError(
                f"{_numbered(index)} is of dialog {index}, and there are {count} dialogs, 0 to {count - 1}."
            )
    usual = Timeline.constant(1)
    lines = [usual] * count
    if stride is not None:
        parts = _listed("--concurrent-stride", stride, count, "weights")
        lines = [Timeline.constant(parse_weight(part)) for part in parts]
    for index, text in timelines.items():
        lines[index] = Timeline.parse(text)
    levels = [NORMAL if priority is None else integer("--priority", priority)] * count
    if priorities is not None:
        levels = [
            integer("--concurrent-priorities", part)
            for part in _listed("--concurrent-priorities", priorities, count, "priorities")
        ]
    return Sharing(tuple(lines), tuple(levels), "weighted" if priorities is None else "priority")


def integer(option: str, text: str) -> int:
    """Return an integer within int32; raises UsageError that names the option."""
    if not _INTEGER.fullmatch(text) or not -_INT32 <= int(text) < _INT32:
        raise UsageError(f"Invalid parameter for argument: {option}: {text!r} is not an integer.")
    return int(text)


def count_of(option: str, text: str) -> int:
    """Return a whole number from 1 upwards; raises UsageError that names the option."""
    value = integer(option, text)
    if value < 1:
        raise UsageError(f"Invalid parameter for argument: {option}: {text!r} is not a whole number from 1 upwards.")
    return value


def _numbered(index: int) -> str:
    return f"--concurrent-stride{index}"


def _listed(option: str, text: str, count: int, what: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if "@" in text or ":" in text:
        raise UsageError(
            f"{option} has flat {what} such as 4,2,1, and {text!r} looks like a timeline: give it by dialog, as "
            f"{option}0 W:T,W:T."
        )
    if len(parts) != count:
        raise UsageError(f"{option} has {len(parts)} {what} for {count} dialogs ({text!r}): give one for each dialog.")
    return parts
