"""The profile that Genie writes: components with their events, read whatever its age, and written in the same layout.

Components are dialogs, pipelines, nodes, engines and embeddings in the order of their names' letters (dialog10 stands
before dialog2). Each query is an event, appended when it ends. A query that was refused has no event, one that failed
has an event without figures. Start times are of the process's own clock.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewright.errors import GenieError, first_line
from edgewright.files import os_errors
from edgewright.genie.document import read_bytes
from edgewright.genie.kpis import Kpis

ARTIFACT = "GENIE_PROFILE"
#: Events that are one query each.
QUERIES = ("GenieDialog_query", "GeniePipeline_execute", "GenieEmbedding_generate")
#: What versions of the library call figures, and what this module calls them.
_NAMES = {"apply-engine-state-time": "apply-engine-state", "lora-adapter-switch-time": "lora-adapter-switching-time"}
_LARGEST_BYTES = 128 << 20
#: Times and figures beyond these are no measurements; JSON can hold any, 1e400 among them. Differences of such times
#: are int64 as nanoseconds, too, and microseconds since 1970 are such times.
_LATEST_US, _LARGEST = 1 << 51, 1e18
_TIMES = ("start", "stop", "duration")
_VERSION = {"major": 0, "minor": 1, "patch": 0}
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True)
class Event:
    """Something a component did. `kpis` maps a figure's name to its value and unit ("", us, toks/sec ...)."""

    type: str
    start_us: int
    duration_us: int
    kpis: Kpis = field(default_factory=dict)

    @property
    def stop_us(self) -> int:
        """When it ended."""
        return self.start_us + self.duration_us

    @property
    def complete(self) -> bool:
        """Whether it has figures: the library gives them to a query that succeeded only."""
        return bool(self.kpis)


@dataclass(frozen=True)
class Component:
    """A dialog, a pipeline, a node, an engine or an embedding, with its events in the order of the file."""

    name: str
    type: str
    events: tuple[Event, ...] = ()

    def of_type(self, *types: str) -> tuple[Event, ...]:
        """Return the events of some types."""
        return tuple(event for event in self.events if event.type in types)

    @property
    def queries(self) -> tuple[Event, ...]:
        """The events that are queries, failed ones included."""
        return self.of_type(*QUERIES)


@dataclass(frozen=True)
class Profile:
    """A profile. Components are in the order people count in: dialog2 before dialog10.

    `timestamp_us` is when the profile was begun, on the clock of the events, None where it isn't said. `trace` are the
    file's Chrome trace events.
    """

    components: tuple[Component, ...]
    timestamp_us: int | None = None
    trace: tuple[Mapping[str, Any], ...] = ()

    def component(self, name: str) -> Component:
        """Return the component of a name; raises GenieError where there is none."""
        for component in self.components:
            if component.name == name:
                return component
        names = ", ".join(component.name for component in self.components) or "none"
        raise GenieError(f"The profile has no component {name!r}: it has {names}.")

    @property
    def dialogs(self) -> tuple[Component, ...]:
        """What was queried: dialogs and pipelines, in the order of their numbers."""
        return tuple(component for component in self.components if component.type in ("dialog", "pipeline"))


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key that sorts names by their letters and the numbers in them by value."""
    found = []
    for number, part in enumerate(_DIGITS.split(name)):
        value = part.lstrip("0") if number % 2 else part  # every second part is digits, as many as a file may have
        found.append((number % 2 == 1, len(value) if number % 2 else 0, value))
    return tuple(found)


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises GenieError where the file is no profile, and for values that no profile has."""
    data = _loaded(path)
    header = data.get("header") if isinstance(data, dict) else None
    artifact = header.get("artifact_type", ARTIFACT) if isinstance(header, dict) else ARTIFACT
    if not isinstance(data, dict) or "components" not in data or artifact != ARTIFACT:
        raise GenieError(f"{path} is JSON but not a Genie profile: give the file that --profile wrote.")
    read = _Reader(path)
    metadata = data.get("metadata")
    timestamp = metadata.get("timestamp") if isinstance(metadata, dict) else None
    components = [read.component(one, index) for index, one in enumerate(read.list(data["components"], "components"))]
    trace = [
        read.object(one, f"traceEvents[{index}]")
        for index, one in enumerate(read.list(data.get("traceEvents"), "traceEvents"))
    ]
    return Profile(
        components=tuple(sorted(components, key=lambda component: natural(component.name))),
        timestamp_us=None if timestamp is None else read.whole(timestamp, "metadata.timestamp"),
        trace=tuple(trace),
    )


def _loaded(path: Path) -> Any:
    """Return a profile's JSON; with traces it may be large, so its lines are not kept."""
    raw = read_bytes(path, _LARGEST_BYTES)
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise GenieError(
            f"{path} is no JSON ({first_line(error)}), so it is not a Genie profile: give another."
        ) from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


class _Reader:
    """Takes a profile's values apart; what it can't take is named by its place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def component(self, data: Any, index: int) -> Component:
        where = f"components[{index}]"
        entry = self.object(data, where)
        events = self.list(entry.get("events"), f"{where}.events")
        return Component(
            name=self.text(entry.get("name"), f"{where}.name"),
            type=self.text(entry.get("type"), f"{where}.type"),
            events=tuple(self._event(one, f"{where}.events[{number}]") for number, one in enumerate(events)),
        )

    def _event(self, data: Any, where: str) -> Event:
        entry = self.object(data, where)
        times = {name: self.whole(_plain(entry[name]), f"{where}.{name}") for name in _TIMES if name in entry}
        start = times.get("start", times.get("stop", 0) - times.get("duration", 0))
        duration = times.get("duration", times.get("stop", start) - start)
        return Event(
            type=self.text(entry.get("type"), f"{where}.type"),
            start_us=start,
            duration_us=duration,
            kpis={
                _NAMES.get(name, self.text(name, f"{where}.{name!a}")): self._kpi(value, f"{where}.{name}")
                for name, value in entry.items()
                if name != "type" and name not in _TIMES
            },
        )

    def _kpi(self, data: Any, where: str) -> tuple[float, str]:
        value, unit = (data.get("value"), data.get("unit", "")) if isinstance(data, dict) else (data, "")
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise self._wrong(where, "a number with a unit")
        return value, self.text(unit, f"{where}.unit")

    def list(self, data: Any, where: str) -> Sequence[Any]:
        """Return an array; null and nothing are empty, as the library writes no components."""
        if data is not None and not isinstance(data, list):
            raise self._wrong(where, "an array")
        return data or ()

    def object(self, data: Any, where: str) -> Mapping[str, Any]:
        """Return an object."""
        if not isinstance(data, dict):
            raise self._wrong(where, "an object")
        return data

    def text(self, data: Any, where: str) -> str:
        """Return a string that a terminal and a file can take."""
        if not isinstance(data, str) or not data.isprintable():
            raise self._wrong(where, "a string of printable characters")
        return data

    def whole(self, data: Any, where: str) -> int:
        """Return a time in microseconds."""
        if isinstance(data, bool) or not isinstance(data, int | float) or not abs(data) < _LATEST_US:
            raise self._wrong(where, "a number of microseconds")
        return round(data)

    def _wrong(self, where: str, wanted: str) -> GenieError:
        return GenieError(f"{self._path}: {where} is not {wanted}, so the profile can't be read: take a whole one.")


def _plain(data: Any) -> Any:
    """Return the value of a figure that is written with its unit."""
    return data.get("value") if isinstance(data, dict) else data


def write_profile(path: Path, components: Iterable[Component], timestamp_us: int) -> None:
    """Write a profile in the library's layout, with components in its order. Raises OutputError, GenieError.

    A figure that is not finite can't be written: leave it out.
    """
    ordered = sorted(components, key=lambda component: component.name)
    data = {
        "header": {"header_version": _VERSION, "version": _VERSION, "artifact_type": ARTIFACT},
        "metadata": {"timestamp": timestamp_us},
        "components": [_component_json(component) for component in ordered] or None,
    }
    names = [component.name for component in ordered]
    if len(set(names)) < len(names):
        raise GenieError("Two components of a profile have one name: number them, as dialog0 and dialog1.")
    with os_errors(str(path)):
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False), encoding="utf-8")


def _component_json(component: Component) -> dict[str, Any]:
    return {
        "name": component.name,
        "type": component.type,
        "events": [_event_json(event) for event in component.events],
    }


def _event_json(event: Event) -> dict[str, Any]:
    kpis: dict[str, Any] = {}
    for name, (value, unit) in event.kpis.items():
        if not math.isfinite(value):
            raise GenieError(f"The figure {name!r} of {event.type} is {value}, which JSON can't say: leave it out.")
        kpis[name] = {"value": value, "unit": unit}
    return {"type": event.type, "duration": event.duration_us, "start": event.start_us, "stop": event.stop_us, **kpis}
