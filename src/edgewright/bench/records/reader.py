"""Reads a run folder as far as it goes: a torn last line, missing files and damaged rows are noted and left out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from edgewright.bench.records.folder import CASE, ENVIRONMENT, EVENTS, JOBS, STEPS, SUMMARY, is_run_folder
from edgewright.bench.records.rows import LATEST_NS, JobRow, StepRow
from edgewright.errors import UsageError
from edgewright.runtime.scheduling.timeline import Timeline

Row = TypeVar("Row")
#: Lines that are parsed at once.
_BLOCK = 256
#: Fields of events that figures are made of.
_NUMBERS = frozenset({"repeat", "start_ms", "ms", "held_ns", "lost_turns", "energy_j", "peak_rss_bytes"})


@dataclass(frozen=True)
class Run:
    """A run folder's content. `case` and `env` are as written, `notes` say what could not be read."""

    folder: Path
    case: Mapping[str, Any]
    env: Mapping[str, Any]
    steps: list[StepRow]
    jobs: list[JobRow]
    events: list[Mapping[str, Any]]
    notes: tuple[str, ...] = ()
    summary: Mapping[str, Any] | None = None
    timelines: Mapping[str, Timeline] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The case's name."""
        return str(self.case.get("name", self.folder.parent.name))

    @property
    def dialogs(self) -> tuple[str, ...]:
        """The dialogs' names in their order."""
        return tuple(self.timelines)

    @property
    def simulated(self) -> bool:
        """Whether the device was simulated."""
        return bool(self.env.get("simulated", False))

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The parts and repeats that left rows, in their order."""
        return list(self._by_part)

    def rows_of(self, part: str, repeat: int) -> tuple[list[StepRow], list[JobRow]]:
        """Return the rows of a part and repeat."""
        return self._by_part.get((part, repeat), ([], []))

    @cached_property
    def _by_part(self) -> dict[tuple[str, int], tuple[list[StepRow], list[JobRow]]]:
        found: dict[tuple[str, int], tuple[list[StepRow], list[JobRow]]] = defaultdict(lambda: ([], []))
        for step in self.steps:
            found[step.part, step.repeat][0].append(step)
        for job in self.jobs:
            found[job.part, job.repeat][1].append(job)
        return dict(found)

    @property
    def repeats(self) -> list[int]:
        """The repeats of the part "run" that left rows."""
        return sorted({repeat for part, repeat in self.parts if part == "run"})


def read_run(folder: str | Path) -> Run:
    """Read a run folder; raises UsageError where it is none, or its case can't be read."""
    folder = Path(folder)
    if not is_run_folder(folder):
        raise UsageError(f"{folder} is no run folder: it has no {CASE}. Give the folder that `bench run` printed.")
    notes: list[str] = []
    case = _object(folder / CASE, notes)
    if case is None:
        raise UsageError(f"{folder / CASE} can't be read as JSON, so nothing is known of the run: run the case again.")
    return Run(
        folder=folder,
        case=case,
        env=_object(folder / ENVIRONMENT, notes) or {},
        steps=_rows(folder / STEPS, StepRow.from_json, notes),
        jobs=_rows(folder / JOBS, JobRow.from_json, notes),
        events=_rows(folder / EVENTS, _event, notes),
        notes=tuple(notes),
        summary=_object(folder / SUMMARY, []) if (folder / SUMMARY).exists() else None,
        timelines=_timelines(case, folder),
    )


def _timelines(case: Mapping[str, Any], folder: Path) -> dict[str, Timeline]:
    """Return the weights of each dialog by its name."""
    found = {}
    try:
        _mapping(case.get("scheduler", {}))
        if not isinstance(case.get("name", ""), str):
            raise TypeError("the name of the case is no text")
        for one in case["dialogs"]:
            text = one.get("timeline")
            found[str(one["name"])] = Timeline.constant(one.get("weight", 1)) if text is None else Timeline.parse(text)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, UsageError):
        found = {}
    if not found:
        raise UsageError(f"{folder / CASE} does not describe its dialogs: run the case again.")
    return found


def _event(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event; raises KeyError, TypeError or ValueError where what is computed with is no number."""
    if not isinstance(data["event"], str):
        raise TypeError("the kind of an event is no text")
    for name in _NUMBERS & data.keys():
        value = data[name]
        if value is not None and (type(value) not in (int, float) or not abs(value) <= LATEST_NS):
            raise ValueError(f"the {name} of an event is no number")
    _mapping(data.get("bounds", {}))
    if not isinstance(data.get("dialogs", []), list):
        raise TypeError("the dialogs of an event are no list")
    return data


def _mapping(data: Any) -> Mapping[str, Any]:
    """Return a JSON object; raises TypeError where it is none."""
    if not isinstance(data, dict):
        raise TypeError("no JSON object")
    return data


def _object(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """Return a file's JSON object, None and a note where it has none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
        return None
    except (OSError, ValueError, RecursionError):
        notes.append(f"{path.name} can't be read")
        return None
    if not isinstance(data, dict):
        notes.append(f"{path.name} is no JSON object")
        return None
    return data


def _rows(path: Path, read: Callable[[Mapping[str, Any]], Row], notes: list[str]) -> list[Row]:
    """Return the rows of a file that can be read, and note the others."""
    found: list[Row] = []
    damaged: list[int] = []
    torn = False
    try:
        with path.open("rb") as file:
            number = 0
            while block := list(islice(file, _BLOCK)):
                for raw, data in zip(block, _parsed(block), strict=True):
                    number += 1
                    try:
                        found.append(read(_mapping(data)))
                    except (ValueError, TypeError, KeyError):
                        torn = not raw.endswith(b"\n")
                        damaged += [] if torn else [number]
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except OSError as error:
        notes.append(f"{path.name} can't be read ({error.strerror})")
    if torn:
        notes.append(f"the last line of {path.name} is torn and was left out")
    if damaged:
        plural = "" if len(damaged) == 1 else "s"
        notes.append(f"{len(damaged)} damaged line{plural} of {path.name} left out, the first is line {damaged[0]}")
    return found


def _parsed(block: list[bytes]) -> list[Any]:
    """Return what lines hold as JSON, None for those that hold none.

    They are parsed all at once, which takes a third of the time; where that fails, or gives another number of values,
    one by one.
    """
    with suppress(ValueError, RecursionError):
        found: list[Any] = json.loads(f"[{','.join(raw.decode() for raw in block)}]")
        if len(found) == len(block):
            return found
    return [_value(raw) for raw in block]


def _value(raw: bytes) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(raw.decode())
    return None
